"""COUNT threads that rest in a lock, below DEPTH calls of `descend`; the main thread rests in read(2).

NAME, when given, is written into every thread's comm as raw bytes (a hex string), past Python's own naming;
``own`` copies the thread's Python name there.
"""

import ctypes
import sys
import threading
import time

import handshake

count, depth = int(sys.argv[1]), int(sys.argv[2])
name = sys.argv[3] if len(sys.argv) > 3 else ""
for_ever = threading.Lock()
for_ever.acquire()


def descend(levels):
    if levels > 1:
        return descend(levels - 1)
    if name:
        comm = threading.current_thread().name.encode() if name == "own" else bytes.fromhex(name)
        ctypes.CDLL(None).prctl(15, comm, 0, 0, 0)
    return rest()


def rest():
    return for_ever.acquire()


threading.stack_size(1 << 20)
for number in range(count):
    threading.Thread(target=descend, args=(depth,), name=f"rest-{number}", daemon=True).start()
while sum(frame.f_code is rest.__code__ for frame in sys._current_frames().values()) < count:
    time.sleep(0.001)
handshake.ready("resting")
handshake.hold()
