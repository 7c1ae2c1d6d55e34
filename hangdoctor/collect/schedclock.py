"""When a thread last got a CPU, from the scheduler's own time stamp.

``se.exec_start`` in ``/proc/PID/task/TID/sched`` is in the clock of the CPU it last ran on, and these clocks differ:
each leaves out the time that its CPU spent on interrupts and that a hypervisor stole (``rq_clock_task``). Here two
CPUs were 122 ms apart after an hour; weeks of network interrupts make hours. So the clock is read on that very CPU:
by one of our processes that happens to be there, and tells the others (:class:`ClockBoard`); else by going there for a
moment. That costs 0.2 ms where nobody is, and 3 ms where another of us reads, who waits as long.

We go only where that CPU has time for us, judged by how idle it has been just before this look. A rank that spins in
``sched_yield`` for its peer kept a visitor of low priority waiting for a minute while the CPU beside it was idle
(Linux 6.18, measured), and whoever is pinned cannot leave.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
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
_TRIES = 3
_AT_ONCE_S = 0.001
"""Reading one's own clock takes 0.03 ms; whoever took longer was not on the CPU all the time."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


_libc = ctypes.CDLL(None)


class ClockBoard:
    """The clocks of CPUs as any of us has read them last, in memory that is shared with whoever is forked from here."""

    _NUMBER = struct.Struct("d")
    """Native and aligned, so that it is copied in one go."""
    _MOST_CPUS = 8192
    """The kernel's limit. Pages that nobody writes to do not exist."""
    _VALID_S = 0.5
    """A hypervisor that steals a tenth of the time puts them apart by 50 ms until then."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 2 * self._MOST_CPUS * self._NUMBER.size)

    def post(self, cpu: int, ahead_ms: float) -> None:
        """The monotonic time minus the CPU's own, as it is now, for everybody to use for a moment."""
        if 0 <= cpu < self._MOST_CPUS:
            place = 2 * cpu * self._NUMBER.size
            # The time last, and read first: who sees it sees the difference that belongs to it, or a newer one.
            self._NUMBER.pack_into(self._memory, place, ahead_ms)
            self._NUMBER.pack_into(self._memory, place + self._NUMBER.size, time.monotonic())

    def read(self, cpu: int) -> float | None:
        """``None`` if nobody has read it just now."""
        if not 0 <= cpu < self._MOST_CPUS:
            return None
        place = 2 * cpu * self._NUMBER.size
        (read_at,) = self._NUMBER.unpack_from(self._memory, place + self._NUMBER.size)
        (ahead_ms,) = self._NUMBER.unpack_from(self._memory, place)
        return float(ahead_ms) if 0 <= time.monotonic() - read_at <= self._VALID_S else None


class SchedulerClock:
    """Remembers each CPU's clock once it has been read.

    Which CPUs may be visited is judged by how idle they were since this was made; or, as this look keeps them busy
    itself, since the last one was made (at first: since this module was imported), if that was a moment ago.
    """

    def __init__(self, board: ClockBoard | None = None) -> None:
        """``board``: what others have read, and are told."""
        self._board = board or ClockBoard()
        self._ahead_ms: dict[int, float] = {}
        """Monotonic time minus the CPU's own."""
        self._tried: set[int] = set()
        """CPUs that were visited, or could not be."""
        self._spent_s = 0.0
        now, idle = time.monotonic(), _idle_ticks()
        is_usable = _SHORTEST_S <= now - _last.at <= _RECENT_S
        self._made_at, self._idle_before = (_last.at, _last.idle) if is_usable else (now, idle)
        _last.at, _last.idle = now, idle
        self._welcoming: frozenset[int] | None = None
        self._read_here()

    def seconds_since(self, sched: bytes | None, cpu: int, *, at: float | None = None) -> float | None:
        """Seconds since a thread that last ran on ``cpu`` was there, from its ``sched`` file; ``None`` if unknown.

        ``at``: the monotonic time at which the file was read; now, if not given.
        """
        found = _EXEC_START.search(sched) if sched else None
        if found is None:
            return None
        ahead_ms = self._find(cpu)
        if ahead_ms is None:
            return None
        return max(0.0, (time.monotonic() if at is None else at) - (float(found[1]) + ahead_ms) / 1000)

    def _find(self, cpu: int) -> float | None:
        if cpu not in self._ahead_ms:
            ahead_ms = self._board.read(cpu)
            if ahead_ms is None and cpu not in self._tried:
                if self._read_here() != cpu:
                    self._visit(cpu)
                ahead_ms = self._board.read(cpu)
            if ahead_ms is None:
                return None
            self._ahead_ms[cpu] = ahead_ms
        return self._ahead_ms[cpu]

    def _read_here(self) -> int | None:
        """Posts the clock of the CPU that we are on, and returns which that is."""
        cpu = _current_cpu()
        ahead_ms = _read_own_clock()
        if ahead_ms is None or cpu is None or cpu != _current_cpu():
            return None
        self._board.post(cpu, ahead_ms)
        return cpu

    def _visit(self, cpu: int) -> None:
        self._tried.add(cpu)
        if self._spent_s >= _BUDGET_S or cpu not in self._idle_cpus():
            return
        began = time.monotonic()
        ahead_ms = _read_clock_of(cpu)
        if ahead_ms is not None:
            self._board.post(cpu, ahead_ms)
        self._spent_s += time.monotonic() - began

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
        return _read_own_clock()
    finally:
        os.sched_setaffinity(0, allowed)


def _read_own_clock() -> float | None:
    """Monotonic time minus that of the CPU that we are on, in milliseconds.

    ``None`` when it cannot be read, or we lose the CPU at every try.
    """
    for _ in range(_TRIES):
        try:
            began = time.monotonic()
            time.thread_time()  # makes our exec_start now: task_sched_runtime calls update_curr (kernel/sched/core.c)
            with open("/proc/thread-self/sched", "rb") as file:
                found = _EXEC_START.search(file.read(4096))
            now = time.monotonic()
        except OSError:
            return None
        if found is None:
            return None
        if now - began <= _AT_ONCE_S:
            return now * 1000 - float(found[1])
    return None


def _current_cpu() -> int | None:
    try:
        return int(_libc.sched_getcpu())
    except AttributeError:  # a C library without it
        return None


class _Last:
    """The last reading in this process."""

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.idle = _idle_ticks()


_last = _Last()
