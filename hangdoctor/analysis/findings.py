"""What a rule says: one statement about the job, with the suspects it names and what would refute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hangdoctor.analysis.gpu import GpuStatement
from hangdoctor.analysis.log_moves import LogMove
from hangdoctor.analysis.waits import Node, WaitGraph
from hangdoctor.case import Case, Member, ThreadTrack
from hangdoctor.model import Rank
from hangdoctor.report import Cause, Confidence, Kind, Progress


@dataclass(frozen=True, slots=True)
class Suspect:
    """A thread (or a process without visible threads) that others may be waiting for."""

    member: Member
    track: ThreadTrack | None

    @property
    def node(self) -> Node:
        """Its node in the wait-for graph."""
        return Node(self.member.key, self.track.tid if self.track else None)


@dataclass(frozen=True, slots=True)
class Situation:
    """What the rules look at: the case, its wait-for graph, where waiting ends, what the log says."""

    case: Case
    graph: WaitGraph
    suspects: tuple[Suspect, ...]
    """Where all waiting ends; when nothing waits, the principals that do not move freely."""
    is_waited_for: bool
    """Whether the suspects are sinks of real waits."""
    log: LogMove
    gpus: tuple[GpuStatement, ...] = ()
    """What each GPU did over the looks."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's statement."""

    kind: Kind
    confidence: Confidence
    cause: Cause | None
    because: str
    """One sentence without a trailing full stop: what was seen that makes it so."""
    suspects: tuple[Suspect, ...] = ()
    progress: Progress | None = None
    decider: str | None = None
    """For an undecided case: the one observation that would decide."""
    command: str | None = None
    """And the command for it (``{pid}`` is filled in)."""
    waiting: tuple[Member, ...] = ()
    """Members that only wait, where whom they wait for was not seen or cannot be named."""
    absent: tuple[Rank, ...] = ()
    """Ranks that the evidence names without any process of theirs: others logged that they did not come."""
    needs_no_second_look: bool = False
    """Its evidence spans time by itself (a timer of the job ran out), or time would not change it (a cycle)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to reach a verdict. ``order``: lower is asked first; the first that speaks decides."""

    id: str
    order: int
    summary: str
    refuted_by: str
    check: Callable[[Situation], Finding | None]
