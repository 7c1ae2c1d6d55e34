"""When to call somebody: progress stopped, a rank is gone. Pure: fed with what looks show, and with their times.

One hang is told once. It is told again when it changes (another culprit, another cause), never before a pause that
doubles up to an hour, and at once when the job had moved in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hangdoctor.case import Case, Key, Member
from hangdoctor.report import Cause, Confidence, Kind, ProgressClass, Report, Verdict

LONGEST_PAUSE_S = 3600.0


class Reason(str, Enum):
    """Why a full capture is taken. The value names its folder and stands in HANGDOCTOR_TRIGGER."""

    STALLED = "stalled"
    SILENT = "silent"
    GONE = "gone"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Event:
    """A trigger that fired."""

    reason: Reason
    text: str
    """One clause without a full stop."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What makes two hangs the same one."""

    kind: Kind
    cause: Cause | None
    culprits: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the last looks together show."""

    at: float
    """Monotonic seconds."""
    signature: Signature
    confidence: Confidence
    is_moving: bool
    """Ready, slow but moving, or at least one rank with proof of progress."""
    living: tuple[Member, ...]
    """Ranks and supervisors that are alive at the last look."""


def sight(case: Case, report: Report, at: float) -> Sighting:
    """Read a diagnosis of the last looks."""
    verdict = report.verdict
    proven = any(member.progress.kind is ProgressClass.PROOF for member in case.principals)
    return Sighting(
        at=at,
        signature=signature_of(verdict),
        confidence=verdict.confidence,
        is_moving=verdict.kind in (Kind.READY, Kind.SLOW) or (verdict.kind is Kind.UNKNOWN and proven),
        living=tuple(m for m in case.principals if not m.is_gone and m.last.state not in ("Z", "X")),
    )


def signature_of(verdict: Verdict) -> Signature:
    """Kind, cause and culprits."""
    culprits = tuple(sorted((c.pid for c in verdict.culprits), key=str))
    return Signature(verdict.kind, verdict.cause, culprits)


class Pause:
    """A pause that doubles each time it is taken."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._next_s = first_s
        self._until = float("-inf")

    def is_over(self, at: float) -> bool:
        """Whether the last one has passed."""
        return at >= self._until

    def begin(self, at: float) -> None:
        """Take the next pause, twice as long as the last."""
        self._until = at + self._next_s
        self._next_s = min(2 * self._next_s, LONGEST_PAUSE_S)

    def forget(self) -> None:
        """The next one is short again."""
        self._next_s = self._first_s
        self._until = float("-inf")


class StallClock:
    """Progress has stopped: nothing proves it for ``stall_s`` seconds, or two looks in a row prove a hang."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._since: float | None = None
        self._last: Sighting | None = None
        self._reported: Signature | None = None
        self._pause = Pause(stall_s)

    @property
    def stopped_since(self) -> float | None:
        """Monotonic time of the first look without progress; ``None`` while it moves."""
        return self._since

    @property
    def is_reported(self) -> bool:
        """Whether the present hang has been told."""
        return self._reported is not None

    def update(self, sighting: Sighting) -> Event | None:
        """Take in one more look. The caller then says :meth:`reported` or :meth:`refuted`."""
        before, self._last = self._last, sighting
        if sighting.is_moving:
            self._since = self._reported = None
            return None
        if self._since is None:
            self._since = sighting.at
        stopped_s = sighting.at - self._since
        is_proven = _is_certain(sighting) and before is not None and before.signature == sighting.signature
        is_new = sighting.signature != self._reported
        if not is_new or not self._pause.is_over(sighting.at):
            return None
        if is_proven:
            return Event(Reason.STALLED, "a hang is certain in two looks in a row")
        if stopped_s >= self._stall_s:
            return Event(Reason.STALLED, f"nothing proves progress for {stopped_s:.0f} s")
        return None

    def reported(self) -> None:
        """The present hang has been told."""
        assert self._last is not None
        self._reported = self._last.signature
        self._pause.begin(self._last.at)

    def refuted(self) -> None:
        """A closer look found progress after all: start counting anew."""
        assert self._last is not None
        self._since = None
        self._pause.begin(self._last.at)


def _is_certain(sighting: Sighting) -> bool:
    return sighting.signature.kind is Kind.HUNG and sighting.confidence is Confidence.CERTAIN


class Roll:
    """Who has been seen alive, and who of them is no more. Each is told once."""

    def __init__(self) -> None:
        self._alive: dict[Key, str] = {}

    def update(self, sighting: Sighting) -> Event | None:
        """Take in one more look."""
        living = {member.key: member.label for member in sighting.living}
        gone = {key: label for key, label in self._alive.items() if key not in living}
        self._alive = living
        return Event(Reason.GONE, _tell_gone(gone)) if gone else None

    def end(self) -> Event:
        """The whole job has ended."""
        return Event(Reason.GONE, f"the job has ended; last alive: {_names(self._alive)}")


def _tell_gone(gone: dict[Key, str]) -> str:
    return f"{_names(gone)} {'is' if len(gone) == 1 else 'are'} gone"


def _names(members: dict[Key, str], limit: int = 8) -> str:
    names = [f"{label} (pid {key.pid})" for key, label in members.items()]
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "") or "nobody"


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What a health endpoint did."""

    status: int | None
    """HTTP status; ``None`` without an answer."""
    text: str
    """``answered 200 in 12 ms``, ``did not answer within 5 s``, ``refused the connection``."""
    is_refused: bool = False
    """Nobody listens: normal before a server is up."""

    @property
    def is_well(self) -> bool:
        return self.status is not None and self.status < 500


class ProbeWatch:
    """A health endpoint that answered falls silent, or one accepts and never answers; twice in a row."""

    def __init__(self) -> None:
        self._was_well = False
        self._silences = 0

    def update(self, answer: ProbeAnswer) -> Event | None:
        """Take in one more answer."""
        if answer.is_well:
            self._was_well, self._silences = True, 0
            return None
        # A server that still loads refuses, or says 503: only silence is suspicious before it was ever well.
        if not self._was_well and (answer.is_refused or answer.status is not None):
            return None
        self._silences += 1
        if self._silences == 2:
            return Event(Reason.SILENT, f"the health endpoint {answer.text}, twice in a row")
        return None


class LogWatch:
    """A line that matches. The same pattern is told again only after a pause that doubles."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._pauses: dict[str, Pause] = {}

    def update(self, matches: Sequence[tuple[str, str]], at: float) -> Event | None:
        """``matches``: pairs of the pattern and the line."""
        for pattern, line in matches:
            pause = self._pauses.setdefault(pattern, Pause(self._pause_s))
            if pause.is_over(at):
                pause.begin(at)
                return Event(Reason.LOG, f"the log says: {line}")
        return None
