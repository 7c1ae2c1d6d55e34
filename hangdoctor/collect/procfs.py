"""Reading and parsing /proc, one file at a time. Knows the kernel's formats and nothing else.

``stat`` and ``status`` never take the target's memory lock and may be read anywhere; everything that may
block (``cmdline``, ``maps``, ``fd`` …) says so, and callers read it through
:mod:`hangdoctor.collect.deadline`. No psutil here: ``os.open`` + ``os.read`` of four files a thread
measured 11 ms for 480 threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SMALL = 1 << 16
MAX_COMMAND_BYTES = 1 << 20
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD in field 9 of stat (include/linux/sched.h)."""


@dataclass(frozen=True, slots=True)
class Stat:
    """``/proc/PID/stat`` or ``/proc/PID/task/TID/stat``; times in ticks, see proc(5) for the fields."""

    pid: int
    comm: str
    state: str
    ppid: int
    group: int
    session: int
    minor_faults: int
    major_faults: int
    user_ticks: int
    system_ticks: int
    thread_count: int
    start_ticks: int
    rss_bytes: int
    is_kernel_thread: bool
    cpu: int
    """The one it last ran on."""
    wait_status: int | None
    """As from wait(2); ``None`` while it lives or when the kernel hides it."""


class ThreadStat(NamedTuple):
    """What a thread's own ``stat`` adds to that of its process. No dataclass: it is made for every thread of a look."""

    comm: str
    state: str
    minor_faults: int
    major_faults: int
    user_ticks: int
    system_ticks: int
    cpu: int


@dataclass(frozen=True, slots=True)
class Status:
    """The lines of ``status`` that matter. ``ns_pids``: one number a PID namespace, outermost first."""

    tgid: int
    uid: int
    tracer_pid: int
    ns_pids: tuple[int, ...]
    voluntary_switches: int | None
    involuntary_switches: int | None


def text(data: bytes) -> str:
    """Kernel bytes as text that can be printed and stored: what is not UTF-8 stays visible as ``\\xff``."""
    return data.decode("utf-8", "backslashreplace")


def read_bytes(path: str, *, limit: int = SMALL) -> bytes:
    """All of a /proc file, at most ``limit`` bytes. Raises ``OSError``."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        # Files of many records (maps, locks, net/tcp) come in chunks of any size; only an empty read is
        # the end.
        while len(data) < limit:
            chunk = os.read(fd, limit - len(data))
            if not chunk:
                break
            data += chunk
        return data
    finally:
        os.close(fd)


def read_once(name: str, dir_fd: int) -> bytes:
    """A file of one record (stat, status, wchan …) below an open directory, in a single read. Raises
    ``OSError``.
    """
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        return os.read(fd, SMALL)
    finally:
        os.close(fd)


def parse_stat(data: bytes) -> Stat:
    """Parses a stat line; comm may hold blanks and brackets, so it ends at the *last* one.

    Raises ``ValueError`` for anything else.
    """
    opening, closing = data.index(b"("), data.rindex(b")")
    fields = data[closing + 2 :].split()
    if len(fields) < 22:
        raise ValueError(f"{len(fields) + 2} fields")
    return Stat(
        pid=int(data[:opening]),
        comm=text(data[opening + 1 : closing]),
        state=text(fields[0]),
        ppid=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        minor_faults=int(fields[7]),
        major_faults=int(fields[9]),
        user_ticks=int(fields[11]),
        system_ticks=int(fields[12]),
        thread_count=int(fields[17]),
        start_ticks=int(fields[19]),
        rss_bytes=max(0, int(fields[21])) * PAGE_BYTES,
        is_kernel_thread=bool(int(fields[6]) & _KERNEL_THREAD),
        cpu=int(fields[36]) if len(fields) > 36 else 0,
        wait_status=int(fields[49]) if fields[0] in (b"Z", b"X") and len(fields) > 49 else None,
    )


def parse_thread_stat(data: bytes) -> ThreadStat:
    """As :func:`parse_stat`, for less than half of the time. Raises ``ValueError``."""
    opening, closing = data.index(b"("), data.rindex(b")")
    fields = data[closing + 2 :].split(None, 37)
    if len(fields) < 22:
        raise ValueError(f"{len(fields) + 2} fields")
    return ThreadStat(
        text(data[opening + 1 : closing]),
        text(fields[0]),
        int(fields[7]),
        int(fields[9]),
        int(fields[11]),
        int(fields[12]),
        int(fields[36]) if len(fields) > 36 else 0,
    )


def parse_status(data: bytes) -> Status:
    """Parses ``status``; lines that an older or sandboxed kernel lacks come back as ``None`` or empty."""
    lines = dict(line.partition(b":")[::2] for line in data.splitlines())
    return Status(
        tgid=int(lines.get(b"Tgid", b"0")),
        uid=int(lines.get(b"Uid", b"0").split()[0]),
        tracer_pid=int(lines.get(b"TracerPid", b"0")),
        ns_pids=tuple(int(number) for number in lines.get(b"NSpid", b"").split()),
        voluntary_switches=_optional(lines.get(b"voluntary_ctxt_switches")),
        involuntary_switches=_optional(lines.get(b"nonvoluntary_ctxt_switches")),
    )


def _optional(field: bytes | None) -> int | None:
    return None if field is None else int(field)


def read_stat(pid: int) -> Stat | None:
    """``None`` when there is no such process (any more). Raises ``PermissionError`` under ``hidepid=1``."""
    try:
        return parse_stat(read_bytes(f"/proc/{pid}/stat"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def read_status(pid: int) -> Status | None:
    """``None`` when there is no such process (any more), or it may not be read."""
    try:
        return parse_status(read_bytes(f"/proc/{pid}/status"))
    except OSError:
        return None


def list_pids() -> list[int]:
    """All processes that /proc shows, in its order."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def living_task(stat: Stat) -> int:
    """The number under which the memory and files of a process can be read.

    A leader that ended before its other threads (pthread_exit in main) has neither any more; /proc answers for the
    whole process under any thread's number.
    """
    if stat.state not in "ZX":
        return stat.pid
    return next((tid for tid in list_tids(stat.pid) if tid != stat.pid), stat.pid)


