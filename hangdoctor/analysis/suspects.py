"""Where all waiting ends: the few threads worth judging."""

from __future__ import annotations

from hangdoctor.analysis.findings import Suspect
from hangdoctor.analysis.standing import is_dead, is_idle, is_settled, is_stopped
from hangdoctor.analysis.waits import Node, WaitGraph
from hangdoctor.case import Case, Member, Movement
from hangdoctor.knowledge.catalogue import RoleKind, Stage
from hangdoctor.model import Activity


def find_suspects(case: Case, graph: WaitGraph) -> tuple[tuple[Suspect, ...], bool]:
    """The sinks of the graph; without any, the principals that neither idle nor wait. Second value: were they sinks."""
    sinks = [suspect for node in graph.sinks if (suspect := _resolve(case, node)) is not None]
    if sinks:
        return tuple(_keep_the_guilty(sinks)), True
    cyclic = [s for cycle in graph.cycles for node in cycle if (s := _resolve(case, node)) is not None]
    if cyclic:
        return tuple(cyclic), True
    waiting = {edge.waiter.key for edge in graph.edges if edge.holder is not None}
    loners = [m for m in case.principals if m.key not in waiting and not is_idle(m) and _is_noteworthy(m)]
    if not loners:
        loners = [
            m
            for m in case.members
            if m.kind is RoleKind.LAUNCHER and not _has_ranks(case) and _is_noteworthy(m)
        ]
    return tuple(Suspect(m, m.lead) for m in _furthest_behind(loners)), False


def _resolve(case: Case, node: Node) -> Suspect | None:
    member = case.by_key.get(node.key)
    if member is None:
        return None
    return Suspect(member, next((t for t in member.threads if t.tid == node.tid), member.lead))


def _keep_the_guilty(sinks: list[Suspect]) -> list[Suspect]:
    """Dead and stopped ones outrank the rest; an idle one is guilty only when nobody else is left."""
    halted = [s for s in sinks if is_stopped(s.member) or is_dead(s.member)]
    if halted:
        return halted
    active = [s for s in sinks if not is_idle(s.member)]
    return active or sinks


def _is_noteworthy(member: Member) -> bool:
    if is_stopped(member) or is_dead(member) or member.lead is None:
        return False
    phase = member.phase
    if phase is not None and phase.stage is Stage.STARTUP:
        return True
    if member.lead.movement is Movement.CYCLING and member.lead.last.activity is Activity.WAIT_COLLECTIVE:
        return False
    return is_settled(member.lead) or phase is None or phase.stage is Stage.ASPECT


_SUBORDINATES = ("schedulers", "workers", "ranks", "children")


def _has_ranks(case: Case) -> bool:
    return any(m.kind in (RoleKind.RANK, RoleKind.CONTROL) for m in case.members)


def _supervises(member: Member) -> bool:
    """Waits for processes below it. A rank that waits for its children builds something: that is its own work."""
    phase = member.phase
    return phase is not None and phase.waits_for in _SUBORDINATES and member.kind is not RoleKind.RANK


def _furthest_behind(members: list[Member]) -> list[Member]:
    """Those in the earliest phase are the ones to watch: the later ones got past it. Ranks before supervisors.

    Also within a step: a rank whose GPU wait sits in the forward pass holds up one that waits for its sample.
    """
    ranks = [m for m in members if m.kind is RoleKind.RANK] or members
    # Who waits for the processes below it is early in its own order, and behind nobody.
    ranks = [m for m in ranks if not _supervises(m)] or ranks
    ordered = (Stage.STARTUP, Stage.SERVING)
    orders = {m.key: m.phase.order for m in ranks if m.phase is not None and m.phase.stage in ordered}
    if len(orders) == len(ranks) and orders:
        least = min(orders.values())
        return [m for m in ranks if orders[m.key] == least]
    return ranks
