"""How one process stands: stopped, dead, idle, in a collective, and whether that has lasted over all looks."""

from __future__ import annotations

from hangdoctor.analysis.progress import newest_sequences
from hangdoctor.case import Member, Movement, ThreadTrack
from hangdoctor.knowledge.catalogue import PhaseMatch, Stage
from hangdoctor.model import Activity, Process, Rank


def is_stopped(member: Member) -> bool:
    """Stopped by a signal or held by a debugger at the last look."""
    return not member.is_gone and member.last.state in ("T", "t")


def is_dead(member: Member) -> bool:
    """Gone, a zombie, or being torn down: it will never answer."""
    return member.is_gone or member.last.state in ("Z", "X", "x") or is_dying(member.last)


def is_dying(process: Process) -> bool:
    """Its memory is gone already: it looks like a kernel thread, for up to seconds after a kill (seen with vLLM)."""
    return process.rss_bytes == 0 and not process.command and process.state != "I"


def in_collective(member: Member) -> bool:
    """Whether its lead stands in a collective and is alive to take part in it."""
    lead = member.lead
    return (
        lead is not None
        and not is_stopped(member)
        and not is_dead(member)
        and lead.last.activity is Activity.WAIT_COLLECTIVE
    )


def is_settled(track: ThreadTrack | None) -> bool:
    """Whether a wait has lasted over all looks, so that it is worth following.

    An event loop that polls through a collective is woken all the time (CYCLING): it waits for nobody.
    """
    if track is None:
        return False
    if track.movement in (Movement.STILL, Movement.BUSY, Movement.UNKNOWN):
        return True
    if track.movement is Movement.CYCLING:
        return track.last.activity not in (Activity.WAIT_COLLECTIVE, Activity.WAIT_WORK)
    return _same_wait_throughout(track)


_WAITS = frozenset({Activity.WAIT_PEER, Activity.WAIT_CHILD, Activity.WAIT_LOCK})


def _same_wait_throughout(track: ThreadTrack) -> bool:
    """The stack changed only inside one and the same wait (a poll loop within a rendezvous)."""
    return _is_in_one_wait(track, _WAITS)


def waits_for_work_throughout(track: ThreadTrack | None) -> bool:
    """The stack changed only inside its main loop's wait, which spins for a second and then polls, say."""
    if track is None or not _is_in_one_wait(track, _WAITS | {Activity.WAIT_WORK}):
        return False
    return stays_in(track, Stage.IDLE)


def stays_in(track: ThreadTrack | None, *stages: Stage) -> bool:
    """Whether its phase is known at every look, and always in one of these stages."""
    phases = track.phases if track else ()
    return bool(phases) and all(phase is not None and phase.stage in stages for phase in phases)


def _is_in_one_wait(track: ThreadTrack, waits: frozenset[Activity]) -> bool:
    views = [view for view in track.views if view is not None]
    ids = {_wait_id(view.match, waits) for view in views}
    return len(views) > 1 and len(ids) == 1 and None not in ids and all(v.activity in waits for v in views)


def _wait_id(match: PhaseMatch | None, waits: frozenset[Activity]) -> str | None:
    """A phase that is a wait by itself stays that wait, whatever primitive it is in at the moment."""
    if match is None:
        return None
    if match.phase.activity in waits or match.aspect is None:
        return match.phase.id
    return match.aspect.id


def is_idle(member: Member) -> bool:
    """Whether it waits for work in its own main loop at the last look (or cycles there)."""
    lead = member.lead
    if lead is None or is_stopped(member) or is_dead(member):
        return False
    match = lead.last.match
    if match is not None and match.phase.stage is Stage.IDLE:
        # SGLang's idle loop stands in a collective: idle only while it is woken again and again.
        if lead.last.activity is Activity.WAIT_COLLECTIVE:
            return lead.movement is not Movement.STILL or not lead.has_counters
        return True
    return (
        lead.last.activity is Activity.WAIT_WORK
        or _listens_to_its_parent(member)
        or _serves_in_a_thread(member)
    )


_SERVING = ("python.serve", "python.event-loop")


def _serves_in_a_thread(member: Member) -> bool:
    """A main thread that only sits in an Event or a join while another thread runs the server's loop."""
    lead = member.lead
    if lead is None or lead.last.activity not in (Activity.WAIT_EVENT, Activity.WAIT_LOCK):
        return False
    aspect = lead.last.match.aspect if lead.last.match else None
    if lead.last.activity is Activity.WAIT_LOCK and (aspect is None or aspect.waits_for != "thread"):
        return False
    matches = [track.last.match for track in member.threads if track is not lead]
    return any(m is not None and (m.aspect or m.phase).id in _SERVING for m in matches)


def _listens_to_its_parent(member: Member) -> bool:
    """A worker that reads the pipe its parent writes to waits for its next task.

    Not at a rendezvous: torchrun's agent keeps the store, so there, too, every rank reads what comes from its parent.
    """
    lead, process = member.lead, member.last
    if _is_among_peers(lead):
        return False
    call = lead.last.thread.syscall if lead else None
    if lead is None or call is None or call.fd is None or lead.last.activity is not Activity.WAIT_PEER:
        return False
    ends = {pid for f in process.files if f.fd == call.fd for pid in f.other_end}
    ends |= {pid for s in process.sockets if s.fd == call.fd for pid in s.peers}
    return process.ppid is not None and process.ppid in ends


def _is_among_peers(lead: ThreadTrack | None) -> bool:
    """Whether what it does there is to wait for the other ranks; Python's own waits do not say for whom they are."""
    match = lead.last.match if lead else None
    part = (match.aspect or match.phase) if match is not None else None
    return part is not None and part.server != "python" and part.waits_for == "peers"


def same_group(a: Rank | None, b: Rank | None) -> bool:
    """Whether two ranks share the coordinates outside tensor parallelism; unknown counts as the same."""
    if a is None or b is None:
        return True
    return a.dp == b.dp and a.pp == b.pp


def collective_name(member: Member) -> str | None:
    """The operation its lead stands in (``all_reduce``), without class or wrapper."""
    view = member.lead.last if member.lead else None
    if view is None or view.match is None or view.thread.stack is None:
        return None
    aspect = view.match.aspect or view.match.phase
    if aspect.server == "python":
        return aspect.id.rpartition(".")[2]  # its frames are primitives: Condition.wait says nothing
    index = view.match.aspect_frame if view.match.aspect_frame is not None else view.match.frame
    return view.thread.stack.frames[index].function.rsplit(".", 1)[-1]


def is_behind(peer: Member, member: Member) -> bool:
    """Whether the Flight Recorder shows ``peer`` at a lower number than ``member`` in a group both are in."""
    theirs, ours = newest_sequences(peer.last.flight), newest_sequences(member.last.flight)
    return any(theirs[group] < ours[group] for group in theirs.keys() & ours.keys())


def same_dp(a: Rank | None, b: Rank | None) -> bool:
    """Whether two ranks belong to the same data-parallel replica."""
    return a is None or b is None or a.dp is None or b.dp is None or a.dp == b.dp
