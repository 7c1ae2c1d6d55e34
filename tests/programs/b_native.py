"""Locks of C and C++ through ctypes: ``b_native.py LIBRARY SCENARIO``. Says ``pid name=tid …`` as b_locks.py does."""

import ctypes
import multiprocessing
import os
import struct
import sys
import threading
import time

import handshake

library = ctypes.CDLL(sys.argv[1])
keeps_gil = ctypes.PyDLL(sys.argv[1])
tids = {}


def start(name, target, *args):
    noted = threading.Event()

    def run():
        tids[name] = threading.get_native_id()
        noted.set()
        target(*args)

    threading.Thread(target=run, name=name, daemon=True).start()
    noted.wait()


def held(what):
    """A thread ``holder_WHAT`` has the lock when this returns."""
    heard, said = os.pipe()
    start(f"holder_{what}", library.hold, what.encode(), said)
    os.read(heard, 1)


def ring2():
    library.prepare(2)
    for own in range(2):
        start(f"t{own}", library.lock_ring, own, 2)


def ring3():
    library.prepare(3)
    for own in range(3):
        start(f"t{own}", library.lock_ring, own, 3)


def standard2():
    library.prepare(2)
    for own in range(2):
        start(f"t{own}", library.lock_ring_standard, own, 2)


def standard3():
    library.prepare(3)
    for own in range(3):
        start(f"t{own}", library.lock_ring_standard, own, 3)


def ordered3():
    """As ``standard3``, without the deadlock."""
    library.prepare(3)
    for own in range(3):
        start(f"t{own}", library.lock_in_order, own, 3)


def kinds():
    library.prepare(1)
    for what in ("plain", "inheriting", "robust", "recursive", "standard", "shared_write"):
        held(what)
        start(f"waiter_{what}", library.take, what.encode())
    start("waiter_shared_read", library.take, b"shared_read")


def unowned():
    library.prepare(1)
    for _ in range(2):
        held("rw_read")
    for what in ("rw_write", "condition", "condition_timed", "semaphore"):
        start(f"waiter_{what}", library.take, what.encode())


def join():
    heard, said = os.pipe()
    start("waiter", library.join, said)
    tids["other"] = struct.unpack("i", os.read(heard, 4))[0]


def gil():
    """One holds a mutex and wants the GIL; one holds the GIL and wants the mutex. Nobody here can say so."""
    library.prepare(1)
    taken = threading.Event()
    pid = os.fork()
    if pid:
        os.read(int(os.environ["HANDSHAKE_HOLD_FD"]), 1)
        return

    def callback_side():
        library.take(b"plain")
        taken.set()
        while True:
            time.sleep(0)  # comes back for the GIL

    start("mutex_holder", callback_side)
    taken.wait()
    handshake.ready(
        os.getpid(), f"gil_holder={threading.get_native_id()}", *(f"{n}={t}" for n, t in tids.items())
    )
    keeps_gil.take(b"plain")


def fork():
    library.prepare(1)
    held("plain")
    if os.fork() == 0:
        handshake.ready(
            os.getpid(), f"waiter={threading.get_native_id()}", f"parent_holder={tids['holder_plain']}"
        )
        library.take(b"plain")


def shared():
    """mp.Lock held by another process; mp.Semaphore empty; and a process that only has the lock."""
    context = multiprocessing.get_context("fork")
    lock, semaphore = context.Lock(), context.Semaphore(0)
    heard, said = os.pipe()

    def hold():
        with lock:
            os.write(said, struct.pack("i", threading.get_native_id()))
            time.sleep(3600)

    def had():
        with lock:
            pass
        os.write(said, struct.pack("i", threading.get_native_id()))
        time.sleep(3600)

    processes = {}
    for name, target in (("bystander", had), ("holder", hold)):
        processes[name] = context.Process(target=target, daemon=True)
        processes[name].start()
        tids[name] = struct.unpack("i", os.read(heard, 4))[0]
    start("waiter", lock.acquire)
    start("waiter_semaphore", semaphore.acquire)


globals()[sys.argv[2]]()
if sys.argv[2] not in ("gil", "fork"):
    handshake.ready(os.getpid(), *(f"{name}={tid}" for name, tid in tids.items()))
handshake.hold()
