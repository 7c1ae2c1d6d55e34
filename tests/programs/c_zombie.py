"""Has one child that ended with exit code CODE and is not reaped."""

import os
import sys

import handshake

child = os.fork()
if child == 0:
    os._exit(int(sys.argv[1]))
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
handshake.ready("zombie", child)
handshake.hold()
