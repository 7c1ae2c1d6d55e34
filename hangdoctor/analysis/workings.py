"""Questions to one suspect about what it does: known work, a count in the log, computing or only spinning."""

from __future__ import annotations

import re

from hangdoctor.analysis.activity import (
    SPIN_RECURRENCE,
    WORK_SAMPLES,
    is_spin,
    walks_through_memory,
)
from hangdoctor.analysis.charges import (
    CPU_PHASE_SHARE,
    SLOW_CAUSES,
    Charge,
    demand,
    movement,
    moving_after_all,
    phase_cause,
    stillness_s,
    stuck,
    undecided,
)
from hangdoctor.analysis.findings import Finding
from hangdoctor.analysis.log_moves import LogMove
from hangdoctor.analysis.progress import MEMORY_GROWS, PAGES_UNIT, describe_progress
from hangdoctor.analysis.requests import step_lasts
from hangdoctor.analysis.standing import is_idle
from hangdoctor.case import Movement, ThreadTrack
from hangdoctor.model import Activity, SpinSample
from hangdoctor.report import Cause, Confidence, Kind, Progress, ProgressClass


def its_log_advances(charge: Charge) -> Finding | None:
    log = charge.log
    if log is None or log.kind is not ProgressClass.PROOF:
        return None
    if log.pids and charge.suspect.member.pid not in log.pids:  # a log given with --log names no writer
        return None
    if log.host not in (None, charge.suspect.member.key.host):
        return None
    cause = phase_cause(charge.suspect)
    if cause not in SLOW_CAUSES and log.cause is not None:
        cause = Cause(log.cause)
    if is_idle(charge.suspect.member):  # met between two steps: the count is of what the server brings forth
        if any(step_lasts(member) for member in charge.case.principals):
            return None  # a rate that is logged every 10 s still speaks of the time before the hang
        because = f"it waits for the next step, and its log counts on: {log.text}"
        return Finding(Kind.READY, Confidence.LIKELY, Cause.SERVING, because)
    if _may_be_anothers(charge, log):
        return None
    progress = charge.suspect.member.progress
    if progress.kind is not ProgressClass.PROOF:
        progress = Progress(ProgressClass.PROOF, f"advances a count in its log: {log.text}")
    return Finding(
        Kind.SLOW,
        Confidence.LIKELY,
        cause if cause in SLOW_CAUSES else Cause.LAGGARD,
        f"it {describe_progress(progress)}",
        (charge.suspect,),
        progress,
    )


def _may_be_anothers(charge: Charge, log: LogMove) -> bool:
    """Whether a line of a log that ranks share is no word of this suspect: it names another process, or the suspect
    stands still and another rank that writes there moves. (vLLM's bar is that of rank 0, and names nobody.)
    """
    member = charge.suspect.member
    named = _PID.search(log.text or "")
    if named is not None:
        return int(named[1]) not in (member.pid, member.last.ns_pid)
    if movement(charge.suspect) is not Movement.STILL or member.progress.kind not in _NOTHING_NEW:
        return False
    writers = [m for m in charge.case.ranks if m is not member and (not log.pids or m.pid in log.pids)]
    return any(
        m.progress.kind is ProgressClass.PROOF or (m.lead is not None and m.lead.movement is Movement.MOVING)
        for m in writers
    )


def is_in_known_phase(charge: Charge) -> Finding | None:
    cause = phase_cause(charge.suspect)
    if cause not in SLOW_CAUSES or charge.suspect.track is None:
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
    if movement(charge.suspect) is Movement.MOVING:
        share = max(demand(charge.suspect), charge.suspect.member.cpu_share or 0.0)
        if share >= CPU_PHASE_SHARE:
            because = f"lines change, at {100 * share:.0f} % of a core"
            return Finding(Kind.SLOW, Confidence.LIKELY, cause, because, (charge.suspect,), progress)
        if progress.kind is ProgressClass.WEAK and cause is not Cause.INITIALIZING_NCCL:
            because = "the stack changes between looks"
            return Finding(Kind.SLOW, Confidence.POSSIBLE, cause, because, (charge.suspect,), progress)
    if movement(charge.suspect) is Movement.BUSY and progress.kind is ProgressClass.WEAK:
        because = f"it uses {100 * demand(charge.suspect):.0f} % of a core and {progress.what}"
        return Finding(Kind.SLOW, Confidence.LIKELY, cause, because, (charge.suspect,), progress)
    if _computes_in_one_place(charge):
        because = f"{100 * demand(charge.suspect):.0f} % of a core, and its registers do not repeat as a spin's would"
        return Finding(Kind.SLOW, Confidence.LIKELY, cause, because, (charge.suspect,), progress)
    if _nobody_will_notify(charge):
        because = "it waits to be notified by another thread of its process, and none of them is at work"
        return stuck(charge, cause, because)
    return _within_budget(charge, cause)