def list_tids(pid: int) -> list[int]:
    """The threads of a process, lowest first; empty when it is gone."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def read_table() -> dict[int, Stat]:
    """Every process that may be seen, by pid. 10-15 us a process; never blocks."""
    table = {}
    for pid in list_pids():
        try:
            stat = read_stat(pid)
        except (OSError, ValueError):
            continue
        if stat is not None:
            table[pid] = stat
    return table


def children_of(table: Mapping[int, Stat]) -> dict[int, list[int]]:
    """Pid to its children, oldest first."""
    children: dict[int, list[int]] = {}
    for stat in sorted(table.values(), key=lambda stat: (stat.start_ticks, stat.pid)):
        children.setdefault(stat.ppid, []).append(stat.pid)
    return children


def descend(table: Mapping[int, Stat], roots: Iterable[int]) -> list[int]:
    """The roots and all their descendants, parents before children, each once."""
    children, queue = children_of(table), list(roots)
    found: dict[int, None] = {}
    for pid in queue:
        if pid in table and pid not in found:
            found[pid] = None
            queue.extend(children.get(pid, ()))
    return list(found)


def read_command(pid: int) -> tuple[str, ...]:
    """argv, or the title that setproctitle wrote over it (one element, padding removed).

    May block while the target's mmap lock is held for writing. Raises ``OSError``.
    """
    data = read_bytes(f"/proc/{pid}/cmdline", limit=MAX_COMMAND_BYTES)
    # A title leaves NULs or blanks up to the end of the old argv; a real argv may hold empty arguments
    # inside.
    parts = data.rstrip(b"\0 ").split(b"\0") if data.strip(b"\0 ") else []
    return tuple(text(part) for part in parts)


@lru_cache(maxsize=1)
def boot_time() -> float | None:
    """Unix time of boot, from which ``start_ticks`` count."""
    try:
        for line in read_bytes("/proc/stat", limit=1 << 22).splitlines():
            if line.startswith(b"btime "):
                return float(line.split()[1])
    except OSError:
        pass
    return None


def started_at(start_ticks: int) -> float | None:
    """Unix time at which a process started, to about a second (btime is whole seconds)."""
    boot = boot_time()
    return None if boot is None else boot + start_ticks / TICKS_PER_S
