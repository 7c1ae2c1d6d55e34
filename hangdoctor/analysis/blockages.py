"""Questions to one suspect about what it waits for: a compiler, a lock, the GIL, a GPU, storage, nothing known."""

from __future__ import annotations

from dataclasses import replace

from hangdoctor.analysis.charges import (
    COMPILE_BUDGET_S,
    Charge,
    movement,
    phase_cause,
    stuck,
    undecided,
)
from hangdoctor.analysis.closed import why_nobody_is_left
from hangdoctor.analysis.connections import remote_peer
from hangdoctor.analysis.describe import name_frame, name_thread
from hangdoctor.analysis.findings import Finding, Suspect
from hangdoctor.analysis.gpu import GpuActivity
from hangdoctor.analysis.progress import describe_progress
from hangdoctor.analysis.standing import is_idle
from hangdoctor.case import Movement, naming_frame
from hangdoctor.model import Activity
from hangdoctor.report import Cause, Confidence, Kind, ProgressClass


def compiles(charge: Charge) -> Finding | None:
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
    return undecided(charge, Cause.COMPILING, "its compiler is alive", "whether the compiler uses the CPU")


def lacks_its_lock_file(charge: Charge) -> Finding | None:
    aspect = charge.suspect.member.aspect
    if (
        aspect is None
        or aspect.waits_for != "lock-file"
        or charge.suspect.track is not charge.suspect.member.lead
    ):
        return None
    if any(m.compilers for m in charge.case.members):
        return None
    if charge.case.look_count < 2 or movement(charge.suspect) is Movement.MOVING:
        return undecided(
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


def waits_for_lock(charge: Charge) -> Finding | None:
    if charge.suspect.track is None or charge.suspect.track.last.activity is not Activity.WAIT_LOCK:
        return None
    lock = charge.suspect.track.last.thread.lock
    if lock is not None and lock.is_orphaned:
        return replace(
            stuck(
                charge,
                Cause.LOCK_HELD,
                "the lock's owner is gone: it was copied by a fork, or its holder died",
            ),
            confidence=Confidence.CERTAIN,
        )
    closed = why_nobody_is_left(charge.suspect.member)
    if closed is not None:
        return replace(stuck(charge, Cause.LOCK_HELD, closed), confidence=Confidence.CERTAIN)
    if lock is not None and lock.kind == "thread.join":
        return None
    aspect = charge.suspect.member.aspect if charge.suspect.track is charge.suspect.member.lead else None
    if movement(charge.suspect) is Movement.MOVING or (aspect is not None and aspect.waits_for == "thread"):
        return None  # joining a thread of its own is an ordinary way to spend a life
    if lock is not None and lock.readers is not None:
        readers = f"{lock.readers} reader{'s' if lock.readers != 1 else ''}"
        return stuck(charge, Cause.LOCK_HELD, f"{readers} hold the lock, and who they are is not recorded")
    return stuck(charge, Cause.LOCK_HELD, "who holds the lock is not recorded")


def holds_lock(charge: Charge) -> Finding | None:
    """A thread that sits on a lock others want, and does nothing."""
    if not charge.wanted_locks or movement(charge.suspect) is not Movement.STILL:
        return None
    return stuck(charge, Cause.LOCK_HELD, f"it holds the lock that {_wanting(charge)} waits for")


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


def holds_gil(charge: Charge) -> Finding | None:
    track = charge.suspect.track
    if track is None or not all(v is None or v.thread.owns_gil for v in track.views):
        return None
    if movement(charge.suspect) is not Movement.STILL or not _gil_is_wanted(charge.suspect):
        return None
    if track.last.activity in (Activity.UNINTERRUPTIBLE, Activity.WAIT_IO):
        return None  # a page of a mapped file that never comes: storage is what holds up the GIL, too
    return stuck(charge, Cause.GIL_HELD, "it holds the GIL")


def _gil_is_wanted(suspect: Suspect) -> bool:
    """Whether another thread waits for the GIL; where locks could not be read, a holder that never runs suffices."""
    locks = [t.last.thread.lock for t in suspect.member.threads if t.last.thread.lock is not None]
    return not locks or any(lock.kind == "gil" for lock in locks)


def waits_for_gpu(charge: Charge) -> Finding | None:
    if charge.suspect.track is None or charge.suspect.track.last.activity is not Activity.WAIT_GPU:
        return None
    if movement(charge.suspect) is Movement.MOVING:
        return None
    gpu = charge.gpu
    if gpu is not None and gpu.activity is GpuActivity.COMPUTING:
        return undecided(
            charge, Cause.GPU_STUCK, f"its GPU works ({gpu.text})", "whether that kernel ends: a longer look"
        )
    numbers = f" ({gpu.text})" if gpu is not None else ""
    finding = stuck(charge, Cause.GPU_STUCK, f"its GPU does not finish{numbers}")
    if gpu is not None and gpu.activity is GpuActivity.SPINNING and finding.kind is Kind.HUNG:
        return replace(finding, confidence=Confidence.LIKELY)  # two kinds of evidence agree
    return finding


def waits_for_storage(charge: Charge) -> Finding | None:
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
    if movement(charge.suspect) in (Movement.MOVING, Movement.UNKNOWN):
        return None
    call = track.last.thread.syscall
    where = f" ({call.detail})" if call is not None and call.detail else ""
    return stuck(charge, Cause.IO_STUCK, f"nothing arrives from storage{where}")


def waits_for_another_host(charge: Charge) -> Finding | None:
    """All waiting on this host ends at a connection to somewhere else."""
    elsewhere = remote_peer(charge.suspect.member, charge.case)
    if elsewhere is None or charge.suspect.track is not charge.suspect.member.lead:
        return None
    if movement(charge.suspect) is not Movement.STILL or not charge.is_waited_for:
        return None
    return stuck(charge, Cause.MISSING_PEER, f"it waits for {elsewhere}")


def idles_while_waited_for(charge: Charge) -> Finding | None:
    if (
        not charge.is_waited_for
        or not is_idle(charge.suspect.member)
        or charge.suspect.track is not charge.suspect.member.lead
    ):
        return None
    because = "it waits for work while its peers are inside a step: it never got, or never took, the request"
    return stuck(charge, Cause.LAGGARD, because)


def stands_still(charge: Charge) -> Finding | None:
    track = charge.suspect.track
    if track is None or movement(charge.suspect) is not Movement.STILL:
        return None
    if not charge.is_waited_for and track.last.activity in (
        Activity.TIMED_SLEEP,
        Activity.WAIT_PEER,
        Activity.WAIT_EVENT,
        Activity.BLOCKED,
    ):
        return undecided(
            charge,
            None,
            "nothing else in the job waits for it",
            "whether anybody waits for it: a request, a peer on another host",
        )
    return stuck(charge, Cause.LAGGARD, "it stands still outside what the others wait in")


def single_look(charge: Charge) -> Finding | None:
    if charge.case.look_count > 1 and movement(charge.suspect) is not Movement.UNKNOWN:
        return None
    if charge.suspect.track is None:
        return None
    what = "the others wait for it" if charge.is_waited_for else "it does not wait for work"
    return undecided(
        charge,
        phase_cause(charge.suspect) or (Cause.LAGGARD if charge.is_waited_for else None),
        what,
        "a second look",
    )
