"""A process that a tool could not stop to read, although its siblings could be: it is not where they are.

Attaching stops the target first. The kernel refuses or never completes that for a process in an uninterruptible wait,
a stopped one, or one that is traced already; with the rights that sufficed for its siblings nothing else is left.
"""

from __future__ import annotations

from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.analysis.standing import in_collective
from hangdoctor.case import Case, Member
from hangdoctor.model import Activity
from hangdoctor.report import Cause, Confidence, Kind

_WAITS = (Activity.WAIT_COLLECTIVE, Activity.WAIT_PEER)


def check(situation: Situation) -> Finding | None:
    """Fires when an attach to a process was refused while others, which wait for their peers, could be read."""
    case = situation.case
    refused = _refused(case)
    waiting = [
        m for m in case.ranks if in_collective(m) or (m.lead is not None and m.lead.last.activity in _WAITS)
    ]
    read = [m for m in case.ranks if m.lead is not None and m.lead.last.thread.stack is not None]
    if not refused or not waiting or len(waiting) < len(read):
        return None
    one = len(refused) == 1
    because = (
        f"attaching was refused although {fold_labels(m.label for m in read)} could: "
        f"{'it is' if one else 'they are'} in an uninterruptible wait, stopped or traced, and not in the collective "
        "that the others wait in"
    )
    return Finding(
        Kind.HUNG,
        Confidence.POSSIBLE if len(waiting) < 2 and case.look_count < 2 else Confidence.LIKELY,
        Cause.LAGGARD,
        because,
        tuple(Suspect(m, m.lead) for m in refused),
        decider="its state: D is a driver or storage, T a signal, t a debugger",
        command=f"grep -E 'State|TracerPid' /proc/{refused[0].pid}/status",
        waiting=tuple(waiting),
    )


def _refused(case: Case) -> list[Member]:
    messages = [m for snapshot in case.capture.snapshots for m in snapshot.messages]
    pids = {
        m.fields.get("pid")
        for m in messages
        if m.kind == "py-spy.failed" and m.fields.get("reason") == "refused"
    }
    return [m for m in case.members if str(m.pid) in pids and not m.threads]


RULE = Rule(
    id="refused",
    order=43,
    summary="One process could not be attached to while its siblings, which wait for it, could.",
    refuted_by="missing rights for that process alone (another user, another container)",
    check=check,
)
