"""Groups of nodes of a directed graph that reach each other (strongly connected components)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

N = TypeVar("N", bound=Hashable)


def find_cycles(graph: Mapping[N, Iterable[N]]) -> tuple[tuple[N, ...], ...]:
    """Components of more than one node (Kosaraju; iterative, because wait chains can be long)."""
    backwards: dict[N, list[N]] = {}
    for node, successors in graph.items():
        for successor in successors:
            backwards.setdefault(successor, []).append(node)
    assigned: set[N] = set()
    cycles: list[tuple[N, ...]] = []
    for root in reversed(_finish_order(graph)):
        if root in assigned:
            continue
        component: list[N] = []
        queue = [root]
        assigned.add(root)
        while queue:
            node = queue.pop()
            component.append(node)
            for predecessor in backwards.get(node, ()):
                if predecessor not in assigned:
                    assigned.add(predecessor)
                    queue.append(predecessor)
        if len(component) > 1:
            cycles.append(tuple(component))
    return tuple(cycles)


def _finish_order(graph: Mapping[N, Iterable[N]]) -> list[N]:
    order: list[N] = []
    seen: set[N] = set()
    for root in graph:
        if root in seen:
            continue
        seen.add(root)
        work = [(root, iter(graph.get(root, ())))]
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in seen:
                    seen.add(successor)
                    work.append((successor, iter(graph.get(successor, ()))))
                    break
            else:
                order.append(node)
                work.pop()
    return order
