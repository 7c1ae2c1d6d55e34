"""Whether a worker takes one request after the other, in a server of which nothing is known."""

from __future__ import annotations

from hangdoctor.analysis.progress import LEAST_MESSAGES_S
from hangdoctor.case import Member, Movement
from hangdoctor.knowledge.catalogue import Stage
from hangdoctor.model import Activity, Process


def takes_requests(member: Member) -> bool:
    """Met in its queue at one look and at work at another, while messages came in during every pause.

    A worker that is stuck in a request has stood in its queue before, too; but it reads nothing any more.
    """
    lead = member.lead
    if lead is None or lead.movement not in (Movement.MOVING, Movement.CYCLING) or None in lead.views:
        return False
    if not any(view is not None and view.activity is Activity.WAIT_WORK for view in lead.views):
        return False
    return _always_reads(member)


def finishes_steps(member: Member) -> bool:
    """Inside a step at every look, and messages came in during every pause: each time it was another step.

    A tiny model's worker is met in its queue at three looks of three. In every recorded hang the supervisor inside
    the step read nothing.
    """
    return _is_always_in_a_step(member) and _always_reads(member)


def step_lasts(member: Member) -> bool:
    """Inside a step at every look, and no message came in during the last pause: it is the same step."""
    windows = member.lead.windows if member.lead else ()
    if not windows or not _is_always_in_a_step(member):
        return False
    before, after = member.looks[-2], member.looks[-1]
    if (
        before is None
        or after is None
        or before.io is None
        or after.io is None
        or after.io.read_calls is None
    ):
        return False
    return not _reads(before, after, windows[-1].seconds)


def _is_always_in_a_step(member: Member) -> bool:
    phases = member.lead.phases if member.lead else ()
    return bool(phases) and all(phase is not None and phase.stage is Stage.SERVING for phase in phases)


def _always_reads(member: Member) -> bool:
    windows = member.lead.windows if member.lead else ()
    return bool(windows) and all(
        _reads(before, after, window.seconds)
        for before, after, window in zip(member.looks[:-1], member.looks[1:], windows, strict=True)
    )


def _reads(before: Process | None, after: Process | None, seconds: float) -> bool:
    if before is None or after is None or before.io is None or after.io is None or not seconds:
        return False
    if before.io.read_calls is None or after.io.read_calls is None:
        return False
    return (after.io.read_calls - before.io.read_calls) / seconds >= LEAST_MESSAGES_S
