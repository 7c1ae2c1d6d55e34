"""A member that died, or never came, will not answer those who wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.folding import fold_labels, fold_numbers
from hangdoctor.analysis.standing import is_dead, is_dying, is_settled, stays_in
from hangdoctor.case import Case, Member
from hangdoctor.knowledge.catalogue import RoleKind, Stage
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
    return _missing(case) or _left_alone(case)


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
    """Of several deaths the first is the cause: what ends during the looks is mostly torn down after it."""
    case = situation.case
    first = min(_died_at(m) for m in dead)
    if first > 0 and (absent := _absent_ranks(case, [m for m in case.ranks if m.looks[0] is not None])):
        ended = fold_labels(m.label for m in dead)
        because = f"rank {absent} was missing from the first look on; {ended} ended after it"
        return Finding(Kind.HUNG, Confidence.LIKELY, Cause.DEAD_PROCESS, because)
    dead = [m for m in dead if _died_at(m) == first]
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


def _died_at(member: Member) -> int:
    """Index of the first look at which it was dead, dying or gone."""
    seen = False
    for index, look in enumerate(member.looks):
        if look is None and seen:
            return index
        if look is not None and (look.state in ("Z", "X", "x") or is_dying(look)):
            return index
        seen = seen or look is not None
    return len(member.looks)


def _absent_ranks(case: Case, present: Sequence[Member]) -> str:
    """Numbers of the ranks that should be here and are not among ``present``; empty when none is known to lack."""
    expected = case.expected_local or (case.expected_world if len(case.capture.hosts) > 1 else None)
    if expected is None or not present or len(present) >= expected:
        return ""
    ranks = {m.rank.global_rank if m.rank else None for m in present}
    if expected == case.expected_world and None not in ranks:
        # Local numbers say nothing here: every host has a 0.
        return fold_numbers(n for n in range(expected) if n not in ranks) or "?"
    numbers = {
        v for m in present if m.rank for v in (m.rank.tp, m.rank.local, m.rank.global_rank) if v is not None
    }
    return fold_numbers(n for n in range(expected) if n not in numbers) or "?"


_HOW = {"Z": "is a zombie: it died and its parent has not reaped it", "X": "is dead"}


_WAITS_FOR_ALL = frozenset({Activity.WAIT_COLLECTIVE, Activity.WAIT_PEER, Activity.WAIT_GPU})


def _missing(case: Case) -> Finding | None:
    """Fewer ranks here than the command line or the environment promises, while the others wait for all."""
    ranks = [m for m in case.members if m.kind is RoleKind.RANK]
    absent = _absent_ranks(case, ranks)
    waiting = [m for m in ranks if m.lead is not None and m.lead.last.activity in _WAITS_FOR_ALL]
    if not absent or len(waiting) < len(ranks) or not all(is_settled(m.lead) for m in waiting):
        return None
    expected = case.expected_local or case.expected_world
    return Finding(
        Kind.HUNG,
        Confidence.LIKELY,
        Cause.DEAD_PROCESS,
        f"{expected} ranks are expected here and {len(ranks)} exist; missing: {absent.replace('?', 'unknown')}",
    )


def _left_alone(case: Case) -> Finding | None:
    """A front end that takes requests, with nobody behind it: whoever computes ended before the first look.

    A client that does not close its connection keeps such a front end alive for ever. While a server starts, its
    front end is in a start-up phase; and of a pasted stack nobody knows what else there was.
    """
    fronts = case.principals
    if case.capture.origin != "live" or not case.expected_local or not fronts:
        return None
    # At every look: a server that is torn down is in a phase of its end.
    if not all(m.role.is_front_end and stays_in(m.lead, Stage.IDLE, Stage.SERVING) for m in fronts):
        return None
    words = [" ".join(process.command) for look in case.capture.snapshots for process in look.processes]
    if any(pattern.search(line) for m in fronts for pattern in m.role.remote_ranks for line in words):
        return None
    return Finding(
        Kind.HUNG,
        Confidence.LIKELY,
        Cause.DEAD_PROCESS,
        f"{fold_labels(m.label for m in fronts)} takes requests, and none of the {case.expected_local} ranks "
        "behind it exists",
    )


RULE = Rule(
    id="dead",
    order=20,
    summary="A rank or supervisor is gone or a zombie, or fewer ranks exist than were started.",
    refuted_by="the process being alive, or the job being in the middle of an orderly shutdown",
    check=check,
)
