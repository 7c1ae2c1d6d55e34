"""Processes that got no CPU between two looks: their stacks are those of the look before.

SGLang keeps 32 idle compile workers a rank, eight ranks have 256, and each has the maps of all of torch: they are not
read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hangdoctor.collect.procfs import list_tids, read_bytes
from hangdoctor.model import Process, Thread

MOST_THREADS = 8
"""Ranks have hundreds, some of which always run: to ask each would cost more than it saves."""

_Clocks = tuple[tuple[int, bytes], ...]


class Resting:
    """Compares what every thread has run so far, from the beginning of one look to the beginning of the next.

    Between the two the stacks were read. A process that did not run meanwhile still has them, to the line.
    """

    def __init__(self) -> None:
        self._clocks: dict[tuple[int, int | None], _Clocks] = {}

    def begin_look(self, processes: Iterable[Process]) -> frozenset[int]:
        """Pids of those that did not run since the last look began; call it before their stacks are read."""
        before, self._clocks = self._clocks, {}
        resting = set()
        for process in processes:
            if (process.thread_count or MOST_THREADS + 1) > MOST_THREADS:
                continue
            clocks = _read_clocks(process.pid)
            if clocks:
                key = (process.pid, process.start_ticks)
                self._clocks[key] = clocks
                if before.get(key) == clocks:
                    resting.add(process.pid)
        return frozenset(resting)


def _read_clocks(pid: int) -> _Clocks:
    """``schedstat`` of each thread (time on a CPU, time in a queue, turns); empty when the kernel keeps none."""
    try:
        clocks = tuple((tid, read_bytes(f"/proc/{pid}/task/{tid}/schedstat")) for tid in list_tids(pid))
    except OSError:  # one has just ended, so this is no process at rest
        return ()
    return clocks if all(not clock.startswith(b"0 0 0") for _, clock in clocks) else ()


def has_good_stacks(process: Process) -> bool:
    """Whether there is something to be taken over, and none of it torn."""
    stacks = [thread.stack for thread in process.threads if thread.stack is not None]
    return bool(stacks) and not any(stack.is_torn for stack in stacks)


def take_over(now: Process, before: Process) -> Process:
    """``now`` with the stacks of ``before``, thread by thread."""
    known = {thread.tid: thread for thread in before.threads if thread.tid is not None}
    nameless = tuple(thread for thread in before.threads if thread.tid is None)
    threads = (_with_stack_of(thread, known.get(thread.tid or -1)) for thread in now.threads)
    return replace(now, threads=(*threads, *nameless))


def _with_stack_of(now: Thread, before: Thread | None) -> Thread:
    if before is None or now.stack is not None:
        return now
    return replace(now, name=before.name, stack=before.stack, owns_gil=before.owns_gil)
