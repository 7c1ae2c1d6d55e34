"""The Case: a capture read with knowledge. Who is who, what each thread does at each look, what moved.

Still no judgement here: a :class:`Case` says "TP1's main thread stood in ``load_shard`` in 3 of 3 looks and was
not on a CPU"; whether that is a hang is for :mod:`hangdoctor.analysis.verdict`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from hangdoctor.knowledge.catalogue import Phase, PhaseMatch, Role, RoleKind
from hangdoctor.model import Activity, Capture, Frame, Process, Rank, Thread
from hangdoctor.report import Progress

if TYPE_CHECKING:
    from hangdoctor.analysis.wires import Wires
    from hangdoctor.analysis.world import World


class Key(NamedTuple):
    """Identity of a process: pids are reused, and two hosts share numbers."""

    host: str | None
    pid: int
    start_ticks: int | None


class Movement(str, Enum):
    """What a thread did between the looks. Equal stacks alone are neither "stuck" nor "working"."""

    MOVING = "moving"
    """Its stack changed."""
    CYCLING = "cycling"
    """Same stack, but it was woken again and again (an event loop, a poll)."""
    BUSY = "busy"
    """Same stack, and it used a CPU: computing or spinning, one look cannot say which."""
    STILL = "still"
    """Same stack and (as far as the kernel tells) never ran."""
    UNKNOWN = "unknown"
    """Only one look, or nothing to compare."""


@dataclass(frozen=True, slots=True)
class ThreadView:
    """One thread at one look, interpreted."""

    thread: Thread
    activity: Activity
    match: PhaseMatch | None
    machinery: str | None
    """Name of the helper pool it belongs to; such a thread is evidence, never a culprit."""


@dataclass(frozen=True, slots=True)
class Window:
    """What one thread did between two successive looks. ``None``: could not be compared."""

    seconds: float
    same_stack: bool | None
    cpu_s: float | None
    ready_s: float | None
    """Seconds ready to run without getting a CPU."""
    switches: int | None
    """Voluntary context switches."""
    faults: int | None


@dataclass(frozen=True, slots=True)
class ThreadTrack:
    """One thread over all looks."""

    tid: int | None
    views: tuple[ThreadView | None, ...]
    """One per look; ``None`` where the thread did not exist."""
    windows: tuple[Window, ...]
    movement: Movement

    @property
    def last(self) -> ThreadView:
        """The newest view (a track has at least one)."""
        newest = self.views[-1]  # nearly always; asked some ten times for every thread of a large job
        return (
            newest if newest is not None else next(view for view in reversed(self.views) if view is not None)
        )

    @property
    def phases(self) -> tuple[Phase | None, ...]:
        """The phase at each look."""
        return tuple(view.match.phase if view and view.match else None for view in self.views)

    @property
    def demand_share(self) -> float | None:
        """Like :attr:`cpu_share`, with the time spent waiting for a CPU: what it would use on a quiet host."""
        share = self.cpu_share
        seconds = sum(w.seconds for w in self.windows if w.cpu_s is not None)
        if share is None or not seconds:
            return share
        return min(1.0, share + sum(w.ready_s or 0.0 for w in self.windows) / seconds)

    @property
    def has_counters(self) -> bool:
        """Whether CPU time or switches were read: without them an equal stack does not prove that it stood still."""
        return any(w.cpu_s is not None or w.switches is not None for w in self.windows)

    @property
    def cpu_share(self) -> float | None:
        """CPU time over wall time of all windows (1.0 is one full core)."""
        known = [w for w in self.windows if w.cpu_s is not None and w.seconds > 0]
        if not known:
            return None
        return sum(w.cpu_s or 0.0 for w in known) / sum(w.seconds for w in known)


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the job over all looks."""

    key: Key
    role: Role
    rank: Rank | None
    looks: tuple[Process | None, ...]
    """The process at each look; ``None`` before it started and after it was gone."""
    threads: tuple[ThreadTrack, ...]
    lead: ThreadTrack | None
    """The thread that speaks for the process: the main thread, or the worker it has handed its work to."""
    progress: Progress
    """What moved in this process and its compile children (strongest class)."""
    compilers: tuple[Process, ...] = ()
    """Compilers and build tools below it at the last look."""

    @property
    def last(self) -> Process:
        """The newest look at the process (a member has at least one)."""
        return next(look for look in reversed(self.looks) if look is not None)

    @property
    def cpu_share(self) -> float | None:
        """CPU time of all its threads over wall time: a library may work in threads of its own."""
        shares = [track.demand_share for track in self.threads]
        known = [share for share in shares if share is not None]
        return sum(known) if known else None

    @property
    def is_gone(self) -> bool:
        """It was there at an earlier look and is not at the last."""
        return self.looks[-1] is None

    @property
    def pid(self) -> int:
        """Its pid on its host."""
        return self.key.pid

    @property
    def kind(self) -> RoleKind:
        """What part it plays."""
        return self.role.kind

    @property
    def phase(self) -> Phase | None:
        """The phase of the lead thread at the last look."""
        match = self.lead.last.match if self.lead else None
        return match.phase if match else None

    @property
    def aspect(self) -> Phase | None:
        """The kind of wait or work inside the phase."""
        match = self.lead.last.match if self.lead else None
        return (match.aspect or match.phase) if match else None

    @property
    def frame(self) -> Frame | None:
        """The frame to name: the innermost frame of the lead thread that says most."""
        return naming_frame(self.lead.last) if self.lead else None

    @property
    def label(self) -> str:
        """``TP1``, ``rank 3``, else the role's title."""
        return self.rank.label if self.rank else self.role.title


