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
    labels: list[str]
    children: list[Branch] = field(default_factory=list)


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
    """Merge labelled stacks (frames innermost first) from their outermost frames on."""
    return _split([(label, tuple(reversed(stack))) for label, stack in stacks if stack], 0)


def _split(stacks: list[tuple[str, tuple[Frame, ...]]], depth: int) -> list[Branch]:
    roots: list[Branch] = []
    # A list of work instead of recursion: stacks can be deeper than Python's own.
    work = [(roots, stacks, depth)]
    while work:
        siblings, members, level = work.pop()
        by_frame: dict[Frame, list[tuple[str, tuple[Frame, ...]]]] = {}
        for label, stack in members:
            if level < len(stack):
                by_frame.setdefault(stack[level], []).append((label, stack))
        for group in by_frame.values():
            end = _common_end(group, level)
            branch = Branch(list(group[0][1][level:end]), [label for label, _ in group])
            siblings.append(branch)
            work.append((branch.children, group, end))
    return roots


def _common_end(group: list[tuple[str, tuple[Frame, ...]]], start: int) -> int:
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
