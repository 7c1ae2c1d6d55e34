"""Threads that hold what each other wants."""

from __future__ import annotations

from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.waits import Edge, EdgeKind, Node
from hangdoctor.report import Cause, Confidence, Kind, Strength


def check(situation: Situation) -> Finding | None:
    """Fires on a cycle of lock edges; the weakest edge sets the confidence."""
    for cycle in situation.graph.cycles:
        nodes = set(cycle)
        edges = [e for e in situation.graph.edges if e.waiter in nodes and e.holder in nodes]
        if not edges or any(e.kind is not EdgeKind.LOCK for e in edges):
            continue
        weakest = max(edges, key=lambda e: list(Strength).index(e.strength)).strength
        confidence = Confidence.POSSIBLE if weakest is Strength.POSSIBLE else Confidence.CERTAIN
        if situation.case.look_count < 2:
            confidence = Confidence.LIKELY
        return Finding(
            Kind.HUNG, confidence, Cause.LOCK_CYCLE, _story(situation, edges), _suspects(situation, cycle)
        )
    return None


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
    summary="Threads wait for locks in a circle: none of them can ever go on.",
    refuted_by="any of the threads leaving its wait in a later look (a time-out, a signal handler)",
    check=check,
)
