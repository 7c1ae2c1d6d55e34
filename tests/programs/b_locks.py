"""Threads that lock each other out in one known way. Says ``pid name=tid …``, one word a thread that is on its way in.

The scenario is the first argument; each is a function below. Only the standard library, any Python from 3.10.
"""

import os
import queue
import shutil
import sys
import tempfile
import threading
import time

import handshake

tids = {}
inside = threading.Semaphore(0)
never = threading.Event()


def start(name, target, *args):
    """Runs in a thread that has noted its tid before it goes on."""
    noted = threading.Event()

    def run():
        tids[name] = threading.get_native_id()
        noted.set()
        target(*args)

    threading.Thread(target=run, name=name, daemon=True).start()
    noted.wait()


def hold_with(lock):
    """Inside ``with lock`` for ever, in a system call that is not a lock."""
    with lock:
        inside.release()
        time.sleep(3600)


def want_with(lock):
    with lock:
        pass


def both(first, second, gate):
    with first:
        gate.wait()
        inner(second)


def inner(second):
    with second:
        pass


def held():
    inside.acquire()


def cycle(count, make):
    locks, gate = [make() for _ in range(count)], threading.Barrier(count)
    for index in range(count):
        start(f"t{index}", both, locks[index], locks[(index + 1) % count], gate)


def abba():
    cycle(2, threading.Lock)


def abba3():
    cycle(3, threading.Lock)


def abba_rlock():
    cycle(2, threading.RLock)


def held_with():
    lock = threading.Lock()
    start("holder", hold_with, lock)
    held()
    start("waiter", want_with, lock)


def held_acquire():
    """The holder leaves no trace; others have the lock in sight, or had it in a block that they left."""
    lock, other = threading.Lock(), threading.Lock()

    def hold():
        lock.acquire()
        inside.release()
        time.sleep(3600)

    def has_in_local(seen):
        with seen:
            pass
        inside.release()
        time.sleep(3600)

    def left_nested():
        with other, other_2, other_3, other_4, lock:
            pass
        inside.release()
        never.wait()

    def in_another_with():
        with lock:
            pass
        with other_5:
            inside.release()
            time.sleep(3600)

    def tried():
        try:
            with lock:
                raise ValueError
        except ValueError:
            inside.release()
            time.sleep(3600)

    def has_stale_exit():
        kept = lock.__exit__
        made = (0, 0, 0, 0, kept)  # leaves a pointer to it above the top of the value stack
        inside.release()
        time.sleep(3600)
        return made

    other_2, other_3, other_4, other_5 = (threading.Lock() for _ in range(4))
    for name, target, args in (
        ("local", has_in_local, (lock,)),
        ("nested", left_nested, ()),
        ("another", in_another_with, ()),
        ("tried", tried, ()),
        ("stale", has_stale_exit, ()),
        ("holder", hold, ()),
    ):
        start(name, target, *args)
        held()
    start("waiter", want_with, lock)


def held_deep():
    """The block is in a caller, with calls, a generator, a loop and an exception handler in between."""
    lock = threading.Lock()

    def steps():
        for _ in range(1):
            inside.release()
            time.sleep(3600)
            yield 1

    def deeper(n):
        if n:
            return deeper(n - 1)
        try:
            raise KeyError
        except KeyError:
            for one in steps():
                return one

    def hold():
        with threading.Lock(), lock, threading.Lock():
            for _ in range(2):
                deeper(20)

    start("holder", hold)
    held()
    start("waiter", want_with, lock)


def held_rlock():
    lock = threading.RLock()

    def hold():
        lock.acquire()
        lock.acquire()
        inside.release()
        time.sleep(3600)

    start("holder", hold)
    held()
    start("waiter", want_with, lock)


def held_condition():
    """``with queue.not_empty`` and ``queue.get`` want the same lock under two names."""
    jobs = queue.Queue()
    start("holder", hold_with, jobs.not_full)
    held()
    start("waiter", jobs.get)


