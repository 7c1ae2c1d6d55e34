"""A process at one moment: its threads, counters, files and connections, and its rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hangdoctor.model.stacks import Frame, Thread


@dataclass(frozen=True, slots=True)
class IoCounters:
    """/proc/PID/io, in bytes and calls since the start of the process."""

    read_chars: int
    write_chars: int
    read_bytes: int
    write_bytes: int
    read_calls: int | None = None
    write_calls: int | None = None


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file descriptor that matters: a regular file, a pipe, an eventfd, a device. (Sockets are apart.)"""

    fd: int
    target: str
    kind: str
    """``file``, ``pipe``, ``eventfd``, ``device``, ``pidfd``, ``other``."""
    position: int | None = None
    size_bytes: int | None = None
    access: str | None = None
    """``r``, ``w`` or ``rw``."""
    inode: int | None = None
    other_end: tuple[int, ...] = ()
    """Pids that hold the other end of a pipe, or the process a pidfd stands for."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A large data file in the address space (weights), with the share that is in memory."""

    path: str
    size_bytes: int | None
    resident_bytes: int | None
    mapped_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Socket:
    """One socket of a process and who is at the other end."""

    fd: int
    family: str
    """``tcp``, ``tcp6``, ``unix``."""
    state: str | None = None
    local: str | None = None
    """``host:port`` or a path."""
    remote: str | None = None
    receive_queue_bytes: int | None = None
    send_queue_bytes: int | None = None
    inode: int | None = None
    peers: tuple[int, ...] = ()
    """Pids on this host that hold the other end; empty for a remote peer."""
    bytes_received: int | None = None
    bytes_sent: int | None = None


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """One collective from PyTorch's Flight Recorder: a group's newest, or one still pending."""

    group: str
    op: str
    sequence: int | None
    state: str | None = None
    """``scheduled``, ``started``, ``completed``; for gloo ``pending`` or ``retired``."""
    age_s: float | None = None
    group_description: str | None = None
    p2p_sequence: int | None = None
    input_sizes: str | None = None
    output_sizes: str | None = None
    dtype: str | None = None
    timeout_s: float | None = None
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one look."""

    pid: int
    start_ticks: int | None = None
    host: str | None = None
    ppid: int | None = None
    session: int | None = None
    uid: int | None = None
    ns_pid: int | None = None
    """Its pid inside its own PID namespace, when that differs."""
    state: str | None = None
    comm: str | None = None
    command: tuple[str, ...] = ()
    """argv, or the title that setproctitle left (one element)."""
    exe: str | None = None
    cwd: str | None = None
    started_at: float | None = None
    """Unix time."""
    exit_code: int | None = None
    tracer_pid: int | None = None
    threads: tuple[Thread, ...] = ()
    thread_count: int | None = None
    taken_at: float | None = None
    """Unix time of this process' look (of its stacks, where there are any)."""
    rss_bytes: int | None = None
    minor_faults: int | None = None
    major_faults: int | None = None
    user_ticks: int | None = None
    system_ticks: int | None = None
    io: IoCounters | None = None
    files: tuple[OpenFile, ...] = ()
    mapped: tuple[MappedFile, ...] = ()
    sockets: tuple[Socket, ...] = ()
    environ: Mapping[str, str] | None = None
    """Allow-listed variables only."""
    environ_source: str | None = None
    """``memory`` (live), ``/proc`` (as at exec), ``dump``."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """``python``, ``torch``, ``nccl``, ``cuda`` … as really loaded."""
    flight: tuple[FlightEntry, ...] = ()
    rank_hint: str | None = None
    """What a foreign dump called this process (``rank 3``, ``TP1``), verbatim."""

    @property
    def known_pid(self) -> int | None:
        """The pid; ``None`` where a foreign dump gave none (those are numbered -1, -2 … to tell them apart)."""
        return self.pid if self.pid > 0 else None


@dataclass(frozen=True, slots=True)
class Rank:
    """A member of the world. Coordinates that are unknown or of size 1 are ``None``."""

    global_rank: int | None = None
    local: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    host: str | None = None
    text: str | None = None
    """The name a foreign dump or an unusual title gave it, when no number could be read."""
    cp: int | None = None
    """Context-parallel coordinate (PCP in vLLM, ATTN_CP in SGLang)."""

    @property
    def label(self) -> str:
        """``DP0 PP1 TP3`` as the servers write it, else ``rank 5``, else the verbatim name."""
        parts = [
            f"{name}{value}"
            for name, value in (
                ("DP", self.dp),
                ("PP", self.pp),
                ("CP", self.cp),
                ("TP", self.tp),
                ("EP", self.ep),
            )
            if value is not None
        ]
        if parts:
            return " ".join(parts)
        if self.global_rank is not None:
            return f"rank {self.global_rank}"
        if self.local is not None:
            return f"local rank {self.local}"
        return self.text or "rank ?"
