"""The processes of one job, and how the set grows from look to look."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hangdoctor.collect.deadline import helper_pids
from hangdoctor.collect.procfs import Stat, descend, read_table

_TOOLS = frozenset(("py-spy", "hangdoctor"))
"""Ours, or a colleague's who looks at the same server at the same time."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the tree. Pids are reused, so the start time belongs to its name."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Tree:
    """What the user asked for and the processes it led to, root first, parents before children."""

    root: int
    asked: str
    """``pid 4711``, ``--name vllm`` …"""
    members: tuple[Member, ...]
    server: str | None = None
    asked_pid: int | None = None
    """The process that was meant, when the user named one."""
    meeting: str | None = None
    """``host:port`` at which its ranks meet, where that was asked for."""

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(member.pid for member in self.members)


def is_own(stat: Stat) -> bool:
    """Whether a process is this one, one of its helpers, or a tool of the same kind. (Not: any child of this
    one, for a demo or a test watches its own children.)"""
    return stat.pid == os.getpid() or stat.pid in helper_pids() or stat.comm in _TOOLS


def own_ancestors() -> set[int]:
    """This process and those above it, whose command lines hold the pattern that is looked for, too."""
    table, above, pid = read_table(), set[int](), os.getpid()
    while pid in table and pid not in above:
        above.add(pid)
        pid = table[pid].ppid
    return above


def grow(tree: Tree, table: Mapping[int, Stat]) -> Tree:
    """The tree as it is now: its living members wherever they were re-parented to, and all their descendants.

    Members that ended are dropped; zombies stay, for an unreaped rank is evidence.
    """
    alive = [
        member.pid
        for member in tree.members
        if member.pid in table and table[member.pid].start_ticks == member.start_ticks
    ]
    pids = [pid for pid in descend(table, alive) if not is_own(table[pid])]
    return replace(tree, members=tuple(Member(pid, table[pid].start_ticks) for pid in pids))
