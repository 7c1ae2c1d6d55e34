"""One end of a TCP connection between two hosts.

``d_wire.py listen FAMILY PORT THEN``: listens on every address (``4``, or ``46`` for both families in one socket as
torch's store does), says ``pid PID``, and then, where ``THEN`` is

    sleep, lock   accepts, says ``accepted``, and is busy elsewhere: asleep, or behind a lock that its thread keeps
    send          accepts, says ``accepted``, and sends a byte now and then
    deaf          never accepts: behind the lock at once; the kernel shakes hands for it
    full          the same, and its queue is full: the kernel shakes no more hands

``d_wire.py read ADDRESS PORT``: says ``pid PID``, connects, and reads what never comes; ``read-mapped`` does it through
a socket of IPv6 to the address of IPv4.
"""

import os
import socket
import sys
import threading
import time

import handshake

held = []


def stay_asleep():
    time.sleep(3600)


def wait_for_lock():
    cache_lock, taken = threading.Lock(), threading.Event()

    def refresh_cache():
        with cache_lock:
            taken.set()
            threading.Event().wait()

    threading.Thread(target=refresh_cache, name="refresher", daemon=True).start()
    taken.wait()
    with cache_lock:
        pass


def send_on(talker):
    while True:
        talker.sendall(b".")
        time.sleep(0.05)


def listen(family, port, then):
    backlog = 0 if then == "full" else 8  # one more than the backlog is let in
    if family == "46":
        listener = socket.create_server(
            ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
        )
    else:
        listener = socket.create_server(("", port), backlog=backlog)
    if then == "full":
        held.append(socket.create_connection(("127.0.0.1", port)))
    handshake.ready(f"pid {os.getpid()}")
    if then in ("deaf", "full"):
        wait_for_lock()
    talker, _ = listener.accept()
    handshake.ready("accepted")
    {"sleep": stay_asleep, "lock": wait_for_lock, "send": lambda: send_on(talker)}[then]()


def read(family, address, port):
    with socket.socket(family) as talker:
        handshake.ready(f"pid {os.getpid()}")
        talker.connect((address, port))
        while talker.recv(1):
            pass


if sys.argv[1] == "listen":
    listen(sys.argv[2], int(sys.argv[3]), sys.argv[4])
elif sys.argv[1] == "read-mapped":
    read(socket.AF_INET6, f"::ffff:{sys.argv[2]}", int(sys.argv[3]))
else:
    read(socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET, sys.argv[2], int(sys.argv[3]))
