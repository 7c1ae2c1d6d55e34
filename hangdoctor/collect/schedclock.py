"""When a thread last got a CPU, from the scheduler's own time stamp.

``se.exec_start`` in ``/proc/PID/task/TID/sched`` is in the clock of the CPU it last ran on, and these clocks differ:
each leaves out the time that its CPU spent on interrupts and that a hypervisor stole (``rq_clock_task``). Here two
CPUs were 122 ms apart after an hour; weeks of network interrupts make hours. So the clock is read on that very CPU,
by going there for a moment (0.1-0.3 ms).

Only where that CPU has time for us, judged by how idle it has been just before this look. A rank that spins in
``sched_yield`` for its peer kept a visitor of low priority waiting for a minute while the CPU beside it was idle
(Linux 6.18, measured), and whoever is pinned cannot leave.
"""

from __future__ import annotations

import os
import re
import time

from hangdoctor.collect.procfs import read_bytes

_EXEC_START = re.compile(rb"se\.exec_start\s*:\s*(\d+\.\d+)")
"""Without ``^``, with which a search takes four times as long. The thread's name stands before it, but is too short (15
bytes) to look like this."""
_IDLE = re.compile(rb"^cpu(\d+) \d+ \d+ \d+ (\d+) (\d+)", re.M)
_BUDGET_S = 0.05
"""A CPU that others keep busy lets us in late; after this long in all, the rest stays unknown."""
_IDLE_SHARE = 0.1
"""Whoever spins leaves nothing; our own helpers are busy, but not that busy."""
_SHORTEST_S = 0.03
"""Idle time is counted in ticks of 10 ms: less than three of them say nothing."""
_RECENT_S = 2.0
"""A rank that began to spin since then has hardly lowered the share of idle time."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class SchedulerClock:
    """Remembers each CPU's clock once it has been read. ``seconds_since`` costs one visit a CPU.

    Which CPUs may be visited is judged by how idle they were since this was made; or, as this look keeps them busy
    itself, since the last one was made (at first: since this module was imported), if that was a moment ago.
    """

    def __init__(self) -> None:
        self._ahead_ms: dict[int, float | None] = {}
        """Monotonic time minus the CPU's own."""
        self._spent_s = 0.0
        now, idle = time.monotonic(), _idle_ticks()
        is_usable = _SHORTEST_S <= now - _last.at <= _RECENT_S
        self._made_at, self._idle_before = (_last.at, _last.idle) if is_usable else (now, idle)
        _last.at, _last.idle = now, idle
        self._welcoming: frozenset[int] | None = None

    def seconds_since(self, sched: bytes | None, cpu: int, *, at: float | None = None) -> float | None:
        """Seconds since a thread that last ran on ``cpu`` was there, from its ``sched`` file; ``None`` if unknown.

        ``at``: the monotonic time at which the file was read; now, if not given.
        """
        found = _EXEC_START.search(sched) if sched else None
        if found is None:
            return None
        ahead_ms = self._visit(cpu)
        if ahead_ms is None:
            return None
        return max(0.0, (time.monotonic() if at is None else at) - (float(found[1]) + ahead_ms) / 1000)

    def _visit(self, cpu: int) -> float | None:
        if cpu not in self._ahead_ms:
            began = time.monotonic()
            may_go = self._spent_s < _BUDGET_S and cpu in self._idle_cpus()
            self._ahead_ms[cpu] = _read_clock_of(cpu) if may_go else None
            self._spent_s += time.monotonic() - began
        return self._ahead_ms[cpu]

    def _idle_cpus(self) -> frozenset[int]:
        if self._welcoming is None:
            passed_s = time.monotonic() - self._made_at
            if passed_s < _SHORTEST_S:
                time.sleep(_SHORTEST_S - passed_s)
                passed_s = _SHORTEST_S
            enough = _IDLE_SHARE * passed_s * _TICKS_PER_S
            before, now = self._idle_before, _idle_ticks()
            self._welcoming = frozenset(cpu for cpu in now if now[cpu] - before.get(cpu, now[cpu]) >= enough)
        return self._welcoming


def _idle_ticks() -> dict[int, int]:
    """Ticks that each CPU has spent idle, or waiting for a disk, since boot."""
    try:
        data = read_bytes("/proc/stat", limit=1 << 22)
    except OSError:
        return {}
    return {int(cpu): int(idle) + int(waiting) for cpu, idle, waiting in _IDLE.findall(data)}


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


class _Last:
    """The last reading in this process."""

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.idle = _idle_ticks()


_last = _Last()
