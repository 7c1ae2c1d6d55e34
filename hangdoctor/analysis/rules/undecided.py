"""When no other rule speaks: say so, and what single observation would decide."""

from __future__ import annotations

from hangdoctor.analysis.findings import Finding, Rule, Situation
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.model import Activity
from hangdoctor.report import Confidence, Kind


def check(situation: Situation) -> Finding | None:
    """Always speaks."""
    case = situation.case
    if not case.members:
        because = "no process could be looked at"
    elif all(m.lead is None or m.lead.last.thread.stack is None for m in case.principals):
        because = "no Python stack could be read: only the kernel's view is known"
    else:
        moving = [m for m in case.principals if m.lead and m.lead.last.activity is Activity.RUN]
        because = (
            f"{fold_labels(m.label for m in moving)} runs, but nothing shows what for"
            if moving
            else "no rank is stuck in a way that is known, and none shows progress"
        )
    decider = "a second look" if case.look_count < 2 else "a longer look"
    return Finding(
        Kind.UNKNOWN,
        Confidence.POSSIBLE,
        None,
        because,
        situation.suspects if situation.is_waited_for else (),
        decider=decider,
        command="hangdoctor attach {pid} --interval 30",
    )


RULE = Rule(
    id="undecided",
    order=99,
    summary="Nothing seen proves a hang, progress or readiness.",
    refuted_by="more evidence",
    check=check,
)
