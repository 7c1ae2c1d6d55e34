"""Waits between pipeline stages have a direction: who receives waits for the stage before, who sends for the next.

The stages form a ring (the first receives the outputs of the last), so a circle of such waits never ends, and a chain
of them leads to the stage that does something else.
"""

from __future__ import annotations

import re

from hangdoctor.analysis.cycles import find_cycles
from hangdoctor.analysis.describe import name_frame, name_member
from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.analysis.standing import is_dead, is_idle, is_settled, is_stopped, same_dp
from hangdoctor.case import Case, Member
from hangdoctor.model import Activity, Frame
from hangdoctor.report import Cause, Confidence, Kind

_RECEIVES = re.compile(r"(^|_)i?recv(_|$)|(^|_)receive(_|$)|receive_forward|receive_backward")
_SENDS = re.compile(r"(^|_)i?send(_|$)")
_FILES = re.compile(r"distributed|parallel_state|_pp_mixin|pipeline|p2p", re.IGNORECASE)
_SHOWN = 6


def check(situation: Situation) -> Finding | None:
    """Fires when pipeline stages wait for each other in a circle, or for a stage that was not seen."""
    case = situation.case
    stages = [m for m in case.ranks if m.rank is not None and m.rank.pp is not None]
    steps = {m.key: step for m in stages if _waits(m) and (step := _direction(m)) is not None}
    if not steps:
        return None
    last = max(m.rank.pp or 0 for m in stages if m.rank is not None)
    awaited = {m.key: _neighbours(m, stages, steps[m.key], last) for m in stages if m.key in steps}
    cycles = find_cycles({key: [n.key for n in found] for key, found in awaited.items()})
    if cycles:
        return _circle(case, [m for m in stages if m.key in cycles[0]])
    ends = {n.key: n for found in awaited.values() for n in found if n.key not in steps}
    if ends and case.look_count < 2:
        return _chain_ends_at(list(ends.values()), [m for m in stages if m.key in steps])
    lost = [m for m in stages if m.key in steps and not awaited[m.key]]
    if lost and len(steps) == len(case.ranks):
        return _stage_not_seen(lost, steps[lost[0].key], [m for m in stages if m.key in steps])
    return None


def _waits(member: Member) -> bool:
    if is_stopped(member) or is_dead(member) or is_idle(member) or not is_settled(member.lead):
        return False
    return member.lead is not None and member.lead.last.activity in (Activity.WAIT_PEER, Activity.BLOCKED)


def _direction(member: Member) -> int | None:
    """-1: waits for the stage before, +1: for the next; by the innermost frame that says so."""
    stack = member.lead.last.thread.stack if member.lead else None
    for frame in stack.frames[:_SHOWN] if stack is not None else ():
        name = frame.function.rsplit(".", 1)[-1]
        if _is_between_stages(frame) and (_RECEIVES.search(name) or _SENDS.search(name)):
            return -1 if _RECEIVES.search(name) else 1
    return None


def _is_between_stages(frame: Frame) -> bool:
    return bool(_FILES.search(frame.file)) and "multiprocessing" not in frame.file


def _neighbours(member: Member, stages: list[Member], step: int, last: int) -> list[Member]:
    own = member.rank.pp if member.rank is not None else None
    if own is None:
        return []
    # Beyond either end the ring closes; with one stage seen, nobody knows where the end is.
    wanted = own + step
    if wanted < 0 or (wanted > last and last > 0 and any((m.rank and m.rank.pp) == 0 for m in stages)):
        wanted = last if wanted < 0 else 0
    return [
        m
        for m in stages
        if m is not member
        and m.rank is not None
        and m.rank.pp == wanted
        and (member.rank is None or m.rank.tp == member.rank.tp)
        and same_dp(m.rank, member.rank)
    ]


def _circle(case: Case, members: list[Member]) -> Finding:
    members = sorted(members, key=lambda m: (m.rank.pp or 0) if m.rank is not None else 0)
    told = "; ".join(f"{m.label} in {name_frame(m.frame)}" for m in members if m.frame is not None)
    return Finding(
        Kind.HUNG,
        Confidence.LIKELY if case.look_count > 1 else Confidence.POSSIBLE,
        Cause.COLLECTIVE_MISMATCH,
        f"{fold_labels(m.label for m in members)} wait for each other in a circle of pipeline stages ({told}): each "
        "expects what only another of them could send",
        tuple(Suspect(m, m.lead) for m in members),
    )


def _chain_ends_at(ends: list[Member], waiting: list[Member]) -> Finding:
    """With more looks the wait-for graph says the same and tells hung from slow; one look only has the directions."""
    return Finding(
        Kind.UNKNOWN,
        Confidence.POSSIBLE,
        Cause.LAGGARD,
        "the waits of the other pipeline stages end here",
        tuple(Suspect(m, m.lead) for m in ends),
        decider="a second look: whether it is still there",
        waiting=tuple(waiting),
    )


def _stage_not_seen(lost: list[Member], step: int, waiting: list[Member]) -> Finding:
    member = lost[0]
    own = member.rank.pp if member.rank is not None else None
    stage = (own or 0) + step
    whom = f"PP{stage}" if stage >= 0 else "the last one"
    does = "receive what it sends" if step > 0 else "send what it expects"
    frame = f" is in {name_frame(member.frame)} and" if member.frame is not None else ""
    return Finding(
        Kind.UNKNOWN,
        Confidence.POSSIBLE,
        Cause.MISSING_PEER,
        f"{name_member(member)}{frame} waits for the {'next' if step > 0 else 'previous'} pipeline stage ({whom}), "
        f"which was not seen, to {does}",
        decider=f"what {whom} does: dump it, too",
        waiting=tuple(waiting),
    )


RULE = Rule(
    id="pipeline",
    order=44,
    summary="Pipeline stages wait for each other in a circle, or for a stage that was not seen.",
    refuted_by="a stage leaving its receive in a later look: a message may have been on its way",
    check=check,
)
