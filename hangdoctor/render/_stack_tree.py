"""Stacks of many ranks compared: a prefix tree from the outermost call, and where one leaves another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hangdoctor.model import Frame
from hangdoctor.report import ProcessRow


@dataclass(slots=True)
class Branch:
    """Calls that all its ranks have in common below its parent, outermost first."""

    frames: list[Frame]
    classes: list[list[str]]
    """The labels of each different stack that comes through here; shared with the branches above and below."""
    children: list[Branch] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many ranks come through here."""
        return sum(map(len, self.classes))

    @property
    def labels(self) -> list[str]:
        """All their labels: put together for who asks, for at every depth they are nearly the same."""
        return [label for labels in self.classes for label in labels]


def lead_stack(row: ProcessRow) -> tuple[Frame, ...]:
    """The stack that speaks for a process: the thread that holds its named frame, else the main one."""
    stacks = [
        (thread.name, thread.stack) for thread in row.threads if thread.stack and not thread.is_machinery
    ]
    for _, stack in stacks:
        if row.frame is not None and row.frame in stack:
            return stack
    for name, stack in stacks:
        if name == "MainThread":
            return stack
    return stacks[0][1] if stacks else ()


def build_tree(stacks: Iterable[tuple[str, Sequence[Frame]]]) -> list[Branch]:
    """Merge labelled stacks (frames innermost first) from their outermost frames on.

    Equal stacks are put together first and the tree is made of these classes alone: a hundred thousand ranks are in
    some hundred places (STAT found the same, Arnold et al. 2007).
    """
    classes = find_classes(stacks)
    return _split([(labels, tuple(reversed(stack))) for stack, labels in classes], 0)


def find_classes(stacks: Iterable[tuple[str, Sequence[Frame]]]) -> list[tuple[Sequence[Frame], list[str]]]:
    """Each different stack once, with all its labels; empty stacks are left out.

    Threads of one capture share their stacks as objects, so nearly every one is recognised without looking into it.
    """
    by_identity: dict[int, list[str]] = {}
    by_frames: dict[tuple[Frame, ...], list[str]] = {}
    kept = []
    for label, stack in stacks:
        labels = by_identity.get(id(stack))
        if labels is None:
            if not stack:
                continue
            kept.append(stack)  # an identity is good only as long as its object lives
            labels = by_identity[id(stack)] = by_frames.setdefault(tuple(stack), [])
        labels.append(label)
    return list(by_frames.items())


def _split(stacks: list[tuple[list[str], tuple[Frame, ...]]], depth: int) -> list[Branch]:
    roots: list[Branch] = []
    # A list of work instead of recursion: stacks can be deeper than Python's own.
    work = [(roots, stacks, depth)]
    while work:
        siblings, members, level = work.pop()
        by_frame: dict[Frame, list[tuple[list[str], tuple[Frame, ...]]]] = {}
        for labels, stack in members:
            if level < len(stack):
                by_frame.setdefault(stack[level], []).append((labels, stack))
        for group in by_frame.values():
            end = _common_end(group, level)
            branch = Branch(list(group[0][1][level:end]), [labels for labels, _ in group])
            siblings.append(branch)
            work.append((branch.children, group, end))
    return roots


def _common_end(group: list[tuple[list[str], tuple[Frame, ...]]], start: int) -> int:
    """The first depth at which the stacks differ or one of them ends."""
    first = group[0][1]
    end = min(len(stack) for _, stack in group)
    for depth in range(start, end):
        if any(stack[depth] != first[depth] for _, stack in group):
            return depth
    return end


def first_difference(stack: Sequence[Frame], other: Sequence[Frame]) -> int | None:
    """Index in `stack` (innermost first) of the outermost frame that `other` does not share; ``None`` if it has all.

    Two ranks in the same function at different lines do differ there: that is often the news.
    """
    shared = 0
    while shared < min(len(stack), len(other)) and stack[-1 - shared] == other[-1 - shared]:
        shared += 1
    return None if shared == len(stack) else len(stack) - 1 - shared
