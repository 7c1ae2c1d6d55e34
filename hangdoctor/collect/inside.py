"""What the target's own memory adds: who owns which lock. Read without stopping it, each behind a deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hangdoctor.collect.deadline import Trouble, each, patience
from hangdoctor.collect.locks import find_lock_waits
from hangdoctor.model import Gap, LockWait, Process

LOCKS_S = 1.0
ALL_LOCKS_S = 5.0


def add_locks(processes: Sequence[Process]) -> tuple[tuple[Process, ...], tuple[Gap, ...]]:
    """The processes with the lock on every thread that waits for one, and whose memory did not answer."""
    pids = tuple(process.pid for process in processes)

    def find(process: Process) -> dict[int, LockWait]:
        return find_lock_waits(process.pid, process.threads, peers=pids)

    asked = [process for process in processes if _waits_for_locks(process)]
    locks: dict[int, dict[int, LockWait]] = {}
    gaps = []
    answers = each(find, asked, item_s=LOCKS_S * patience(), total_s=ALL_LOCKS_S * patience())
    for process, found in answers:
        if isinstance(found, Trouble):
            reason = f"looking for the owners of its locks {found.reason}"
            gaps.append(Gap("locks", f"pid {process.pid}", reason, "gdb -p PID, then `thread apply all bt`"))
        else:
            locks[process.pid] = found
    return tuple(_with_locks(process, locks.get(process.pid, {})) for process in processes), tuple(gaps)


def _waits_for_locks(process: Process) -> bool:
    return any(
        thread.syscall is not None and thread.syscall.name.startswith("futex") for thread in process.threads
    )


def _with_locks(process: Process, locks: dict[int, LockWait]) -> Process:
    if not locks:
        return process
    threads = tuple(
        replace(thread, lock=locks[thread.tid]) if thread.tid in locks else thread
        for thread in process.threads
    )
    return replace(process, threads=threads)
