"""The kernel's view of every thread of a process. Reads only; a thread cannot notice.

Measured on 6.18: stat, wchan, syscall, schedstat, sched and stack of 500 threads take 40 ms. ``syscall`` and
``stack`` can wait for an ``execve`` that is stuck on a dead file server, so callers stay behind a deadline.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from sys import intern

from hangdoctor.collect.procfs import list_tids, parse_stat, parse_status, read_once, text
from hangdoctor.collect.schedclock import SchedulerClock
from hangdoctor.model import Syscall, Thread

Decode = Callable[[str, "str | None"], "Syscall | None"]
"""Decodes one line of ``/proc/PID/task/TID/syscall``, with the thread's wchan."""

_SCHED_SWITCHES = re.compile(
    rb"^nr_voluntary_switches\s*:\s*(\d+)\nnr_involuntary_switches\s*:\s*(\d+)", re.M
)
_STATUS_SWITCHES = re.compile(rb"^voluntary_ctxt_switches:\t(\d+)\nnonvoluntary_ctxt_switches:\t(\d+)", re.M)
_KERNEL_FRAME = re.compile(rb"^\[<[^>]*>\] ([^+\n]+)", re.M)


@dataclass(frozen=True, slots=True)
class ThreadTable:
    """The threads of one process, lowest tid first."""

    threads: tuple[Thread, ...]
    inner_tids: Mapping[int, int] = field(default_factory=dict)
    """Tid inside the process' own PID namespace → ours; empty when they are the same."""
    has_syscalls: bool = True
    """``False``: the kernel refuses ``syscall``, so memory may not be read either."""
    has_kernel_stacks: bool = True
    """``False``: they are for root."""


def read_threads(
    pid: int, decode: Decode, *, is_namespaced: bool, clock: SchedulerClock | None = None
) -> ThreadTable:
    """All threads of ``pid``; those that end meanwhile are left out. ``is_namespaced`` asks for inner tids."""
    tids = list_tids(pid)
    try:
        folder = os.open(f"/proc/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ThreadTable(())
    reader = _Reader(folder, decode, clock or SchedulerClock(), is_namespaced)
    try:
        threads = [thread for tid in tids if (thread := reader.read(tid)) is not None]
    finally:
        os.close(folder)
    refused = reader.refused
    return ThreadTable(tuple(threads), reader.inner_tids, "syscall" not in refused, "stack" not in refused)


class _Reader:
    """Reads one process' threads; a file that is refused once is not asked for again."""

    def __init__(self, folder: int, decode: Decode, clock: SchedulerClock, is_namespaced: bool) -> None:
        self._folder = folder
        self._decode = decode
        self._clock = clock
        self._is_namespaced = is_namespaced
        self._has_futex_stack = False
        self.refused: set[str] = set()
        self.inner_tids: dict[int, int] = {}

    def read(self, tid: int) -> Thread | None:
        data = self._file(tid, "stat")
        if data is None:
            return None
        try:
            stat = parse_stat(data)
        except ValueError:
            return None
        sched = self._file(tid, "sched")
        voluntary, involuntary = self._switches(tid, sched)
        wchan = self._wchan(tid, stat.state)
        run_ns, runnable_ns = self._schedstat(tid)
        return Thread(
            tid=tid,
            comm=stat.comm,
            state=stat.state,
            wchan=wchan,
            syscall=self._syscall(tid, wchan),
            kernel_stack=self._kernel_stack(tid, wchan),
            user_ticks=stat.user_ticks,
            system_ticks=stat.system_ticks,
            run_ns=run_ns,
            runnable_ns=runnable_ns,
            voluntary_switches=voluntary,
            involuntary_switches=involuntary,
            last_ran_s=self._clock.seconds_since(sched, stat.cpu),
            minor_faults=stat.minor_faults,
            major_faults=stat.major_faults,
        )

    def _file(self, tid: int, name: str) -> bytes | None:
        if name in self.refused:
            return None
        try:
            return read_once(f"{tid}/{name}", self._folder)
        except PermissionError:
            self.refused.add(name)
        except OSError:
            pass  # the thread has ended, or this kernel has no such file
        return None

    def _switches(self, tid: int, sched: bytes | None) -> tuple[int | None, int | None]:
        """From ``sched``, which is read anyway; from ``status`` where that is missing or inner tids are wanted."""
        found = _SCHED_SWITCHES.search(sched) if sched else None
        if found is None or self._is_namespaced:
            status = self._file(tid, "status")
            if status is not None:
                found = _STATUS_SWITCHES.search(status) or found
                if self._is_namespaced:
                    self.inner_tids[parse_status(status).ns_pids[-1]] = tid
        return (int(found[1]), int(found[2])) if found else (None, None)

    def _schedstat(self, tid: int) -> tuple[int | None, int | None]:
        """Nanoseconds on a CPU, and ready but waiting for one."""
        fields = (self._file(tid, "schedstat") or b"").split()
        # All zeros is a kernel without CONFIG_SCHED_INFO, not a thread that never ran: we see it exist.
        if len(fields) < 2 or not int(fields[0]):
            return None, None
        return int(fields[0]), int(fields[1])

    def _wchan(self, tid: int, state: str) -> str | None:
        """``0`` means on a CPU or not permitted; the kernel does not tell which, so neither is claimed."""
        if state == "R":
            return None
        data = self._file(tid, "wchan")
        return intern(text(data)) if data and data != b"0" else None

    def _syscall(self, tid: int, wchan: str | None) -> Syscall | None:
        data = self._file(tid, "syscall")
        return self._decode(text(data).strip(), wchan) if data else None

    def _kernel_stack(self, tid: int, wchan: str | None) -> tuple[str, ...]:
        """Of futex waits only the first: they are all the same, and most threads rest in one (1/6 of the time)."""
        if wchan is not None and wchan.startswith("futex_"):
            if self._has_futex_stack:
                return ()
            self._has_futex_stack = True
        data = self._file(tid, "stack")
        # Interned: 500 threads at rest share a dozen names, which makes their way through the pipe cheap.
        return tuple(intern(text(name)) for name in _KERNEL_FRAME.findall(data)) if data else ()
