"""Stacks on the HTML page: side by side, merged into a prefix tree, and thread by thread. Plain records, no markup."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from hangdoctor.model import Frame
from hangdoctor.render._citations import Citations
from hangdoctor.render._digest import Names
from hangdoctor.render._stack_tree import Branch, build_tree, first_difference, lead_stack
from hangdoctor.render._wording import fold_labels
from hangdoctor.report import Group, ProcessRow, Report, ThreadRow

_MOST_COLUMNS = 6
_MOST_TREE_LINES = 300
_SHOWN_CALLS = 4
"""The innermost calls of a branch tell where it stands; the others unfold."""
_MOST_ALIKE = 8
"""Of a thousand ranks in the same call some are worth opening, not all."""
_MOST_THREADS = 240
"""Threads are most of the page: 8 ranks of 200 threads would be 4 MB of stacks that are nearly all alike."""


@dataclass(frozen=True, slots=True)
class StackLine:
    """A frame in a column, outermost frames at the bottom."""

    frame: Frame
    is_different: bool
    """The outermost frame that the column does not share with the one it is compared to."""
    is_shared: bool


@dataclass(frozen=True, slots=True)
class StackColumn:
    """The stack of one group."""

    group: Group
    lines: tuple[StackLine, ...]
    is_culprit: bool
    evidence: tuple[str, ...] = ()


def stack_columns(report: Report, citations: Citations) -> tuple[StackColumn, ...]:
    """Stacks side by side: the culprits' first, then the largest groups of ranks, each compared to the first."""
    ranks = {row.rank.label for row in report.processes if row.rank is not None}
    cited = {row.rank.label: citations.of(row.pid, row.host) for row in report.processes if row.rank}
    culprits = {culprit.rank.label for culprit in report.verdict.culprits if culprit.rank is not None}
    groups = [group for group in report.groups if group.stack and not ranks.isdisjoint(group.ranks)]
    groups = groups or [group for group in report.groups if group.stack]
    groups.sort(key=lambda group: (culprits.isdisjoint(group.ranks), -group.count))
    columns = []
    for position, group in enumerate(groups[:_MOST_COLUMNS]):
        other = groups[0] if position else (groups[1] if len(groups) > 1 else group)
        split = first_difference(group.stack, other.stack)
        lines = tuple(
            StackLine(frame, index == split, split is None or index > split)
            for index, frame in enumerate(group.stack)
        )
        evidence = tuple(dict.fromkeys(name for label in group.ranks for name in cited.get(label, ())))
        columns.append(StackColumn(group, lines, not culprits.isdisjoint(group.ranks), evidence))
    return tuple(columns)


@dataclass(frozen=True, slots=True)
class TreeLine:
    """Calls of the prefix tree that share a set of ranks."""

    depth: int
    hidden: tuple[Frame, ...]
    """The outer calls of the branch, where it has many."""
    shown: tuple[Frame, ...]
    label: str
    count: int
    is_leaf: bool
    is_culprit: bool


@dataclass(frozen=True, slots=True)
class Tree:
    """The prefix tree from the top down, as far as there is room."""

    lines: tuple[TreeLine, ...]
    hidden: int
    """Branches that there was no room for; what is below them is not counted."""


def prefix_tree(report: Report, names: Names) -> Tree:
    """The prefix tree of all ranks' leading stacks, outermost first, larger branches first."""
    ranked = [row for row in report.processes if row.rank is not None] or list(report.processes)
    tree = build_tree((names.short(row.pid, row.host, row.rank, row.role), lead_stack(row)) for row in ranked)
    culprits = {names.short(c.pid, c.host, c.rank, c.role) for c in report.verdict.culprits}
    lines: list[TreeLine] = []
    work: list[tuple[int, Branch]] = [(0, branch) for branch in sorted(tree, key=lambda b: b.count)]
    while work and len(lines) < _MOST_TREE_LINES:
        depth, branch = work.pop()
        label = fold_labels(branch.labels, limit=60)
        cut = max(len(branch.frames) - _SHOWN_CALLS, 0)
        lines.append(
            TreeLine(
                depth, tuple(branch.frames[:cut]), tuple(branch.frames[cut:]), label, len(branch.labels),
                is_leaf=not branch.children,
                # A branch that holds others as well says nothing about the culprit.
                is_culprit=not branch.children and culprits.issuperset(branch.labels),
            )
        )  # fmt: skip
        work += [(depth + 1, child) for child in sorted(branch.children, key=lambda b: b.count)]
    return Tree(tuple(lines), len(work))


@dataclass(frozen=True, slots=True)
class ThreadsOfProcess:
    """Threads of a process, those with equal stacks together."""

    name: str
    row: ProcessRow
    threads: tuple[tuple[ThreadRow, int], ...]
    """A thread and how many have its stack."""
    helpers: int
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads of the processes that there is room for."""

    processes: tuple[ThreadsOfProcess, ...]
    hidden: int

    def homes(self, report: Report, citations: Citations) -> Mapping[str, int]:
        """Evidence id -> number of the process, from 1, that it speaks of, where that process is shown."""
        numbers = {(shown.row.host, shown.row.pid): n for n, shown in enumerate(self.processes, 1)}
        places = ((piece.id, citations.place(piece.id)) for piece in report.evidence)
        return {name: numbers[place] for name, place in places if place in numbers}


def threads(report: Report, names: Names, citations: Citations, *, everything: bool) -> Threads:
    """Culprits first, then some processes of each shape until there is no room; with `everything` all."""
    culprits = {(culprit.host, culprit.pid) for culprit in report.verdict.culprits}
    shapes: Counter[object] = Counter()
    ordered = []
    for row in report.processes:
        shape = (row.role, row.phase, row.frame)
        shapes[shape] += 1
        is_culprit = (row.host, row.pid) in culprits
        if everything or is_culprit or shapes[shape] <= _MOST_ALIKE:
            ordered.append((not is_culprit, shapes[shape] > 1, row))
    ordered.sort(key=lambda item: item[:2])
    room = len(report.processes) * 10_000 if everything else _MOST_THREADS
    shown = []
    for _, _, row in ordered:
        process = _threads_of(row, names, citations)
        if len(process.threads) > room:
            break
        room -= max(len(process.threads), 1)
        shown.append(process)
    return Threads(tuple(shown), len(report.processes) - len(shown))


def _threads_of(row: ProcessRow, names: Names, citations: Citations) -> ThreadsOfProcess:
    alike: dict[object, list[ThreadRow]] = defaultdict(list)
    for thread in row.threads:
        if not thread.is_machinery:
            # A thread without a stack is only like another one of the same name and state.
            alike[thread.stack or (thread.name, thread.state, thread.waits_on)].append(thread)
    folded = tuple((same[0], len(same)) for same in alike.values())
    helpers = sum(thread.is_machinery for thread in row.threads)
    evidence = citations.of(row.pid, row.host)
    return ThreadsOfProcess(names.of_row(row), row, folded, helpers, evidence)
