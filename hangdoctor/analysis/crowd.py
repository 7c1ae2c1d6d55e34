"""Ranks by what they do: whom a wait is for is found once for all that wait alike, not once for each.

A thousand ranks in one collective wait for the same few outside it. Looking for them rank by rank costs the square of
their number (4,096 ranks: 16.8 million comparisons, 40 s); by class it costs their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hangdoctor.analysis.dark import is_dark
from hangdoctor.analysis.standing import (
    collective_name,
    in_collective,
    is_dead,
    is_idle,
    is_settled,
    is_stopped,
)
from hangdoctor.case import Case, Member
from hangdoctor.knowledge.catalogue import Stage

MOST_HOLDERS = 16
"""Of a class, to which every waiter gets an edge; the first waiter gets one to all. A verdict names half as many."""

_Group = tuple[int | None, int | None] | None
"""(dp, pp); ``None`` for a rank without coordinates, which may be in any."""


class Crowd:
    """The ranks of one case."""

    def __init__(self, case: Case) -> None:
        self._ranks = case.ranks
        self._places = {m.key: collective_name(m) if in_collective(m) else None for m in self._ranks}
        self._outside: dict[tuple[_Group, str | None], Sequence[Member]] = {}
        self._elsewhere: dict[frozenset[str], Sequence[Member]] = {}
        self._steps: dict[_Group, Sequence[Member]] = {}
        self._phases = {m.key: _phase_ids(m) for m in self._ranks}
        self._served: set[int] = set()

    def outside(self, member: Member, name: str | None) -> Sequence[Member]:
        """Ranks of its group, else of all, that are not in the collective ``name`` in which it is."""
        key = (_group(member), name)
        if key not in self._outside:
            near = [m for m in self._ranks if _may_meet(key[0], m)]
            found = self._not_in(near, name) or self._not_in(self._ranks, name)
            # A rank that shows no stack may be in the collective as well as not.
            told = [p for p in found if not is_dark(p) or is_stopped(p) or is_dead(p)]
            self._outside[key] = _guiltiest_first(told or found)
        return self._dealt(self._outside[key])

    def _not_in(self, ranks: Sequence[Member], name: str | None) -> list[Member]:
        return [m for m in ranks if not (in_collective(m) and self._places[m.key] == name)]

    def elsewhere(self, member: Member) -> Sequence[Member]:
        """Ranks that have not come to the step ``member`` waits in."""
        here = self._phases.get(member.key) or _phase_ids(member)
        if here not in self._elsewhere:
            found = [
                m
                for m in self._ranks
                if is_stopped(m) or is_dead(m) or not here.intersection(self._phases[m.key])
            ]
            self._elsewhere[here] = _guiltiest_first(found)
        return self._dealt(self._elsewhere[here])

    def in_step(self, member: Member) -> Iterator[Member]:
        """Ranks of its group that wait inside a step, the earliest phase first, those without an order before."""
        key = _group(member)
        if key not in self._steps:
            waiting = [m for m in self._ranks if _may_meet(key, m) and not is_idle(m) and is_settled(m.lead)]
            self._steps[key] = sorted(waiting, key=_order)
        return iter(self._steps[key])

    def _dealt(self, found: Sequence[Member]) -> Sequence[Member]:
        """All of a class to the first that asks, the guiltiest to the others: each end is somebody's holder."""
        if len(found) <= MOST_HOLDERS or id(found) not in self._served:
            self._served.add(id(found))
            return found
        return found[:MOST_HOLDERS]


def has_order(member: Member) -> bool:
    """Whether its phase has a place in the order of a step."""
    return member.phase is not None and member.phase.stage is not Stage.ASPECT


def _order(member: Member) -> tuple[bool, int]:
    return has_order(member), member.phase.order if member.phase is not None and has_order(member) else 0


def _group(member: Member) -> _Group:
    return (member.rank.dp, member.rank.pp) if member.rank is not None else None


def _may_meet(group: _Group, other: Member) -> bool:
    """As ``same_group``: unknown counts as the same."""
    theirs = _group(other)
    return group is None or theirs is None or theirs == group


def _phase_ids(member: Member) -> frozenset[str]:
    return frozenset(p.id for p in (member.phase, member.aspect) if p is not None)


def _guiltiest_first(found: Sequence[Member]) -> Sequence[Member]:
    """Only where not all can be named anyhow: the dead and the stopped, then those at work, then the idle."""
    if len(found) <= MOST_HOLDERS:
        return found
    return sorted(found, key=lambda m: (not (is_stopped(m) or is_dead(m)), is_idle(m)))
