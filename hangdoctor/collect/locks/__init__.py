"""Which lock each thread waits for and who holds it, read from the target's memory without stopping it.

What cannot be established is left out, never guessed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from hangdoctor.collect.cpython.view import take_view
from hangdoctor.collect.locks.futex import FutexWait, list_waits, still_waits
from hangdoctor.collect.locks.pthread import find_native_waits
from hangdoctor.collect.locks.python import find_python_waits
from hangdoctor.collect.locks.shared import find_shared_waits
from hangdoctor.collect.memory import read_regions
from hangdoctor.collect.namespaces import is_thread, map_threads
from hangdoctor.model import LockWait, Thread

__all__ = ["find_lock_waits"]

_AGAIN_S = 0.0005


def find_lock_waits(
    pid: int, threads: Sequence[Thread], *, peers: Collection[int] = ()
) -> dict[int, LockWait]:
    """Host tid to the lock it waits for, for the ``threads`` whose system call is a futex wait that is recognised.

    ``owner_how`` is ``recorded`` (the lock stores its owner) or ``value-stack`` (exactly one thread is inside a
    ``with`` block over it, the same in two looks). An owner is a live thread; where none can be named it is
    ``None``, and ``is_orphaned`` says that the recorded one does not exist in this process.

    ``peers`` are processes that may hold a shared (multiprocessing) lock. Never raises; a process whose memory may
    not be read has no entries. Reads ``maps``: call it behind a deadline.
    """
    waits = list_waits(threads)
    if not waits:
        return {}
    try:
        found = _find(pid, waits, peers)
    except OSError:
        return {}
    return {wait.tid: _confirm(pid, found[wait.tid], wait) for wait in waits if wait.tid in found}


def _find(pid: int, waits: Sequence[FutexWait], peers: Collection[int]) -> dict[int, LockWait]:
    found = find_native_waits(pid, waits, map_threads(pid))
    try:
        view = take_view(pid)
        if view is not None:
            regions = read_regions(pid)
            found.update(find_python_waits(view, regions, waits, found))
            found.update(find_shared_waits(view, regions, waits, peers))
    except OSError:
        # An interpreter that is just ending, or more memory to read than is allowed: the C library's locks stand.
        return found
    return found


def _confirm(pid: int, lock: LockWait, wait: FutexWait) -> LockWait:
    """An owner belongs to the wait only if the thread is still in it after everything was read, and the owner lives.

    (A new thread gets the ident of one that has just ended, under which locks record their owners.)
    """
    has_claim = lock.owner_tid is not None or lock.owner_pid is not None or lock.is_orphaned
    if not has_claim:
        return lock
    is_living = lock.owner_tid is None or is_thread(lock.owner_pid or pid, lock.owner_tid)
    if is_living and (still_waits(pid, wait) or (wait.is_timed and _waits_again(pid, wait))):
        return lock
    return replace(lock, owner_tid=None, owner_pid=None, owner_how=None, is_orphaned=False)


def _waits_again(pid: int, wait: FutexWait) -> bool:
    """The wait for the GIL ends every 5 ms and begins again at once."""
    time.sleep(_AGAIN_S)
    return still_waits(pid, wait)
