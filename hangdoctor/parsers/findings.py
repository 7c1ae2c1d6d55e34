"""What the formats hand over: processes as one block of text showed them, messages, gaps, GPUs.

A :class:`Sighting` is not yet a process: which sightings are the same process, and which are a second look at
it, is decided over the whole input in `assemble.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hangdoctor.model import FlightEntry, Gap, Gpu, LogMessage, RasAnswer, Thread


@dataclass(frozen=True, slots=True)
class Where:
    """Where in the input something was read."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}" if self.line is not None else self.file


@dataclass(frozen=True, slots=True)
class Sighting:
    """One process as one block of text showed it. Whatever the block did not say is ``None`` or empty."""

    source: str
    """Name of the format; a second sighting from the same source is a second look."""
    where: Where
    pid: int | None = None
    labels: tuple[str, ...] = ()
    """Names of the ranks, verbatim; several when the text shows one stack for several ranks (``TP1, TP2``)."""
    host: str | None = None
    taken_at: float | None = None
    """Unix time."""
    threads: tuple[Thread, ...] = ()
    flight: tuple[FlightEntry, ...] = ()
    command: tuple[str, ...] = ()
    comm: str | None = None
    state: str | None = None
    ppid: int | None = None
    cpu_ticks: int | None = None
    """CPU time so far in 1/100 s."""
    rss_bytes: int | None = None
    thread_count: int | None = None
    tracer_pid: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    is_continuation: bool = False
    """More threads of the process that the same stream showed just before (prose in between)."""
    is_incidental: bool = False
    """Worth keeping only next to better evidence of the same process, or when there is nothing else."""
    is_history: bool = False
    """Told by a log, not a look: it never begins a new look."""
    is_gone: bool = False
    """A tool was told that there is no such process."""


Finding = Sighting | LogMessage | Gap | Gpu | RasAnswer
