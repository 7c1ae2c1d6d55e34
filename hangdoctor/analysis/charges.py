"""One suspect, what is brought against it, and the two answers that leave it hung or open."""

from __future__ import annotations

from dataclasses import dataclass

from hangdoctor.analysis.dark import is_dark
from hangdoctor.analysis.findings import Finding, Suspect
from hangdoctor.analysis.gpu import GpuStatement
from hangdoctor.analysis.log_moves import LogMove
from hangdoctor.analysis.progress import describe_progress
from hangdoctor.analysis.waits import Edge
from hangdoctor.case import Case, Movement
from hangdoctor.report import Cause, Confidence, Kind, Progress, ProgressClass

LEAST_STILLNESS_S = 2.5
"""Below this a motionless thread makes a hang only ``possible``: polls and retries commonly pause for seconds."""
COMPILE_BUDGET_S = 120.0
CPU_PHASE_SHARE = 0.5
"""Share of a core that makes a changing line inside a known CPU phase believable as work (DESIGN.md section 5)."""

SLOW_CAUSES = frozenset(
    {
        Cause.LOADING,
        Cause.DEQUANTIZING,
        Cause.COMPILING,
        Cause.CAPTURING_GRAPHS,
        Cause.ALLOCATING_KV_CACHE,
        Cause.INITIALIZING_NCCL,
        Cause.WARMING_UP,
        Cause.IMPORTING,
    }
)


@dataclass(frozen=True, slots=True)
class Charge:
    """One suspect and what is brought against it."""

    case: Case
    suspect: Suspect
    is_waited_for: bool
    """Whether real waits end at it."""
    wanted_locks: tuple[Edge, ...] = ()
    """Waits of other threads for locks that it holds."""
    log: LogMove | None = None
    """What the job's log did."""
    gpu: GpuStatement | None = None
    """What its GPU did."""


def stillness_s(case: Case, suspect: Suspect) -> float:
    """How long the suspect has shown nothing, in seconds: the windows seen, or the kernel's own record if longer."""
    track = suspect.track
    if track is None:
        return case.window_s
    seen = sum(w.seconds for w in track.windows)
    last_ran = track.last.thread.last_ran_s
    if track.movement is Movement.STILL and last_ran is not None:
        return max(seen, last_ran)
    return seen


def phase_cause(suspect: Suspect) -> Cause | None:
    """The cause its phase (or the work inside the phase) stands for."""
    view = suspect.track.last if suspect.track else None
    if view is None or view.match is None:
        return None
    causes = [Cause(p.cause) for p in (view.match.aspect, view.match.phase) if p is not None and p.cause]
    # The work beats the wait inside it: a lock taken while dequantizing is still dequantizing.
    return next((cause for cause in causes if cause in SLOW_CAUSES), causes[0] if causes else None)


def demand(suspect: Suspect) -> float:
    """Share of a core it used or would have used on a quiet host."""
    return (suspect.track.demand_share if suspect.track else None) or 0.0


def movement(suspect: Suspect) -> Movement:
    """What its thread did between the looks."""
    return suspect.track.movement if suspect.track else Movement.UNKNOWN


def stuck(charge: Charge, cause: Cause, because: str) -> Finding:
    """Hung as far as the looks reach; from a single look it stays open."""
    if charge.case.look_count < 2 or movement(charge.suspect) is Movement.UNKNOWN:
        return undecided(charge, cause, because, "a second look: whether it is still there")
    progress = charge.suspect.member.progress
    if progress.kind is ProgressClass.PROOF and charge.suspect.track is charge.suspect.member.lead:
        return moving_after_all(charge, progress)
    still = stillness_s(charge.case, charge.suspect)
    confidence = (
        Confidence.LIKELY if still >= LEAST_STILLNESS_S and charge.is_waited_for else Confidence.POSSIBLE
    )
    if cause is Cause.LAGGARD and is_dark(charge.suspect.member):
        confidence = Confidence.POSSIBLE  # who waits for whom is told from the shape of the waits alone
    return Finding(
        Kind.HUNG,
        confidence,
        cause,
        f"{because}; unchanged for {still:.0f} s",
        (charge.suspect,),
        charge.suspect.member.progress,
    )


def moving_after_all(charge: Charge, progress: Progress) -> Finding:
    """Still at the look, and yet proof of progress between the looks: caught between two build steps, two files."""
    cause = phase_cause(charge.suspect)
    if "build step" in (progress.what or ""):
        cause = Cause.COMPILING
    return Finding(
        Kind.SLOW,
        Confidence.LIKELY,
        cause if cause in SLOW_CAUSES else Cause.LOADING if _is_load(progress) else Cause.LAGGARD,
        f"it {describe_progress(progress)}",
        (charge.suspect,),
        progress,
    )


def _is_load(progress: Progress) -> bool:
    """A share of a known whole, or bytes coming in; what goes out, or anything else that moves, is only late."""
    is_incoming = progress.unit == "bytes/s" and not (progress.what or "").startswith("writes")
    return progress.percent is not None or is_incoming


def undecided(
    charge: Charge, cause: Cause | None, because: str, decider: str, command: str | None = None
) -> Finding:
    """Neither hung nor slow can be said: what single observation would decide."""
    return Finding(
        Kind.UNKNOWN,
        Confidence.POSSIBLE,
        cause,
        because,
        (charge.suspect,),
        charge.suspect.member.progress,
        decider=decider,
        command=command or "hangdoctor attach {pid} --interval 15",
    )
