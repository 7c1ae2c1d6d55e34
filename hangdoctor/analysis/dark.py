"""Ranks of which no stack could be read: who waits for whom, from what the kernel shows of them alone.

Ranks do the same at the same time. When most of them rest, without running once, in one and the same wait of the
kernel, and another does something else, they wait for that one. This is shape, not proof: a rank that waits for
requests is idle and owes the others nothing, so a wait for the outside world never makes a culprit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hangdoctor.analysis.standing import is_dead, is_stopped
from hangdoctor.analysis.waits import Edge, EdgeKind, lead_node
from hangdoctor.case import Case, Member, Movement, ThreadTrack
from hangdoctor.model import Activity, Thread
from hangdoctor.report import Strength

LEAST_RANKS = 3
"""With two, neither is the odd one."""
_RUNLOOP = "pt_gloo_runloop"
"""torch names the threads that run a gloo group's collectives; one that has work waits with the group's time-out, one
that has none without (four ranks, torch 2.13: the laggard's had none)."""
_GLOO = "a gloo collective"
_TOGETHER = frozenset({Activity.BLOCKED, Activity.WAIT_PEER, Activity.WAIT_EVENT, Activity.WAIT_COLLECTIVE})
"""Waits in which ranks meet: a futex or a connection."""
_HOLDS_UP = frozenset(
    {
        Activity.TIMED_SLEEP,
        Activity.WAIT_IO,
        Activity.UNINTERRUPTIBLE,
        Activity.RUN,
        Activity.SPIN,
        Activity.WAIT_CHILD,
        Activity.WAIT_LOCK,
        Activity.WAIT_GPU,
        Activity.STOPPED,
    }
)
"""What a rank may be doing while the others wait for it, and an idle one does not."""


def is_dark(member: Member) -> bool:
    """Whether no look has a stack of any of its threads."""
    return not any(
        thread.stack is not None for look in member.looks if look is not None for thread in look.threads
    )


def dark_edges(case: Case) -> Iterator[Edge]:
    """From each rank in the common wait to each rank that is elsewhere; only where all ranks are dark."""
    ranks = [m for m in case.ranks if not is_dead(m)]
    if len(ranks) < LEAST_RANKS or case.look_count < 2 or not all(is_dark(m) for m in ranks):
        return
    places = {m.key: _place(m) for m in ranks}
    in_gloo = [m for m in ranks if places[m.key] == _GLOO]
    if in_gloo:
        waiting, place, strength = in_gloo, _GLOO, Strength.LIKELY
        outside = [m for m in ranks if places[m.key] != _GLOO]
    else:
        counted = Counter(place for place in places.values() if place is not None)
        place, count = counted.most_common(1)[0] if counted else ("", 0)
        if count < 2 or 2 * count <= len(ranks):
            return
        waiting, strength = [m for m in ranks if places[m.key] == place], Strength.POSSIBLE
        outside = [m for m in ranks if places[m.key] != place and _may_hold_up(m)]
    for member in waiting:
        for peer in outside:
            reason = f"in {place}, where {len(waiting)} of {len(ranks)} ranks are"
            yield Edge(EdgeKind.COLLECTIVE, lead_node(member), lead_node(peer), reason, None, strength)


def _place(member: Member) -> str | None:
    """The wait that its main thread, or gloo on its behalf, has not left; ``None`` for anything else."""
    lead = member.lead
    if lead is None or is_stopped(member) or lead.movement is not Movement.STILL:
        return None
    if any(_has_gloo_work(track) for track in member.threads):
        return _GLOO
    return _wait_of(lead.last.thread) if lead.last.activity in _TOGETHER else None


def _has_gloo_work(track: ThreadTrack) -> bool:
    thread = track.last.thread
    call = thread.syscall
    is_runloop = (thread.comm or "").startswith(_RUNLOOP)
    return is_runloop and track.movement is Movement.STILL and call is not None and call.is_timed is True


def _wait_of(thread: Thread) -> str | None:
    """A name for the wait that is the same for all ranks in it: without addresses and descriptors."""
    if thread.lock is not None:
        return f"a wait for a {thread.lock.kind}"
    call = thread.syscall
    if call is None:
        return thread.wchan
    scope = next((word for word in ("private", "shared") if f", {word}," in (call.detail or "")), "")
    return f"{call.name} {scope}".strip()


def _may_hold_up(member: Member) -> bool:
    lead = member.lead
    return is_stopped(member) or (lead is not None and lead.last.activity in _HOLDS_UP)
