"""Nothing is owed to anybody: the job idles, or serves and moves."""

from __future__ import annotations

from hangdoctor.analysis.findings import Finding, Rule, Situation
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.analysis.requests import takes_requests
from hangdoctor.analysis.standing import is_idle, is_stopped
from hangdoctor.case import Case, Member, Movement
from hangdoctor.knowledge.catalogue import RoleKind, Stage
from hangdoctor.report import Cause, Confidence, Kind, ProgressClass


def check(situation: Situation) -> Finding | None:
    """Fires when every rank and supervisor idles or serves, and at least one was really seen to."""
    case = situation.case
    members = [m for m in case.principals if m.lead is not None]
    if not members or any(is_stopped(m) for m in members) or _is_headless(case):
        return None
    idle = [m for m in members if is_idle(m)]
    serving = [m for m in members if _serves(m) and (not is_idle(m) or _served_before(m))]
    if any(m not in idle and m not in serving for m in members):
        return None
    confidence = Confidence.LIKELY if case.look_count > 1 else Confidence.POSSIBLE
    if serving:
        because = (
            f"{fold_labels(m.label for m in serving)} moving through requests: the steps change between looks"
        )
        return Finding(Kind.READY, confidence, Cause.SERVING, because)
    if case.look_count > 1 and all(m.lead is None or m.lead.movement is not Movement.UNKNOWN for m in idle):
        confidence = Confidence.CERTAIN
    because = f"{fold_labels(m.label for m in idle)} waiting for work, each in its own main loop"
    return Finding(Kind.READY, confidence, Cause.IDLE, because)


def _is_headless(case: Case) -> bool:
    """A front end without anything behind it: nobody is there to compute an answer."""
    return case.server in ("vllm", "sglang") and not case.ranks and bool(case.expected_local)


def _served_before(member: Member) -> bool:
    """Caught between two steps at the last look, inside a step at an earlier one."""
    phases = member.lead.phases if member.lead else ()
    return member.kind is RoleKind.RANK and any(p is not None and p.stage is Stage.SERVING for p in phases)


def _serves(member: Member) -> bool:
    phase, lead = member.phase, member.lead
    if lead is None:
        return False
    is_proven = member.progress.kind is ProgressClass.PROOF
    if is_proven and member.progress.unit == "collectives/s":
        return True  # a training loop: whatever its frames are called, collectives finish
    if takes_requests(member):
        return True
    if phase is None or phase.stage not in (Stage.SERVING, Stage.IDLE):
        return False
    return lead.movement in (Movement.MOVING, Movement.CYCLING) or is_proven


RULE = Rule(
    id="ready",
    order=70,
    summary="Every rank and supervisor waits for work or moves through requests.",
    refuted_by="a request that does not come back although it was accepted",
    check=check,
)
