"""The wait-for graph: threads and processes as nodes, "cannot go on before" as edges, and where the paths end.

An idle wait (a worker waiting for its next request) is no edge: nobody owes it anything. That is why a worker
that idles while its peer stands in a collective becomes a sink, the culprit, and not a victim of the engine.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from hangdoctor.analysis.cycles import find_cycles
from hangdoctor.case import Key, Member
from hangdoctor.report import Strength


class EdgeKind(str, Enum):
    """What sort of wait an edge is."""

    LOCK = "lock"
    COLLECTIVE = "collective"
    GPU = "gpu"
    PHASE = "phase"
    LOCK_FILE = "lock file"
    CHILD = "child"
    CONNECTION = "connection"


class Node(NamedTuple):
    """A thread of a process; ``tid`` is ``None`` for a process whose threads were not seen."""

    key: Key
    tid: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """``waiter`` cannot go on before ``holder`` acts; ``holder`` is ``None`` when it is not among what was seen."""

    kind: EdgeKind
    waiter: Node
    holder: Node | None
    reason: str
    object: str | None
    strength: Strength


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """All edges, and the nodes at which waiting ends."""

    edges: tuple[Edge, ...]
    sinks: tuple[Node, ...]
    """Nodes that something waits for and that wait for nobody themselves."""
    cycles: tuple[tuple[Node, ...], ...]
    """Groups of nodes that wait for each other."""

    def edges_from(self, node: Node) -> tuple[Edge, ...]:
        """The edges that start at ``node``."""
        return tuple(e for e in self.edges if e.waiter == node)

    def waiters_on(self, node: Node) -> tuple[Node, ...]:
        """Nodes that reach ``node``, directly or through others."""
        incoming: dict[Node, list[Node]] = defaultdict(list)
        for edge in self.edges:
            if edge.holder is not None:
                incoming[edge.holder].append(edge.waiter)
        found: dict[Node, None] = {}
        queue = deque(incoming[node])
        while queue:
            waiter = queue.popleft()
            if waiter != node and waiter not in found:
                found[waiter] = None
                queue.extend(incoming[waiter])
        return tuple(found)


def lead_node(member: Member) -> Node:
    """The node that stands for a process."""
    return Node(member.key, member.lead.tid if member.lead else None)


def build_graph(found: Iterable[Edge]) -> WaitGraph:
    """The graph of ``found``, its sinks and its cycles."""
    edges = tuple(_unique(found))
    graph: dict[Node, list[Node]] = defaultdict(list)
    for edge in edges:
        if edge.holder is not None:
            graph[edge.waiter].append(edge.holder)
    cycles = find_cycles(graph)
    in_cycle = {node for cycle in cycles for node in cycle}
    # Who waits for another host is the end of what can be seen here.
    waiting = {e.waiter for e in edges if e.holder is not None or e.kind is not EdgeKind.CONNECTION}
    held = [e.holder for e in edges if e.holder is not None]
    sinks = [node for node in dict.fromkeys(held) if node not in waiting and node not in in_cycle]
    return WaitGraph(edges, tuple(sinks), cycles)


def _unique(edges: Iterable[Edge]) -> list[Edge]:
    best: dict[tuple[Node, Node | None], Edge] = {}
    order = (Strength.CERTAIN, Strength.LIKELY, Strength.POSSIBLE)
    for edge in edges:
        known = best.get((edge.waiter, edge.holder))
        if known is None or order.index(edge.strength) < order.index(known.strength):
            best[(edge.waiter, edge.holder)] = edge
    return list(best.values())
