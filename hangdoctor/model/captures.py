"""Looks at one job, and everything about them that belongs to no process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hangdoctor.model.gpus import Gpu, RasAnswer
from hangdoctor.model.processes import Process


@dataclass(frozen=True, slots=True)
class FileLock:
    """A line of /proc/locks that concerns the target, or an existing lock file found by path."""

    kind: str
    """``flock``, ``posix``, ``ofd``, ``existence`` (a file that is the lock)."""
    path: str | None
    holder: int | None
    waiters: tuple[int, ...] = ()
    age_s: float | None = None
    host: str | None = None
    """Whose pids these are; set where captures of several hosts are one."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of a log file behind fd 1 or 2 of a target, or given with ``--log``."""

    path: str
    size_bytes: int | None
    modified_at: float | None
    lines: tuple[str, ...]
    """The last lines, redacted, oldest first."""
    pids: tuple[int, ...] = ()
    host: str | None = None
    """Whose pids and whose path; set where captures of several hosts are one."""
    earlier: tuple[str, ...] = ()
    """Of the lines before those, redacted: the last of each kind (a kind differs in numbers only); oldest first."""


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A line of a server log that the parsers of foreign dumps recognised (watchdog, NCCL, ready …)."""

    kind: str
    text: str
    process: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    line_number: int | None = None


@dataclass(frozen=True, slots=True)
class HostLoad:
    """How busy the host is: a starved target looks stuck."""

    load1: float | None = None
    cpu_pressure_percent: float | None = None
    io_pressure_percent: float | None = None
    memory_pressure_percent: float | None = None
    memory_available_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that could not be seen. A gap is evidence, not a log line."""

    source: str
    """The collector or parser: ``py-spy``, ``proc``, ``nvml`` …"""
    subject: str
    """``pid 4711``, ``host node3``, ``line 17`` …"""
    reason: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at everything."""

    taken_at: float | None
    """Unix time at which the look began; ``None`` in dumps without a clock."""
    processes: tuple[Process, ...]
    duration_s: float | None = None
    gpus: tuple[Gpu, ...] = ()
    file_locks: tuple[FileLock, ...] = ()
    logs: tuple[LogTail, ...] = ()
    load: HostLoad | None = None
    gaps: tuple[Gap, ...] = ()
    paused_s: float | None = None
    """Longest time any one target was stopped by this look; 0.0 for the default tier."""
    messages: tuple[LogMessage, ...] = ()
    ras: tuple[RasAnswer, ...] = ()
    """NCCL's own view of its communicators; only where ``--ras`` asked for it."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine a capture was taken on."""

    name: str
    kernel: str | None = None
    boot_id: str | None = None
    machine: str | None = None
    cpu_count: int | None = None
    ticks_per_s: int | None = None
    page_bytes: int | None = None
    access_tier: str | None = None
    """``none-attach``, ``attach``, ``root``: what the collectors were allowed to do."""
    asked: str | None = None
    """The name by which the user reached it (``--hosts``), which need not be its own."""
    clock_offset_s: float | None = None
    """How far its clock is ahead of that of the machine which asked all hosts."""
    clock_uncertainty_s: float | None = None
    """Half of the round trip in which the offset was measured."""
    start_delay_s: float | None = None
    """Between the agreed moment and its first look, by the clock of the machine which asked."""
    addresses: tuple[str, ...] = ()
    """Of its interfaces, in its network namespace and those of the targets, written as in :class:`Socket` (IPv6 in
    brackets), without loopback. Several hosts may have one: each has its own bridge for containers."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the user asked for, and the root of the tree it led to."""

    asked: str
    """``pid 4711``, ``--name vllm``, a file name …"""
    pid: int | None = None
    start_ticks: int | None = None
    root_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """Who took the capture."""

    version: str
    knowledge: str | None = None
    py_spy: str | None = None


@dataclass(frozen=True, slots=True)
class Capture:
    """Several looks at one job, complete enough to diagnose it anywhere."""

    tool: Tool
    target: Target
    hosts: tuple[Host, ...]
    snapshots: tuple[Snapshot, ...]
    gaps: tuple[Gap, ...] = ()
    origin: str = "live"
    """``live``, or the format a foreign dump was read from."""
