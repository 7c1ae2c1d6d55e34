"""A rank at work: COUNT named threads rest in a lock, the main thread runs Python all the time.

``exec`` as a second argument: after every 50 ms of work it becomes a new program, and it starts a child before.
"""

import os
import sys
import threading
import time

import handshake

count = int(sys.argv[1])
is_restless = sys.argv[2:3] == ["exec"]
for_ever = threading.Lock()
for_ever.acquire()


def rest():
    for_ever.acquire()


def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(number * number for number in range(1000))


for number in range(count):
    threading.Thread(target=rest, name=f"rest-{number}", daemon=True).start()
if "again" not in sys.argv:
    handshake.ready("busy")
work(0.05 if is_restless else 3600)
if os.fork() == 0:
    os._exit(0)
os.wait()
os.execv(sys.executable, [sys.executable, __file__, str(count), "exec", "again"])
