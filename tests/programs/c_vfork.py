"""A main thread in state D: the parent of a vfork waits uninterruptibly until the child execs.

The child cannot: it opens FIFO, which nobody writes to.
"""

import os
import sys
import threading

import handshake

threading.Thread(target=handshake.hold, name="resting", daemon=True).start()
handshake.ready("about to wait")
os.posix_spawn(
    "/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
)
