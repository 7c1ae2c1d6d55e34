"""When a single look may name somebody.

One look shows where a thread stands, not whether it stays there: a rank met inside its forward pass is where every
healthy rank is most of the time. So with one look a thread is named only when another process waits for it, or when
what it does needs no comparison: it builds, loads, holds a lock that others want, or stands on native frames in a
wait for the GPU. Everybody else is described, and nobody is accused.
"""

from __future__ import annotations

from dataclasses import replace

from hangdoctor.analysis.charges import SLOW_CAUSES
from hangdoctor.analysis.describe import doing, name_member
from hangdoctor.analysis.findings import Finding, Situation, Suspect
from hangdoctor.case import ThreadTrack
from hangdoctor.model import Activity, Method
from hangdoctor.report import Cause, Kind

_TELLING = SLOW_CAUSES | {Cause.SPIN, Cause.LOCK_CYCLE, Cause.GIL_HELD}
_WAITS_FOR_OTHERS = (Activity.WAIT_PEER, Activity.WAIT_COLLECTIVE)
_WAITS = (*_WAITS_FOR_OTHERS, Activity.WAIT_LOCK, Activity.WAIT_EVENT, Activity.WAIT_CHILD)
_PAST = (Method.FLIGHT_RECORDER, Method.TRACEBACK)


def without_bystanders(situation: Situation, finding: Finding) -> Finding:
    """``finding``, with suspects that a single look does not bear out described instead of named."""
    if situation.case.look_count > 1 or situation.is_waited_for or finding.kind is not Kind.UNKNOWN:
        return finding
    named = tuple(s for s in finding.suspects if _speaks_for_itself(s, finding.cause))
    if not finding.suspects or len(named) == len(finding.suspects):
        return finding
    if named:
        return replace(finding, suspects=named)
    waiting = tuple(s.member for s in finding.suspects if _waits_for_peers(s))
    told = "; ".join(f"{name_member(s.member)} {doing(s)}" for s in finding.suspects[:4])
    if waiting:
        return replace(
            finding,
            cause=Cause.MISSING_PEER,
            because=f"{told}, and waits for peers that were not seen{_advice(finding.suspects)}",
            suspects=(),
            waiting=waiting,
            decider="what the other ranks do: dump them, too",
        )
    because = f"{told}; one look cannot tell whether it stays there"
    return replace(finding, because=because, suspects=())


def _speaks_for_itself(suspect: Suspect, cause: Cause | None) -> bool:
    track = suspect.track
    if track is not None and _main_waits_for(suspect, track):
        return True
    if track is None or track.last.thread.stack is None:
        return suspect.member.last.state == "D" or bool(suspect.member.compilers)
    stack, activity = track.last.thread.stack, track.last.activity
    if stack.method in _PAST or activity in _WAITS:
        return False
    if activity is Activity.UNINTERRUPTIBLE or suspect.member.compilers:
        return True
    if activity is Activity.WAIT_GPU:
        return cause in SLOW_CAUSES or any(frame.is_native for frame in stack.frames)
    return cause in _TELLING


def _advice(suspects: tuple[Suspect, ...]) -> str:
    """What the knowledge says of whom a phase waits for, in brackets."""
    advice = next((s.member.phase.advice for s in suspects if s.member.phase and s.member.phase.advice), None)
    return f" ({advice.rstrip('.')})" if advice else ""


def _main_waits_for(suspect: Suspect, track: ThreadTrack) -> bool:
    """Whether another thread of the process is known to wait for what this one computes."""
    others = (other.last.match for other in suspect.member.threads if other is not track)
    return track.last.activity not in _WAITS_FOR_OTHERS and any(
        match is not None and match.phase.waits_for == "thread" and match.phase.server != "python"
        for match in others
    )


def _waits_for_peers(suspect: Suspect) -> bool:
    track, member = suspect.track, suspect.member
    phases = [p for p in (member.aspect, member.phase) if p is not None]
    return (
        track is not None
        and track.last.activity in _WAITS_FOR_OTHERS
        and any(p.waits_for in ("peers", "next-stage", "workers", "schedulers") for p in phases)
    )
