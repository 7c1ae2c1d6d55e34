"""A process in which nobody is left who could release a lock: proven without knowing a single holder.

A private futex can be woken only by a thread of its own process. When every thread waits on one without a time-out,
and each for a lock or for another thread to end, no thread will ever run again. (A signal handler that releases a lock
would refute that; so would a sibling that shares the memory and not the thread group, which servers do not have.)
"""

from __future__ import annotations

from hangdoctor.case import Member, Movement
from hangdoctor.model import Thread

_LOCKS = frozenset({"mutex", "rwlock", "threading.Lock", "threading.RLock", "import lock"})
_JOIN = "thread.join"


def why_nobody_is_left(member: Member) -> str | None:
    """A clause that says why its locks stay locked; ``None`` when somebody might release one."""
    threads = [track.last.thread for track in member.threads]
    if not threads or len(threads) != member.last.thread_count:
        return None
    if not all(track.movement is Movement.STILL for track in member.threads):
        return None
    if not all(_can_only_be_woken_from_inside(thread) for thread in threads):
        return None
    kinds = {thread.lock.kind for thread in threads if thread.lock is not None}
    if not kinds & _LOCKS:
        return None
    if len(threads) == 1:
        return "it is the only thread of its process, and no other can release that lock: a fork copied it while held"
    return (
        f"all {len(threads)} threads of its process wait for locks without a time-out: nobody can release one"
    )


def _can_only_be_woken_from_inside(thread: Thread) -> bool:
    call, lock = thread.syscall, thread.lock
    if call is None or lock is None or not call.name.startswith("futex") or call.is_timed is not False:
        return False
    return lock.kind == _JOIN or (lock.kind in _LOCKS and not lock.is_shared)