@dataclass(frozen=True)
class Case:
    """Everything the rules look at. Without slots: what rules ask for again and again is found once."""

    capture: Capture
    server: str | None
    server_version: str | None
    members: tuple[Member, ...]
    expected_world: int | None
    """How many ranks the command line or the environment says there are on all hosts together."""
    expected_local: int | None
    """How many of them must be among what was looked at."""
    world: World | None = None
    """All that the processes say of the job's size."""

    @cached_property
    def ranks(self) -> tuple[Member, ...]:
        """The members that hold the model and meet in collectives."""
        return tuple(m for m in self.members if m.kind is RoleKind.RANK)

    @cached_property
    def principals(self) -> tuple[Member, ...]:
        """Ranks and the processes that feed or supervise them."""
        return tuple(m for m in self.members if m.kind in (RoleKind.RANK, RoleKind.CONTROL))

    @cached_property
    def by_key(self) -> Mapping[Key, Member]:
        """Every member by its identity."""
        return {m.key: m for m in self.members}

    @cached_property
    def by_place(self) -> Mapping[tuple[str | None, int], Member]:
        """Every member by host and pid; of two with the same pid the later one."""
        return {(m.key.host, m.key.pid): m for m in self.members}

    @cached_property
    def target_member(self) -> Member | None:
        """The process that the user named; with several hosts it is the first one's."""
        pid = self.capture.target.pid
        host = self.capture.hosts[0].name if len(self.capture.hosts) > 1 else None
        return next((m for m in self.members if m.pid == pid and host in (None, m.key.host)), None)

    @cached_property
    def wires(self) -> Wires:
        """Who is at the other end of TCP connections."""
        from hangdoctor.analysis.wires import lay_out

        return lay_out(self.members, self.capture.hosts)

    @property
    def look_count(self) -> int:
        """How many looks there are."""
        return len(self.capture.snapshots)

    @property
    def window_s(self) -> float:
        """Time from the first to the last look, in seconds; 0.0 for a single look or without a clock."""
        times = [s.taken_at for s in self.capture.snapshots if s.taken_at is not None]
        return times[-1] - times[0] if len(times) > 1 else 0.0


_PLUMBING = re.compile(
    r"(^|/)(threading|queue|selectors|subprocess|contextlib|socket|ssl|_contextlib)\.py$"
    r"|<frozen |/zmq/|(^|/)torch/cuda/|/multiprocessing/"
)
"""Files whose frames say how a thread waits, not what for: their caller is the better name."""

_NAMES_ITSELF = frozenset({Activity.WAIT_COLLECTIVE, Activity.WAIT_PEER})


def naming_frame(view: ThreadView) -> Frame | None:
    """The frame that tells a reader most.

    A collective or a rendezvous keeps its own name (``all_reduce``), because that is the news. Otherwise the
    innermost frame that is not plumbing: ``Condition.wait (threading.py)`` is named by its caller.
    """
    stack = view.thread.stack
    if stack is None or not stack.frames:
        return None
    match = view.match
    if match is not None and view.activity in _NAMES_ITSELF:
        aspect = match.aspect or match.phase
        index = match.aspect_frame if match.aspect_frame is not None else match.frame
        if aspect.server == "torch":
            return stack.frames[index]
    for frame in stack.frames:
        if not frame.is_native and not _PLUMBING.search(frame.file):
            return frame
    return stack.frames[0]
