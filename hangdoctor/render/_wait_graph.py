"""The wait-for graph as boxes and arrows with coordinates: who waits at the left, who holds things up at the right."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from hangdoctor.render._citations import Citations
from hangdoctor.render._digest import Names
from hangdoctor.render._wording import fold_labels
from hangdoctor.report import Party, Report, Strength, Wait

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 210, 46, 80, 20, 14
_MOST_BOXES = 30
_ARC = 38
_TITLE = 22
"""Letters that fit into a box at 13 px, wide ones included."""
_UNSEEN = "not seen"
_Point = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Box:
    """Processes (or threads) that wait for the same and are waited for by the same."""

    x: int
    y: int
    title: str
    subtitle: str
    full: str
    is_culprit: bool


@dataclass(frozen=True, slots=True)
class Arrow:
    """A kind of wait between two boxes."""

    number: int
    path: str
    badge_x: int
    badge_y: int
    is_certain: bool


@dataclass(frozen=True, slots=True)
class Legend:
    """What the number on an arrow stands for."""

    number: int
    waiter: str
    holder: str
    reason: str
    object: str | None
    strength: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture and its explanation."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    legend: tuple[Legend, ...]
    hidden: int
    box_width: int = BOX_WIDTH


@dataclass(frozen=True, slots=True)
class _Node:
    members: tuple[str, ...]
    is_mutual: bool


def draw_waits(report: Report, names: Names, citations: Citations) -> Drawing | None:
    """Lay the graph out; ``None`` when nobody waits."""
    edges = _edges(report, names)
    if not edges:
        return None
    nodes = _merge(edges)
    home = {member: node for node in nodes for member in node.members}
    waits: dict[tuple[_Node, _Node], Wait] = {}
    for (waiter, holder), wait in edges.items():
        pair = home[waiter], home[holder]
        if pair[0] is not pair[1]:
            waits.setdefault(pair, wait)
    layers = _layers(nodes, waits)
    shown = sorted(nodes, key=lambda node: layers[node])[:_MOST_BOXES]
    is_lifted = any(layers[waiter] - layers[holder] > 1 for waiter, holder in waits)
    places = _places(shown, layers, MARGIN + (_ARC if is_lifted else 0))
    culprits = _culprit_names(report, names, home)
    boxes = tuple(_box(node, places[node], culprits) for node in shown)
    pairs = [pair for pair in waits if pair[0] in places and pair[1] in places]
    pairs.sort(key=lambda pair: (-layers[pair[0]], places[pair[0]], places[pair[1]]))
    floor = max(y for _, y in places.values()) + BOX_HEIGHT
    arrows = tuple(
        _arrow(number, places[a], places[b], floor, waits[a, b]) for number, (a, b) in enumerate(pairs, 1)
    )
    legend = tuple(_legend(number, a, b, waits[a, b], citations) for number, (a, b) in enumerate(pairs, 1))
    width = max(box.x for box in boxes) + BOX_WIDTH + MARGIN
    height = (
        max(box.y for box in boxes)
        + BOX_HEIGHT
        + MARGIN
        + (40 if any(_goes_below(a, places) for a in pairs) else 0)
    )
    return Drawing(width, height, boxes, arrows, legend, len(nodes) - len(shown))


def _edges(report: Report, names: Names) -> dict[tuple[str, str], Wait]:
    edges: dict[tuple[str, str], Wait] = {}
    for wait in report.waits:
        waiter = names.of_party(wait.waiter)
        holder = names.of_party(wait.holder) if wait.holder is not None else _UNSEEN
        if waiter != holder:
            edges.setdefault((waiter, holder), wait)
    return edges


def _merge(edges: Iterable[tuple[str, str]]) -> list[_Node]:
    """Nodes with the same neighbours become one; so do those that all wait for each other."""
    out: dict[str, set[str]] = defaultdict(set)
    into: dict[str, set[str]] = defaultdict(set)
    for waiter, holder in edges:
        out[waiter].add(holder)
        into[holder].add(waiter)
    names = dict.fromkeys(name for edge in edges for name in edge)
    alike: dict[tuple[frozenset[str], frozenset[str]], list[str]] = defaultdict(list)
    for name in names:
        alike[frozenset(out[name]), frozenset(into[name])].append(name)
    nodes = [_Node(tuple(members), False) for members in alike.values() if len(members) > 1]
    mutual: dict[tuple[frozenset[str], frozenset[str]], list[str]] = defaultdict(list)
    for (outgoing, incoming), (name, *others) in alike.items():
        if not others:
            mutual[outgoing | {name}, incoming | {name}].append(name)
    nodes += [_Node(tuple(members), len(members) > 1) for members in mutual.values()]
    return nodes


def _layers(nodes: list[_Node], waits: Iterable[tuple[_Node, _Node]]) -> dict[_Node, int]:
    """Longest way to those who wait for nobody, so that arrows point one way; in a circle any way to a member."""
    waiters: dict[_Node, list[_Node]] = defaultdict(list)
    holders: dict[_Node, _Node] = {}
    pending: dict[_Node, int] = defaultdict(int)
    for waiter, holder in waits:
        waiters[holder].append(waiter)
        holders.setdefault(waiter, holder)
        pending[waiter] += 1
    layers = {node: 0 for node in nodes if not pending[node]}
    queue = deque(layers)
    while queue:
        node = queue.popleft()
        for waiter in waiters[node]:
            layers[waiter] = max(layers.get(waiter, 0), layers[node] + 1)
            pending[waiter] -= 1
            if not pending[waiter]:
                queue.append(waiter)
    # Who is left waits, directly or not, for a circle; one of its members stands for its end.
    for node in nodes:
        if node not in layers:
            start = _on_circle(node, holders)
            layers[start] = 0
            queue = deque([start])
            while queue:
                holder = queue.popleft()
                for waiter in waiters[holder]:
                    if waiter not in layers:
                        layers[waiter] = layers[holder] + 1
                        queue.append(waiter)
    return layers


def _on_circle(node: _Node, holders: dict[_Node, _Node]) -> _Node:
    seen = set()
    while node not in seen and node in holders:
        seen.add(node)
        node = holders[node]
    return node


def _places(nodes: list[_Node], layers: dict[_Node, int], ceiling: int) -> dict[_Node, tuple[int, int]]:
    deepest = max(layers[node] for node in nodes)
    columns: dict[int, list[_Node]] = defaultdict(list)
    for node in nodes:
        columns[layers[node]].append(node)
    tallest = max(map(len, columns.values()))
    places = {}
    for layer, members in columns.items():
        x = MARGIN + (deepest - layer) * (BOX_WIDTH + GAP_X)
        top = ceiling + (tallest - len(members)) * (BOX_HEIGHT + GAP_Y) // 2
        for row, node in enumerate(members):
            places[node] = x, top + row * (BOX_HEIGHT + GAP_Y)
    return places


def _box(node: _Node, place: tuple[int, int], culprits: set[str]) -> Box:
    full = fold_labels(node.members)
    subtitle = f"{len(node.members):,} alike" if len(node.members) > 1 else ""
    if node.is_mutual:
        subtitle = f"{len(node.members):,} wait for each other"
    title = full if len(full) <= _TITLE else f"{full[: _TITLE - 1]}…"
    return Box(*place, title, subtitle, full, is_culprit=not culprits.isdisjoint(node.members))


def _culprit_names(report: Report, names: Names, known: Iterable[str]) -> set[str]:
    """The names of the culprits in the graph: their thread where it has a node of its own, else their process."""
    found = set()
    everybody = set(known)
    for culprit in report.verdict.culprits:
        party = Party(culprit.pid, culprit.tid, None, culprit.host)
        process = names.short(culprit.pid, culprit.host, culprit.rank, culprit.role)
        thread = names.of_party(party)
        found.add(thread if thread in everybody else process)
    return found


def _arrow(number: int, start: _Point, end: _Point, floor: int, wait: Wait) -> Arrow:
    is_certain = wait.strength is Strength.CERTAIN
    if end[0] - start[0] > BOX_WIDTH + GAP_X:
        # Over the heads of what stands between.
        x1, x2, high = start[0] + BOX_WIDTH * 2 // 3, end[0] + BOX_WIDTH // 3, min(start[1], end[1]) - _ARC
        path = f"M{x1} {start[1]} C{x1 + 40} {high} {x2 - 40} {high} {x2} {end[1] - 2}"
        return Arrow(number, path, (x1 + x2) // 2, (high * 3 + (start[1] + end[1]) // 2) // 4, is_certain)
    if abs(end[0] - start[0]) == BOX_WIDTH + GAP_X:
        return _between_columns(number, start, end, is_certain)
    if _are_neighbours(start, end):
        # One side for the way down and one for the way up: two that wait for each other are two arrows.
        is_down = end[1] > start[1]
        x = start[0] + BOX_WIDTH * (3 if is_down else 1) // 4
        y1, y2 = (start[1] + BOX_HEIGHT, end[1] - 2) if is_down else (start[1], end[1] + BOX_HEIGHT + 2)
        return Arrow(number, f"M{x} {y1} L{x} {y2}", x + 22, (y1 + y2) // 2, is_certain)
    # Far against the reading direction, or far within a column: below the boxes.
    x1, y1 = start[0] + BOX_WIDTH * 2 // 3, start[1] + BOX_HEIGHT
    x2, y2 = end[0] + BOX_WIDTH // 3, end[1] + BOX_HEIGHT
    low = floor + 44
    path = f"M{x1} {y1} C{x1} {low} {x2} {low} {x2} {y2 + 2}"
    return Arrow(number, path, (x1 + x2) // 2, (6 * low + y1 + y2) // 8, is_certain)


def _between_columns(number: int, start: _Point, end: _Point, is_certain: bool) -> Arrow:
    """Through the gap; the way back runs lower, so that two that wait for each other are two arrows."""
    is_forth = end[0] > start[0]
    height = BOX_HEIGHT // 2 if is_forth else BOX_HEIGHT - 9
    x1, y1 = start[0] + (BOX_WIDTH if is_forth else 0), start[1] + height
    x2, y2 = end[0] + (0 if is_forth else BOX_WIDTH), end[1] + height
    bend, tip = (GAP_X // 2, -2) if is_forth else (-GAP_X // 2, 2)
    path = f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2 + tip} {y2}"
    # A point of the curve, nearer to its start: there arrows that cross or leave the same box are apart.
    return Arrow(number, path, x1 + (x2 - x1) * 38 // 100, y1 + (y2 - y1) * 28 // 100, is_certain)


def _are_neighbours(start: _Point, end: _Point) -> bool:
    """Whether one box stands right below the other."""
    return start[0] == end[0] and abs(start[1] - end[1]) == BOX_HEIGHT + GAP_Y


def _goes_below(pair: tuple[_Node, _Node], places: dict[_Node, _Point]) -> bool:
    start, end = places[pair[0]], places[pair[1]]
    return end[0] <= start[0] and start[0] - end[0] != BOX_WIDTH + GAP_X and not _are_neighbours(start, end)


def _legend(number: int, waiter: _Node, holder: _Node, wait: Wait, citations: Citations) -> Legend:
    return Legend(
        number,
        fold_labels(waiter.members, limit=80),
        fold_labels(holder.members, limit=80),
        wait.reason,
        wait.object if wait.object and wait.object not in wait.reason else None,
        wait.strength.value,
        citations.of_parties((wait.waiter, wait.holder)),
    )
