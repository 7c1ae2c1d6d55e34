"""Is this one suspect stuck, slow, or not to be told? The question that people get wrong.

Proof of progress makes it slow. No progress makes it hung only beyond the budget of its phase, or when what it
waits for is known never to come. A CPU that is merely busy proves neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hangdoctor.analysis.activity import SPIN_RECURRENCE, is_spinning
from hangdoctor.analysis.describe import name_frame, name_thread
from hangdoctor.analysis.findings import Finding, Suspect
from hangdoctor.analysis.gpu import GpuActivity, GpuStatement
from hangdoctor.analysis.progress import LogMove, describe_progress
from hangdoctor.analysis.waits import Edge, is_idle
from hangdoctor.case import Case, Movement, naming_frame
from hangdoctor.knowledge.catalogue import Stage
from hangdoctor.model import Activity
from hangdoctor.report import Cause, Confidence, Kind, Progress, ProgressClass

LEAST_STILLNESS_S = 2.5
"""Below this a motionless thread makes a hang only ``possible``: polls and retries commonly pause for seconds."""
COMPILE_BUDGET_S = 120.0
CPU_PHASE_SHARE = 0.5
"""Share of a core that makes a changing line inside a known CPU phase believable as work (DESIGN.md section 5)."""

_SLOW_CAUSES = frozenset(
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


def judge(charge: Charge) -> Finding | None:
    """What can be said of one suspect; ``None`` when nothing about it is remarkable (it serves)."""
    if _serves(charge.suspect):
        return None
    for question in _QUESTIONS:
        finding = question(charge)
        if finding is not None:
            return finding
    return None


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
    return next((cause for cause in causes if cause in _SLOW_CAUSES), causes[0] if causes else None)


def _serves(suspect: Suspect) -> bool:
    """Inside a serving phase and moving: its own step, however long a look at it may catch the same place."""
    member = suspect.member
    if member.phase is None or member.phase.stage not in (Stage.SERVING, Stage.IDLE):
        return False
    return _movement(suspect) is Movement.MOVING or member.progress.kind is ProgressClass.PROOF


def _share(suspect: Suspect) -> float:
    return (suspect.track.demand_share if suspect.track else None) or 0.0


def _movement(suspect: Suspect) -> Movement:
    return suspect.track.movement if suspect.track else Movement.UNKNOWN


# -- the questions, in order -----------------------------------------------------------------------


def _compiles(charge: Charge) -> Finding | None:
    member = charge.suspect.member
    if not member.compilers:
        return None
    names = ", ".join(sorted({p.comm or "?" for p in member.compilers}))
    stopped = [p for p in member.compilers if p.state in ("T", "t")]
    if stopped and member.progress.kind is not ProgressClass.PROOF:
        return Finding(
            Kind.HUNG,
            Confidence.CERTAIN,
            Cause.CHILD_STUCK,
            f"below it {', '.join(p.comm or '?' for p in stopped)} is stopped",
            (charge.suspect,),
        )
    if member.progress.kind in (ProgressClass.PROOF, ProgressClass.WEAK):
        sure = Confidence.CERTAIN if member.progress.kind is ProgressClass.PROOF else Confidence.LIKELY
        return Finding(
            Kind.SLOW,
            sure,
            Cause.COMPILING,
            f"it {describe_progress(member.progress)}",
            (charge.suspect,),
            member.progress,
        )
    if charge.case.look_count > 1 and charge.case.window_s >= COMPILE_BUDGET_S:
        return Finding(
            Kind.HUNG,
            Confidence.LIKELY,
            Cause.CHILD_STUCK,
            f"its compiler ({names}) uses no CPU",
            (charge.suspect,),
        )
    return _undecided(charge, Cause.COMPILING, "its compiler is alive", "whether the compiler uses the CPU")


def _lacks_its_lock_file(charge: Charge) -> Finding | None:
    aspect = charge.suspect.member.aspect
    if (
        aspect is None
        or aspect.waits_for != "lock-file"
        or charge.suspect.track is not charge.suspect.member.lead
    ):
        return None
    if any(m.compilers for m in charge.case.members):
        return None
    if charge.case.look_count < 2 or _movement(charge.suspect) is Movement.MOVING:
        return _undecided(
            charge,
            Cause.STALE_LOCK_FILE,
            "no builder is visible",
            "who holds the file",
        )
    return Finding(
        Kind.HUNG,
        Confidence.LIKELY,
        Cause.STALE_LOCK_FILE,
        "no live builder or compiler exists among what was seen",
        (charge.suspect,),
    )


def _waits_for_lock(charge: Charge) -> Finding | None:
    if charge.suspect.track is None or charge.suspect.track.last.activity is not Activity.WAIT_LOCK:
        return None
    lock = charge.suspect.track.last.thread.lock
    if lock is not None and lock.is_orphaned:
        return replace(
            _stuck(
                charge,
                Cause.LOCK_HELD,
                "the lock's owner is gone: it was copied by a fork, or its holder died",
            ),
            confidence=Confidence.CERTAIN,
        )
    if lock is not None and lock.kind == "thread.join":
        return None
    aspect = charge.suspect.member.aspect if charge.suspect.track is charge.suspect.member.lead else None
    if _movement(charge.suspect) is Movement.MOVING or (aspect is not None and aspect.waits_for == "thread"):
        return None  # joining a thread of its own is an ordinary way to spend a life
    return _stuck(charge, Cause.LOCK_HELD, "who holds the lock is not recorded")


def _holds_lock(charge: Charge) -> Finding | None:
    """A thread that sits on a lock others want, and does nothing."""
    if not charge.wanted_locks or _movement(charge.suspect) is not Movement.STILL:
        return None
    return _stuck(charge, Cause.LOCK_HELD, f"it holds the lock that {_wanting(charge)} waits for")


def _wanting(charge: Charge) -> str:
    """Who wants the lock, and where: ``MainThread in reserve_page (pages.py:34)``."""
    waiter = charge.wanted_locks[0].waiter
    for member in charge.case.members:
        for track in member.threads:
            if member.key == waiter.key and track.tid == waiter.tid:
                frame = naming_frame(track.last)
                name = name_thread(track) or str(track.tid)
                return f"{name} in {name_frame(frame)}" if frame else name
    return "another thread"


def _holds_gil(charge: Charge) -> Finding | None:
    track = charge.suspect.track
    if track is None or not all(v is None or v.thread.owns_gil for v in track.views):
        return None
    if _movement(charge.suspect) is not Movement.STILL or not _gil_is_wanted(charge.suspect):
        return None
    return _stuck(charge, Cause.GIL_HELD, "it holds the GIL")


def _gil_is_wanted(suspect: Suspect) -> bool:
    """Whether another thread waits for the GIL; where locks could not be read, a holder that never runs suffices."""
    locks = [t.last.thread.lock for t in suspect.member.threads if t.last.thread.lock is not None]
    return not locks or any(lock.kind == "gil" for lock in locks)


def _its_log_advances(charge: Charge) -> Finding | None:
    log = charge.log
    if log is None or log.kind is not ProgressClass.PROOF:
        return None
    if log.pids and charge.suspect.member.pid not in log.pids:  # a log given with --log names no writer
        return None
    cause = phase_cause(charge.suspect)
    progress = Progress(ProgressClass.PROOF, f"advances a count in its log: {log.text}")
    return Finding(
        Kind.SLOW,
        Confidence.LIKELY,
        cause if cause in _SLOW_CAUSES else Cause.LAGGARD,
        f"it {progress.what}",
        (charge.suspect,),
        progress,
    )


def _is_in_known_phase(charge: Charge) -> Finding | None:
    cause = phase_cause(charge.suspect)
    if cause not in _SLOW_CAUSES or charge.suspect.track is None:
        return None
    progress = charge.suspect.member.progress
    if progress.kind is ProgressClass.PROOF:
        return Finding(
            Kind.SLOW,
            Confidence.CERTAIN,
            cause,
            f"it {describe_progress(progress)}",
            (charge.suspect,),
            progress,
        )
    if _movement(charge.suspect) is Movement.MOVING:
        share = _share(charge.suspect)
        if share >= CPU_PHASE_SHARE:
            because = f"lines change, at {100 * share:.0f} % of a core"
            return Finding(Kind.SLOW, Confidence.LIKELY, cause, because, (charge.suspect,), progress)
        if progress.kind is ProgressClass.WEAK and cause is not Cause.INITIALIZING_NCCL:
            because = "the stack changes between looks"
            return Finding(Kind.SLOW, Confidence.POSSIBLE, cause, because, (charge.suspect,), progress)
    if _movement(charge.suspect) is Movement.BUSY and progress.kind is ProgressClass.WEAK:
        because = f"it uses {100 * _share(charge.suspect):.0f} % of a core and {progress.what}"
        return Finding(Kind.SLOW, Confidence.LIKELY, cause, because, (charge.suspect,), progress)
    return _within_budget(charge, cause)


def _within_budget(charge: Charge, cause: Cause) -> Finding:
    view = charge.suspect.track.last if charge.suspect.track else None
    phases = (
        [p for p in (view.match.aspect, view.match.phase) if p is not None] if view and view.match else []
    )
    budget = next((p.budget_s for p in phases if p.budget_s is not None), 60.0)
    still = stillness_s(charge.case, charge.suspect)
    if charge.case.look_count > 1 and still > budget:
        because = f"it has shown no progress for {still:.0f} s (budget {budget:.0f} s)"
        return Finding(
            Kind.HUNG, Confidence.LIKELY, cause, because, (charge.suspect,), charge.suspect.member.progress
        )
    return _undecided(
        charge,
        cause,
        f"no proof of progress in {still:.0f} s, which is within its budget of {budget:.0f} s",
        "any byte read, line changed or memory grown in a longer look",
        command=f"hangdoctor attach {{pid}} --snapshots 3 --interval {max(15, round(budget / 2))}",
    )


def _waits_for_gpu(charge: Charge) -> Finding | None:
    if charge.suspect.track is None or charge.suspect.track.last.activity is not Activity.WAIT_GPU:
        return None
    if _movement(charge.suspect) is Movement.MOVING:
        return None
    gpu = charge.gpu
    if gpu is not None and gpu.activity is GpuActivity.COMPUTING:
        return _undecided(
            charge, Cause.GPU_STUCK, f"its GPU works ({gpu.text})", "whether that kernel ends: a longer look"
        )
    numbers = f" ({gpu.text})" if gpu is not None else ""
    finding = _stuck(charge, Cause.GPU_STUCK, f"its GPU does not finish{numbers}")
    if gpu is not None and gpu.activity is GpuActivity.SPINNING and finding.kind is Kind.HUNG:
        return replace(finding, confidence=Confidence.LIKELY)  # two kinds of evidence agree
    return finding


def _waits_for_storage(charge: Charge) -> Finding | None:
    track = charge.suspect.track
    if track is None or track.last.activity not in (Activity.UNINTERRUPTIBLE, Activity.WAIT_IO):
        return None
    progress = charge.suspect.member.progress
    if progress.kind is ProgressClass.PROOF:
        return Finding(
            Kind.SLOW,
            Confidence.LIKELY,
            Cause.LOADING,
            f"it {describe_progress(progress)}",
            (charge.suspect,),
            progress,
        )
    if _movement(charge.suspect) in (Movement.MOVING, Movement.UNKNOWN):
        return None
    return _stuck(charge, Cause.IO_STUCK, "nothing arrives from storage")


def _spins(charge: Charge) -> Finding | None:
    if charge.suspect.track is None or not is_spinning(charge.suspect.track.last.thread):
        return None
    return Finding(
        Kind.HUNG,
        Confidence.LIKELY,
        Cause.SPIN,
        "it spins: its registers repeat the same few values",
        (charge.suspect,),
    )


def _makes_proven_progress(charge: Charge) -> Finding | None:
    progress = charge.suspect.member.progress
    if (
        not charge.is_waited_for
        or progress.kind is not ProgressClass.PROOF
        or charge.suspect.track is not charge.suspect.member.lead
    ):
        return None
    # A share of a known whole is a load; anything else that moves is only late.
    cause = Cause.LOADING if progress.percent is not None else Cause.LAGGARD
    return Finding(
        Kind.SLOW, Confidence.LIKELY, cause, f"it {describe_progress(progress)}", (charge.suspect,), progress
    )


def _computes(charge: Charge) -> Finding | None:
    """Busy outside everything that is known: computing or spinning."""
    track = charge.suspect.track
    if track is None or _share(charge.suspect) < CPU_PHASE_SHARE:
        return None
    spin = track.last.thread.spin
    busy = f"it uses {100 * _share(charge.suspect):.0f} % of a core"
    if (
        _movement(charge.suspect) is Movement.MOVING
        and spin is not None
        and spin.recurrence < SPIN_RECURRENCE / 2
    ):
        because = f"{busy}, its stack changes and its registers do not repeat: it computes"
        return Finding(
            Kind.SLOW,
            Confidence.LIKELY,
            Cause.LAGGARD,
            because,
            (charge.suspect,),
            charge.suspect.member.progress,
        )
    return Finding(
        Kind.UNKNOWN,
        Confidence.POSSIBLE,
        Cause.LAGGARD if charge.is_waited_for else None,
        f"{busy}: busy, but whether it computes or spins cannot be proven",
        (charge.suspect,),
        charge.suspect.member.progress,
        decider="native frames, or a longer look at what its data does",
        command="hangdoctor attach {pid} --native --interval 30",
    )


def _idles_while_waited_for(charge: Charge) -> Finding | None:
    if (
        not charge.is_waited_for
        or not is_idle(charge.suspect.member)
        or charge.suspect.track is not charge.suspect.member.lead
    ):
        return None
    because = "it waits for work while its peers are inside a step: it never got, or never took, the request"
    return _stuck(charge, Cause.LAGGARD, because)


def _stands_still(charge: Charge) -> Finding | None:
    track = charge.suspect.track
    if track is None or _movement(charge.suspect) is not Movement.STILL:
        return None
    if not charge.is_waited_for and track.last.activity in (
        Activity.TIMED_SLEEP,
        Activity.WAIT_PEER,
        Activity.WAIT_EVENT,
        Activity.BLOCKED,
    ):
        return _undecided(
            charge,
            None,
            "nothing else in the job waits for it",
            "whether anybody waits for it: a request, a peer on another host",
        )
    return _stuck(charge, Cause.LAGGARD, "it stands still outside what the others wait in")


def _single_look(charge: Charge) -> Finding | None:
    if charge.case.look_count > 1 and _movement(charge.suspect) is not Movement.UNKNOWN:
        return None
    if charge.suspect.track is None:
        return None
    what = "the others wait for it" if charge.is_waited_for else "it does not wait for work"
    return _undecided(
        charge,
        phase_cause(charge.suspect) or (Cause.LAGGARD if charge.is_waited_for else None),
        what,
        "a second look",
    )


_QUESTIONS: tuple[Callable[[Charge], Finding | None], ...] = (
    _compiles,
    _its_log_advances,
    _lacks_its_lock_file,
    _waits_for_lock,
    _holds_gil,
    _holds_lock,
    _is_in_known_phase,
    _waits_for_gpu,
    _waits_for_storage,
    _spins,
    _makes_proven_progress,
    _computes,
    _idles_while_waited_for,
    _stands_still,
    _single_look,
)


def _stuck(charge: Charge, cause: Cause, because: str) -> Finding:
    """Hung as far as the looks reach; from a single look it stays open."""
    if charge.case.look_count < 2 or _movement(charge.suspect) is Movement.UNKNOWN:
        return _undecided(charge, cause, because, "a second look: whether it is still there")
    still = stillness_s(charge.case, charge.suspect)
    confidence = (
        Confidence.LIKELY if still >= LEAST_STILLNESS_S and charge.is_waited_for else Confidence.POSSIBLE
    )
    return Finding(
        Kind.HUNG,
        confidence,
        cause,
        f"{because}; unchanged for {still:.0f} s",
        (charge.suspect,),
        charge.suspect.member.progress,
    )


def _undecided(
    charge: Charge, cause: Cause | None, because: str, decider: str, command: str | None = None
) -> Finding:
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
