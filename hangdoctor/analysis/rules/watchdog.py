"""A timer of the job ran out and nothing else explains it: hung, without a culprit.

The processes whose watchdogs fire are those that wait. Naming them would blame the victims.
"""

from __future__ import annotations

from hangdoctor.analysis.findings import Finding, Rule, Situation
from hangdoctor.analysis.timers import alarm_of
from hangdoctor.report import Cause, Confidence, Kind


def check(situation: Situation) -> Finding | None:
    """Fires when a watchdog or a collective's time-out ran out and no step was logged after it."""
    alarm = alarm_of(situation.case)
    if alarm is None:
        return None
    case = situation.case
    waiting = tuple(m for m in case.ranks if m.label in alarm.labels)
    phases = {p.waits_for for m in waiting for p in (m.aspect, m.phase) if p is not None}
    return Finding(
        Kind.HUNG,
        Confidence.LIKELY,
        Cause.MISSING_PEER if "peers" in phases else None,
        f"{alarm.text}; what was seen does not tell who holds it up",
        decider="stacks of all ranks from the same moment",
        command="hangdoctor attach {pid}",
        waiting=waiting,
        needs_no_second_look=True,
    )


RULE = Rule(
    id="watchdog",
    order=60,
    summary="A watchdog or a collective's time-out ran out: the job itself has measured that nothing went on.",
    refuted_by="steps in the log after the time-out",
    check=check,
)
