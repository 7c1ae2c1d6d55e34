"""A member that died, or never came, will not answer those who wait for it."""

from __future__ import annotations

from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.folding import fold_labels, fold_numbers
from hangdoctor.analysis.standing import is_dead, is_settled
from hangdoctor.case import Case, Member
from hangdoctor.knowledge.catalogue import RoleKind
from hangdoctor.model import Activity
from hangdoctor.report import Cause, Confidence, Kind


def check(situation: Situation) -> Finding | None:
    """Fires when a rank or supervisor is gone or a zombie while others live, or a rank number is missing."""
    case = situation.case
    orphans = [m for m in case.ranks if case.server in _HAS_PARENT and _was_orphaned(m)]
    if orphans:
        return _orphaned(orphans)
    dead = [m for m in case.principals if is_dead(m)]
    if dead:
        return _died(situation, dead)
    return _missing(case)


_HAS_PARENT = ("sglang", "vllm")
"""Servers whose ranks are always children of another of their processes."""


def _was_orphaned(member: Member) -> bool:
    """Handed to pid 1 while it still lived: whatever ended it later is a consequence."""
    return any(look is not None and look.ppid == 1 and look.state != "Z" for look in member.looks)


def _orphaned(orphans: list[Member]) -> Finding:
    labels = fold_labels(m.label for m in orphans)
    return Finding(
        Kind.HUNG,
        Confidence.LIKELY,
        Cause.DEAD_PROCESS,
        f"the parent of {labels} has died: they were handed to pid 1",
    )


def _died(situation: Situation, dead: list[Member]) -> Finding:
    waiting = any(situation.graph.waiters_on(s.node) for s in (Suspect(m, m.lead) for m in dead))
    labels = fold_labels(m.label for m in dead)
    how = _HOW.get(dead[0].last.state or "", "is being torn down") if not dead[0].is_gone else "has vanished"
    return Finding(
        Kind.HUNG,
        Confidence.CERTAIN if waiting else Confidence.LIKELY,
        Cause.DEAD_PROCESS,
        f"{labels} {how}",
        tuple(Suspect(m, m.lead) for m in dead),
    )


_HOW = {"Z": "is a zombie: it died and its parent has not reaped it", "X": "is dead"}


_WAITS_FOR_ALL = frozenset({Activity.WAIT_COLLECTIVE, Activity.WAIT_PEER, Activity.WAIT_GPU})


def _missing(case: Case) -> Finding | None:
    """Fewer ranks here than the command line or the environment promises, while the others wait for all."""
    expected = case.expected_local or (case.expected_world if len(case.capture.hosts) > 1 else None)
    ranks = [m for m in case.members if m.kind is RoleKind.RANK]
    if expected is None or not ranks or len(ranks) >= expected:
        return None
    waiting = [m for m in ranks if m.lead is not None and m.lead.last.activity in _WAITS_FOR_ALL]
    if len(waiting) < len(ranks) or not all(is_settled(m.lead) for m in waiting):
        return None
    present = {
        v for m in ranks if m.rank for v in (m.rank.tp, m.rank.local, m.rank.global_rank) if v is not None
    }
    absent = fold_numbers(n for n in range(expected) if n not in present)
    return Finding(
        Kind.HUNG,
        Confidence.LIKELY,
        Cause.DEAD_PROCESS,
        f"{expected} ranks are expected here and {len(ranks)} exist; missing: {absent or 'unknown'}",
    )


RULE = Rule(
    id="dead",
    order=20,
    summary="A rank or supervisor is gone or a zombie, or fewer ranks exist than were started.",
    refuted_by="the process being alive, or the job being in the middle of an orderly shutdown",
    check=check,
)
