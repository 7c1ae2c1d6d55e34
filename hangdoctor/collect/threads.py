"""The kernel's view of every thread of a process. Reads only; a thread cannot notice.

Measured on 6.18: stat, sched, schedstat, wchan and syscall of 480 threads take 33 ms, of which 22 are the kernel's.
``syscall`` and ``stack`` can wait for an ``execve`` that is stuck on a dead file server, so callers stay behind a
deadline. First all threads are read, then all are understood: 5 % less than in turns, which push each other out of
the CPU's caches.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from sys import intern
from typing import NamedTuple

from hangdoctor.collect.memory import Memory
from hangdoctor.collect.procfs import list_tids, parse_status, parse_thread_stat, read_once, text
from hangdoctor.collect.schedclock import SchedulerClock
from hangdoctor.collect.syscalls import list_futexes
from hangdoctor.model import Syscall, Thread
from hangdoctor.model.records import changed

Decode = Callable[[str, "str | None"], "Syscall | None"]
"""Decodes ``/proc/PID/task/TID/syscall``, less its last two words, with the thread's wchan; once for all equals."""

# Without ``^``, with which a search takes four times as long.
_SCHED_SWITCHES = re.compile(rb"nr_voluntary_switches\s*:\s*(\d+)\nnr_involuntary_switches\s*:\s*(\d+)")
_STATUS_SWITCHES = re.compile(rb"^voluntary_ctxt_switches:\t(\d+)\nnonvoluntary_ctxt_switches:\t(\d+)", re.M)
_KERNEL_FRAME = re.compile(rb"^\[<[^>]*>\] ([^+\n]+)", re.M)


_UNKNOWN = Thread(None)


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
    pid: int,
    decode: Decode,
    *,
    is_namespaced: bool,
    clock: SchedulerClock | None = None,
    pages: Memory | None = None,
) -> ThreadTable:
    """All threads of ``pid``; those that end meanwhile are left out. ``is_namespaced`` asks for inner tids.

    ``pages``: the memory that ``decode`` reads through; what futex waits point to is then read at once.
    """
    tids = list_tids(pid)
    try:
        folder = os.open(f"/proc/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ThreadTable(())
    reader = _Reader(folder, is_namespaced)
    try:
        files = [found for tid in tids if (found := reader.read(tid)) is not None]
    finally:
        os.close(folder)
    calls = [_parse_call(found.syscall) for found in files]
    if pages is not None:
        with suppress(OSError):  # decode meets it again, and knows what to do then
            pages.prefetch(list_futexes(set(calls)))
    # Only now: what a call points to is no older than the call then, also where a page is read once for all threads.
    parser = _Parser(decode, clock or SchedulerClock())
    parsed = [parser.parse(found, call) for found, call in zip(files, calls, strict=True)]
    threads = tuple([thread for thread in parsed if thread is not None])
    inner_tids = _read_inner_tids(files) if is_namespaced else {}
    refused = reader.refused
    return ThreadTable(threads, inner_tids, "syscall" not in refused, "stack" not in refused)


class _Files(NamedTuple):
    """What the kernel says about one thread."""

    tid: int
    stat: bytes
    sched: bytes | None
    read_at: float
    """Monotonic time of ``sched``."""
    status: bytes | None
    wchan: bytes | None
    schedstat: bytes | None
    syscall: bytes | None
    stack: bytes | None


class _Reader:
    """Reads one process' threads; a file that is refused once is not asked for again."""

    def __init__(self, folder: int, is_namespaced: bool) -> None:
        self._folder = folder
        self._is_namespaced = is_namespaced
        self._has_futex_stack = False
        self.refused: set[str] = set()

    def read(self, tid: int) -> _Files | None:
        stat = self._file(tid, "stat")
        if stat is None:
            return None
        sched = self._file(tid, "sched")
        read_at = time.monotonic()
        needs_status = self._is_namespaced or not sched or b"nr_voluntary_switches" not in sched
        status = self._file(tid, "status") if needs_status else None
        wchan = self._file(tid, "wchan")
        schedstat, syscall = self._file(tid, "schedstat"), self._file(tid, "syscall")
        return _Files(tid, stat, sched, read_at, status, wchan, schedstat, syscall, self._stack(tid, wchan))

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

    def _stack(self, tid: int, wchan: bytes | None) -> bytes | None:
        """Of futex waits only the first: they are all the same, and most threads rest in one (1/6 of the time)."""
        if wchan is not None and wchan.startswith(b"futex_"):
            if self._has_futex_stack:
                return None
            stack = self._file(tid, "stack")
            self._has_futex_stack = bool(stack)
            return stack
        return self._file(tid, "stack")


def _read_inner_tids(threads: Iterable[_Files]) -> dict[int, int]:
    return {parse_status(files.status).ns_pids[-1]: files.tid for files in threads if files.status}


class _Parser:
    """Makes threads of what was read."""

    def __init__(self, decode: Decode, clock: SchedulerClock) -> None:
        # Threads of a pool wait in equal calls: one 8 us, and one object in the pipe, for all of them.
        self._decode = lru_cache(maxsize=None)(decode)
        self._clock = clock

    def parse(self, files: _Files, call: str) -> Thread | None:
        try:
            stat = parse_thread_stat(files.stat)
        except ValueError:
            return None
        wchan = _parse_wchan(files.wchan, stat.state)
        run_ns, runnable_ns = _parse_schedstat(files.schedstat)
        voluntary, involuntary = _parse_switches(files)
        return changed(
            _UNKNOWN,
            tid=files.tid,
            comm=stat.comm,
            state=stat.state,
            wchan=wchan,
            syscall=self._decode(call, wchan) if call else None,
            kernel_stack=_parse_kernel_stack(files.stack),
            user_ticks=stat.user_ticks,
            system_ticks=stat.system_ticks,
            run_ns=run_ns,
            runnable_ns=runnable_ns,
            voluntary_switches=voluntary,
            involuntary_switches=involuntary,
            last_ran_s=self._clock.seconds_since(files.sched, stat.cpu, at=files.read_at),
            minor_faults=stat.minor_faults,
            major_faults=stat.major_faults,
        )


def _parse_call(data: bytes | None) -> str:
    """Without the stack pointer and the place in the code, in which equal calls differ."""
    return text(data).rsplit(None, 2)[0] if data and not data.isspace() else ""


def _parse_wchan(data: bytes | None, state: str) -> str | None:
    """``0`` means on a CPU or not permitted; the kernel does not tell which, so neither is claimed."""
    return intern(text(data)) if data and data != b"0" and state != "R" else None


def _parse_schedstat(data: bytes | None) -> tuple[int | None, int | None]:
    """Nanoseconds on a CPU, and ready but waiting for one."""
    fields = (data or b"").split()
    # All zeros is a kernel without CONFIG_SCHED_INFO, not a thread that never ran: we see it exist.
    if len(fields) < 2 or not int(fields[0]):
        return None, None
    return int(fields[0]), int(fields[1])


def _parse_switches(files: _Files) -> tuple[int | None, int | None]:
    """From ``status`` where it was read; it and ``sched`` say the same."""
    found = _STATUS_SWITCHES.search(files.status) if files.status else None
    if found is None and files.sched:
        found = _SCHED_SWITCHES.search(files.sched)
    return (int(found[1]), int(found[2])) if found else (None, None)


def _parse_kernel_stack(data: bytes | None) -> tuple[str, ...]:
    # Interned: 500 threads at rest share a dozen names, which makes their way through the pipe cheap.
    return tuple(intern(text(name)) for name in _KERNEL_FRAME.findall(data)) if data else ()