def released_by_wait():
    """Inside ``with lock`` but in a ``wait`` that has let go of it; who really has it used ``acquire``."""
    lock = threading.Lock()
    condition = threading.Condition(lock)

    def wait():
        with lock:
            inside.release()
            condition.wait()

    def hold():
        lock.acquire()
        inside.release()
        time.sleep(3600)

    start("sleeper", wait)
    held()
    start("holder", hold)
    held()
    start("waiter", want_with, lock)


def waits_inside():
    """Inside ``with lock`` and waiting for something else altogether: a real holder."""
    lock = threading.Lock()

    def hold():
        with lock:
            inside.release()
            never.wait()

    start("holder", hold)
    held()
    start("waiter", want_with, lock)


def no_owner():
    jobs, semaphore = queue.Queue(), threading.Semaphore(0)
    start("event", never.wait)
    start("queue", jobs.get)
    start("semaphore", semaphore.acquire)
    start("timed", never.wait, 3000)


def join():
    def wait_for(other):
        other.join()

    other = threading.Thread(
        target=lambda: (tids.update(other=threading.get_native_id()), never.wait()), daemon=True
    )
    bystander = threading.Thread(target=never.wait, daemon=True)
    bystander.start()
    other.start()
    while "other" not in tids:
        time.sleep(0.001)
    start("waiter", wait_for, other)


def many():
    """200 threads that wait for locks held in blocks, and 3 holders."""
    locks = [threading.Lock() for _ in range(3)]
    for index, lock in enumerate(locks):
        start(f"holder{index}", hold_with, lock)
        held()
    for index in range(197):
        start(f"waiter{index}", want_with, locks[index % 3])


def fork_rlock():
    lock = threading.RLock()
    start("holder", hold_with, lock)
    held()
    if os.fork() == 0:
        handshake.ready(os.getpid(), f"waiter={threading.get_native_id()}")
        want_with(lock)


def held_generator():
    """The block is in a generator that is suspended: on nobody's stack, and nobody's to leave."""
    lock = threading.Lock()

    def steps():
        with lock:
            yield

    def hold(running):
        next(running)
        inside.release()
        time.sleep(3600)

    start("holder", hold, steps())
    held()
    start("waiter", want_with, lock)


def import_lock():
    """One thread is in the middle of an import, another wants the same module, a third has another one's."""
    folder = tempfile.mkdtemp()
    sys.path.insert(0, folder)
    handshake.inside = inside
    for name in ("slow_one", "slow_two"):
        with open(f"{folder}/{name}.py", "w") as module:
            module.write("import handshake, time\nhandshake.inside.release()\ntime.sleep(3600)\n")

    start("holder", __import__, "slow_one")
    held()
    start("bystander", __import__, "slow_two")
    held()
    shutil.rmtree(folder)
    start("waiter", __import__, "slow_one")


def acquire_ring():
    """Each thread takes its lock with ``acquire`` and wants the other's: no holder is recorded anywhere."""
    first, second, gate = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def both(own, other):
        own.acquire()
        gate.wait()
        other.acquire()

    start("t0", both, first, second)
    start("t1", both, second, first)


def fork_lock():
    """A child forked while another thread of its parent was inside ``with lock``; the twin (``free``) outside of it."""
    lock = threading.Lock()
    if sys.argv[2:] != ["free"]:
        start("holder", hold_with, lock)
        held()
    if os.fork() == 0:
        with open("/proc/self/comm", "w") as comm:
            comm.write("copy")
        handshake.ready(os.getpid(), f"waiter={threading.get_native_id()}")
        want_with(lock)
        never.wait()


globals()[sys.argv[1]]()
if sys.argv[1] == "acquire_ring":
    handshake.ready(os.getpid(), *(f"{name}={tid}" for name, tid in tids.items()))
    threading.enumerate()[-1].join()
if not sys.argv[1].startswith("fork"):
    handshake.ready(os.getpid(), *(f"{name}={tid}" for name, tid in tids.items()))
handshake.hold()
