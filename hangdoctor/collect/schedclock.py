"""When a thread last got a CPU, from the scheduler's own time stamp.

``se.exec_start`` in ``/proc/PID/task/TID/sched`` is in the clock of the CPU it last ran on, and these clocks differ:
each leaves out the time that its CPU spent on interrupts and that a hypervisor stole (``rq_clock_task``). Here two
CPUs were 122 ms apart after an hour; weeks of network interrupts make hours. So the clock is read on that very CPU,
by going there for a moment (0.1-0.3 ms).
"""

from __future__ import annotations

import os
import re
import time

_EXEC_START = re.compile(rb"^se\.exec_start\s*:\s*(\d+\.\d+)", re.M)
_BUDGET_S = 0.05
"""A CPU that others keep busy lets us in late; after this long in all, the rest stays unknown."""


class SchedulerClock:
    """Remembers each CPU's clock once it has been read. ``seconds_since`` costs one visit a CPU."""

    def __init__(self) -> None:
        self._ahead_ms: dict[int, float | None] = {}
        """Monotonic time minus the CPU's own."""
        self._spent_s = 0.0

    def seconds_since(self, sched: bytes | None, cpu: int) -> float | None:
        """Seconds since a thread that last ran on ``cpu`` was there, from its ``sched`` file; ``None`` if unknown."""
        found = _EXEC_START.search(sched) if sched else None
        if found is None:
            return None
        ahead_ms = self._visit(cpu)
        if ahead_ms is None:
            return None
        return max(0.0, time.monotonic() - (float(found[1]) + ahead_ms) / 1000)

    def _visit(self, cpu: int) -> float | None:
        if cpu not in self._ahead_ms:
            began = time.monotonic()
            self._ahead_ms[cpu] = _read_clock_of(cpu) if self._spent_s < _BUDGET_S else None
            self._spent_s += time.monotonic() - began
        return self._ahead_ms[cpu]


def _read_clock_of(cpu: int) -> float | None:
    """``None`` when we may not run there (another cpuset, or taken offline) or the kernel keeps no such file."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError:
        return None
    try:
        os.sched_yield()  # makes our own exec_start now
        with open("/proc/thread-self/sched", "rb") as file:
            found = _EXEC_START.search(file.read(4096))
        return time.monotonic() * 1000 - float(found[1]) if found else None
    except OSError:
        return None
    finally:
        os.sched_setaffinity(0, allowed)
