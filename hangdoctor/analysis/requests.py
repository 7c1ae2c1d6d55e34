"""Whether a worker takes one request after the other, in a server of which nothing is known."""

from __future__ import annotations

from hangdoctor.analysis.progress import LEAST_MESSAGES_S
from hangdoctor.analysis.standing import stays_in
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
    rates = _message_rates(member)
    return (
        _is_always_in_a_step(member)
        and bool(rates)
        and rates[-1] is not None
        and rates[-1] < LEAST_MESSAGES_S
    )


def _is_always_in_a_step(member: Member) -> bool:
    return stays_in(member.lead, Stage.SERVING)


def _always_reads(member: Member) -> bool:
    rates = _message_rates(member)
    return bool(rates) and all(rate is not None and rate >= LEAST_MESSAGES_S for rate in rates)


def _message_rates(member: Member) -> list[float | None]:
    """Calls of read a second between each two looks; ``None`` where nobody counted."""
    windows = member.lead.windows if member.lead else ()
    return [
        _message_rate(before, after, window.seconds)
        for before, after, window in zip(member.looks, member.looks[1:], windows, strict=False)
    ]


def _message_rate(before: Process | None, after: Process | None, seconds: float) -> float | None:
    if before is None or after is None or before.io is None or after.io is None or not seconds:
        return None
    if before.io.read_calls is None or after.io.read_calls is None:
        return None
    return (after.io.read_calls - before.io.read_calls) / seconds
