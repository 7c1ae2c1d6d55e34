"""COUNT children, each with one thread that rests in a lock beside the main one."""

import os
import sys
import threading
import time

import handshake

heard, said = os.pipe()
pids = []
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        threading.Thread(target=threading.Event().wait, name="resting", daemon=True).start()
        os.write(said, b".")
        time.sleep(3600)
    pids.append(pid)
for _ in pids:
    os.read(heard, 1)
handshake.ready(*pids)
handshake.hold()
