"""At its limits: no descriptor, no thread and no memory is left to this process. Three threads rest in a lock."""

import os
import resource
import threading

import handshake

for_ever = threading.Lock()
for_ever.acquire()
for _ in range(3):
    threading.Thread(target=for_ever.acquire, daemon=True).start()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
while True:
    try:
        os.dup(0)
    except OSError:
        break
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
resource.setrlimit(resource.RLIMIT_AS, (1, 1))
handshake.ready("at the limits")
handshake.hold()
