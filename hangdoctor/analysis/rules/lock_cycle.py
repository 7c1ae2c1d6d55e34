"""Threads that hold what each other wants, and processes of which each reads what only another of them could send."""

from __future__ import annotations

from hangdoctor.analysis.describe import name_member
from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.waits import Edge, EdgeKind, Node
from hangdoctor.case import Movement
from hangdoctor.report import Cause, Confidence, Kind, Strength


def check(situation: Situation) -> Finding | None:
    """Fires on a cycle of locks; the weakest edge sets the confidence. On one of connections over two looks only."""
    for cycle in situation.graph.cycles:
        nodes = set(cycle)
        edges = [e for e in situation.graph.edges if e.waiter in nodes and e.holder in nodes]
        kinds = {e.kind for e in edges}
        if not edges or not kinds <= {EdgeKind.LOCK, EdgeKind.CONNECTION}:
            continue
        if EdgeKind.CONNECTION in kinds:
            finding = _reading_in_a_circle(situation, cycle, edges)
            if finding is not None:
                return finding
            continue
        weakest = max(edges, key=lambda e: list(Strength).index(e.strength)).strength
        confidence = Confidence.POSSIBLE if weakest is Strength.POSSIBLE else Confidence.CERTAIN
        if situation.case.look_count < 2:
            confidence = Confidence.LIKELY
        return Finding(
            Kind.HUNG, confidence, Cause.LOCK_CYCLE, _story(situation, edges), _suspects(situation, cycle)
        )
    return None


def _reading_in_a_circle(situation: Situation, cycle: tuple[Node, ...], edges: list[Edge]) -> Finding | None:
    """A message may be on its way at one look; nobody who has moved since is part of a deadlock."""
    suspects = _suspects(situation, cycle)
    still = all(s.track is not None and s.track.movement is Movement.STILL for s in suspects)
    if not still or any(e.strength is Strength.POSSIBLE for e in edges):
        return None
    names = {m.key: name_member(m) for m in situation.case.members}
    steps = [
        f"{names.get(e.waiter.key, '?')} waits {e.reason}{f' on {e.object}' if e.object else ''} for "
        f"{names.get(e.holder.key, '?') if e.holder else '?'}"
        for e in edges
    ]
    because = f"deadlock: {'; '.join(steps)}"
    return Finding(Kind.HUNG, Confidence.LIKELY, Cause.LOCK_CYCLE, because, suspects)


def _suspects(situation: Situation, cycle: tuple[Node, ...]) -> tuple[Suspect, ...]:
    members = {m.key: m for m in situation.case.members}
    found = []
    for node in cycle:
        member = members[node.key]
        found.append(Suspect(member, next((t for t in member.threads if t.tid == node.tid), member.lead)))
    return tuple(found)


def _story(situation: Situation, edges: list[Edge]) -> str:
    names = {
        Node(m.key, t.tid): t.last.thread.name or t.last.thread.comm or str(t.tid)
        for m in situation.case.members
        for t in m.threads
    }
    steps = [
        f"thread {names.get(e.waiter, '?')} waits for {e.object}, held by "
        f"{names.get(e.holder, '?') if e.holder else '?'}"
        for e in edges
    ]
    return "deadlock: " + "; ".join(steps)


RULE = Rule(
    id="lock-cycle",
    order=30,
    summary="Threads wait for locks, or processes for messages, in a circle: none of them can ever go on.",
    refuted_by="any of the threads leaving its wait in a later look (a time-out, a signal handler)",
    check=check,
)