_PID = re.compile(r"^\([^()]*\bpid=(\d+)\)")
"""vLLM puts the process in front of what it logs."""
_AT_REST = frozenset({Activity.WAIT_WORK, Activity.WAIT_EVENT, Activity.WAIT_LOCK, Activity.TIMED_SLEEP})


_NOTHING_NEW = (ProgressClass.NONE, ProgressClass.ACTIVITY)
"""Watchdogs in C use some CPU for ever."""


def _nobody_will_notify(charge: Charge) -> bool:
    """An Event or a Condition without a timeout, in whose process every other Python thread rests, too.

    The budget is for what a phase does out of sight, in NCCL, on a GPU, on a disk. This is not that: whoever notifies
    is a thread of the same process, and a rest of all of them does not end by itself.
    """
    track, member = charge.suspect.track, charge.suspect.member
    call = track.last.thread.syscall if track else None
    if (
        track is None
        or track.movement is not Movement.STILL
        or track.last.activity is not Activity.WAIT_EVENT
    ):
        return False
    if call is None or call.is_timed is not False or member.progress.kind not in _NOTHING_NEW:
        return False
    others = [t for t in member.threads if t is not track and t.last.thread.stack is not None]
    return all(t.movement is Movement.STILL and t.last.activity in _AT_REST for t in others)


def _computes_in_one_place(charge: Charge) -> bool:
    """A long loop in C: all looks meet the same line, and sampling says that it is no tight spin."""
    track = charge.suspect.track
    spin = _best_sample(track) if track is not None else None
    return (
        movement(charge.suspect) is Movement.BUSY
        and spin is not None
        and spin.samples >= WORK_SAMPLES
        and spin.recurrence < SPIN_RECURRENCE / 2
    )


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
    return undecided(
        charge,
        cause,
        f"no proof of progress in {still:.0f} s, which is within its budget of {budget:.0f} s",
        "any byte read, line changed or memory grown in a longer look",
        command=f"hangdoctor attach {{pid}} --snapshots 3 --interval {max(15, round(budget / 2))}",
    )


def _best_sample(track: ThreadTrack) -> SpinSample | None:
    """Of the samples before each look the largest: on a starved host a thread may hardly run in the last pause."""
    samples = [v.thread.spin for v in track.views if v is not None and v.thread.spin is not None]
    return max(samples, key=lambda spin: spin.samples, default=None)


def spins(charge: Charge) -> Finding | None:
    track = charge.suspect.track
    if track is None or track.last.activity not in (Activity.RUN, Activity.SPIN):
        return None
    if not is_spin(_best_sample(track)):
        return None
    return Finding(
        Kind.HUNG,
        Confidence.LIKELY,
        Cause.SPIN,
        "it spins: its registers repeat the same few values",
        (charge.suspect,),
    )


def makes_proven_progress(charge: Charge) -> Finding | None:
    progress = charge.suspect.member.progress
    if (
        not charge.is_waited_for
        or progress.kind is not ProgressClass.PROOF
        or charge.suspect.track is not charge.suspect.member.lead
    ):
        return None
    return moving_after_all(charge, progress)


def computes(charge: Charge) -> Finding | None:
    """Busy outside everything that is known: computing or spinning."""
    track = charge.suspect.track
    if track is None or demand(charge.suspect) < CPU_PHASE_SHARE:
        return None
    busy = f"it uses {100 * demand(charge.suspect):.0f} % of a core"
    because = None if _hoards(charge) else _work_shown(track, busy)
    if because is not None:
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


def _hoards(charge: Charge) -> bool:
    """Its memory grows: whoever fills a list without end walks through ever new pages, too."""
    progress = charge.suspect.member.progress
    return progress.kind is ProgressClass.WEAK and progress.what == MEMORY_GROWS


def _work_shown(track: ThreadTrack, busy: str) -> str | None:
    """Why a busy thread computes rather than spins; ``None`` when that cannot be told."""
    spin = _best_sample(track)
    if spin is None or spin.recurrence >= SPIN_RECURRENCE / 2:
        return None
    walks = walks_through_memory(spin)
    if walks:
        return (
            f"{busy} and its registers lead through {spin.pages} pages of memory, ever new ones: it computes"
        )
    if walks is None and track.movement is Movement.MOVING:
        return f"{busy}, its stack changes and its registers do not repeat: it computes"
    return None


def takes_pages_in(charge: Charge) -> Finding | None:
    """Its data does not fit into memory: every few instructions it waits for a page, and gets it."""
    track, progress = charge.suspect.track, charge.suspect.member.progress
    if not charge.is_waited_for or track is None or track is not charge.suspect.member.lead:
        return None
    if progress.unit != PAGES_UNIT or track.movement is Movement.STILL:
        return None
    load = charge.case.capture.snapshots[-1].load
    pressure = load.memory_pressure_percent if load is not None else None
    because = f"it {progress.what}, {progress.rate:.0f} a second: what it works on does not fit into memory"
    if pressure:
        because += f" (memory pressure {pressure:.0f} %)"
    return Finding(Kind.SLOW, Confidence.LIKELY, Cause.LAGGARD, because, (charge.suspect,), progress)
