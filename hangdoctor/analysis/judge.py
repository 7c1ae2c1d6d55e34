"""Is this one suspect stuck, slow, or not to be told? The question that people get wrong.

Proof of progress makes it slow. No progress makes it hung only beyond the budget of its phase, or when what it
waits for is known never to come. A CPU that is merely busy proves neither.
"""

from __future__ import annotations

from collections.abc import Callable

from hangdoctor.analysis import blockages, polling, workings
from hangdoctor.analysis.charges import Charge, movement
from hangdoctor.analysis.findings import Finding, Suspect
from hangdoctor.analysis.requests import takes_requests
from hangdoctor.analysis.standing import waits_for_work_throughout
from hangdoctor.case import Movement, ThreadTrack
from hangdoctor.knowledge.catalogue import Phase, Stage
from hangdoctor.report import ProgressClass

_QUESTIONS: tuple[Callable[[Charge], Finding | None], ...] = (
    blockages.compiles,
    workings.its_log_advances,
    blockages.lacks_its_lock_file,
    blockages.waits_for_lock,
    blockages.holds_gil,
    blockages.holds_lock,
    workings.is_in_known_phase,
    blockages.waits_for_gpu,
    blockages.waits_for_storage,
    workings.spins,
    workings.makes_proven_progress,
    workings.takes_pages_in,
    workings.computes,
    blockages.idles_while_waited_for,
    polling.delegates,
    blockages.waits_for_another_host,
    blockages.stands_still,
    polling.polls,
    blockages.single_look,
)


def judge(charge: Charge) -> Finding | None:
    """What can be said of one suspect; ``None`` when nothing about it is remarkable (it serves)."""
    if _serves(charge.suspect) or (not charge.is_waited_for and takes_requests(charge.suspect.member)):
        return None
    for question in _QUESTIONS:
        finding = question(charge)
        if finding is not None:
            return finding
    return None


def _serves(suspect: Suspect) -> bool:
    """Inside a serving phase and moving: its own step, however long a look at it may catch the same place."""
    member = suspect.member
    phase = member.phase or _phase_before(suspect.track)
    if phase is None or phase.stage not in (Stage.SERVING, Stage.IDLE):
        return False
    if phase.waits_for == "storage":  # a checkpoint being saved: the others wait for that, too
        return False
    if member.progress.kind is ProgressClass.PROOF:
        return True
    if member.phase is None:
        return False
    return movement(suspect) is Movement.MOVING and not waits_for_work_throughout(suspect.track)


def _phase_before(track: ThreadTrack | None) -> Phase | None:
    """The phase of an earlier look, where the last one got no whole stack: a busy rank moves under any reader's hands.

    Decided two of eleven attaches to a server under load, each time with the collectives and the log moving on.
    """
    if track is None:
        return None
    stack = track.last.thread.stack
    if stack is not None and not stack.is_torn:
        return None
    return next((phase for phase in reversed(track.phases) if phase is not None), None)
