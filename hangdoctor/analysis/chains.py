"""The way along the waits to where they end, as one sentence.

``rank 0 waits for the lock file /x/lock; rank 1 (pid 41) holds it: it compiles in build (jit.py:7), cc1 at 97 % of a
core``. Members that wait for the same in the same way are one step.
"""

from __future__ import annotations

from collections import defaultdict

from hangdoctor.analysis.describe import doing, name_member, name_thread
from hangdoctor.analysis.findings import Finding, Situation, Suspect
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.analysis.waits import Edge, EdgeKind, Node
from hangdoctor.case import Case, Member
from hangdoctor.model import Process

_MOST_STEPS = 6


def tell_chain(situation: Situation, finding: Finding) -> str | None:
    """From those who wait first to the first suspect of ``finding``; ``None`` when nobody waits for it."""
    if not finding.suspects:
        return None
    end = finding.suspects[0]
    steps: list[str] = []
    known = {s.node for s in finding.suspects}
    frontier = {end.node: None}
    while frontier and len(steps) < _MOST_STEPS:
        arriving = [
            e for e in situation.graph.edges if e.holder in frontier and e.waiter not in known and e.holder
        ]
        steps += reversed(_tell(situation.case, arriving))
        frontier = dict.fromkeys(edge.waiter for edge in arriving)
        known.update(frontier)
    if not steps:
        return None
    return "; ".join([*reversed(steps), f"{_name(situation.case, end.node)} {doing(end)}{_below(end)}"])


def _tell(case: Case, edges: list[Edge]) -> list[str]:
    """One clause for all that wait for the same in the same way."""
    alike: dict[tuple[Node | None, EdgeKind, str, str | None], list[Node]] = defaultdict(list)
    for edge in edges:
        alike[edge.holder, edge.kind, edge.reason, edge.object].append(edge.waiter)
    return [
        _clause(case, waiters, holder, kind, reason, what)
        for (holder, kind, reason, what), waiters in alike.items()
        if holder is not None
    ]


def _clause(
    case: Case, waiters: list[Node], holder: Node, kind: EdgeKind, reason: str, what: str | None
) -> str:
    who = fold_labels(dict.fromkeys(_name(case, node) for node in waiters))
    verb = "waits" if len({_name(case, node) for node in waiters}) == 1 else "wait"
    whom = _name(case, holder)
    if kind is EdgeKind.LOCK_FILE:
        return f"{who} {verb} for {reason}{f' {what}' if what else ''}, which {whom} holds"
    if kind is EdgeKind.LOCK:
        return f"{who} {verb} for {reason.replace('it holds', f'that {whom} holds')} (at {what})"
    if kind is EdgeKind.CHILD:
        return f"{who} {verb} for its child {whom}"
    if kind is EdgeKind.CONNECTION:
        return f"{who} {verb} {reason}{f' on {what}' if what else ''} for {whom}"
    return (
        f"{who} {verb} {reason} for {whom}"
        if reason.startswith("in ")
        else f"{who} {verb} for {whom} ({reason})"
    )


def _name(case: Case, node: Node) -> str:
    """The process, with the thread where that is not the one which speaks for it."""
    member = case.by_key.get(node.key)
    if member is None:
        return f"pid {node.key.pid}"
    label = member.label if member.rank is not None else name_member(member)
    if member.lead is None or node.tid == member.lead.tid:
        return label
    track = next((t for t in member.threads if t.tid == node.tid), None)
    return f"{label} thread {name_thread(track) or node.tid}"


def _below(suspect: Suspect) -> str:
    """The build steps below it that work, with what they use of a core."""
    member = suspect.member
    shares = [(child, share) for child in member.compilers if (share := _share(member, child)) is not None]
    if not shares:
        return ""
    child, share = max(shares, key=lambda pair: pair[1])
    return f", its {child.comm or 'child'} (pid {child.pid}) at {100 * share:.0f} % of a core"


def _share(member: Member, child: Process) -> float | None:
    """CPU time of a build step since it started, over its age."""
    ended = child.taken_at
    if child.user_ticks is None or child.system_ticks is None or child.started_at is None or ended is None:
        return None
    age = ended - child.started_at
    return (child.user_ticks + child.system_ticks) / 100 / age if age > 0 else None
