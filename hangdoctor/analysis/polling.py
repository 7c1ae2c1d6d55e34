"""A rank that sleeps and looks again: for a file, a flag, a child. It moves all the time and may get nowhere.

Whoever sleeps between two looks at the world waits, as whoever sleeps on a lock does. Unlike a lock a poll shows no
holder, so what it could be waiting for is looked for instead: a child or a thread that works, bytes from storage or
the network, another rank that proves progress. Only without any of them does nothing come of it.
"""

from __future__ import annotations

from hangdoctor.analysis.charges import LEAST_STILLNESS_S, Charge, moving_after_all, undecided
from hangdoctor.analysis.findings import Finding
from hangdoctor.analysis.gpu import GpuActivity
from hangdoctor.analysis.loads import LOAD_RATE_BYTES_S
from hangdoctor.analysis.progress import LEAST_STREAM_BYTES_S, describe_progress
from hangdoctor.case import Case, Member, ThreadTrack, ThreadView, naming_frame
from hangdoctor.model import Activity, Process
from hangdoctor.report import Cause, Confidence, Kind, ProgressClass

LEAST_LOOKS = 3
RESTING_CPU_SHARE = 0.1
"""A poll costs little of a core. Above this a thread works, whatever it does in between."""


def delegates(charge: Charge) -> Finding | None:
    """It sleeps while a process below it works: a download, a conversion."""
    member, track = charge.suspect.member, charge.suspect.track
    if track is None or track is not member.lead or track.last.activity is not Activity.TIMED_SLEEP:
        return None
    below = _below(charge.case, member)
    for child in below:
        if child.progress.kind is ProgressClass.PROOF:
            return moving_after_all(charge, child.progress)
    busy = [child for child in below if _works(charge.case, child)]
    if not busy:
        return None
    return undecided(
        charge,
        Cause.LAGGARD,
        f"{busy[0].last.comm or 'a process'} (pid {busy[0].pid}) below it works",
        "what that process does",
        f"hangdoctor attach {busy[0].pid} --interval 15",
    )


def polls(charge: Charge) -> Finding | None:
    """Asleep in one and the same function at nearly every look, and nothing that it could be waiting for moves."""
    member, track = charge.suspect.member, charge.suspect.track
    if not charge.is_waited_for or track is None or track is not member.lead:
        return None
    seconds = sum(w.seconds for w in track.windows)
    if not _sleeps_in_one_place(track) or seconds < LEAST_STILLNESS_S or _something_moves(charge, member):
        return None
    switches = sum(w.switches or 0 for w in track.windows)
    often = f" {switches / seconds:.0f} times a second" if switches >= seconds else ""
    because = f"it sleeps and looks again{often}, and nothing comes of it in {seconds:.0f} s"
    if member.progress.kind is ProgressClass.WEAK and member.progress.unit is not None:
        because += f"; it {describe_progress(member.progress)}"
    return Finding(Kind.HUNG, Confidence.POSSIBLE, Cause.LAGGARD, because, (charge.suspect,), member.progress)


def _sleeps_in_one_place(track: ThreadTrack) -> bool:
    """In the same functions at all looks (lines may differ), and asleep at all but one of them."""
    views = [view for view in track.views if view is not None]
    if len(views) < LEAST_LOOKS or len(views) < len(track.views):
        return False
    places = {_place(view) for view in views}
    asleep = sum(view.activity is Activity.TIMED_SLEEP for view in views)
    return (
        len(places) == 1
        and None not in places
        and asleep >= len(views) - 1
        and (track.cpu_share or 0.0) <= RESTING_CPU_SHARE
    )


def _place(view: ThreadView) -> tuple[tuple[str, str], ...] | None:
    """Functions from the one that names what it does outward; how it sleeps or looks further in may differ."""
    stack, named = view.thread.stack, naming_frame(view)
    if stack is None or named is None or stack.is_torn:
        return None
    calls = stack.frames[stack.frames.index(named) :]
    return tuple((frame.function, frame.file) for frame in calls)


def _something_moves(charge: Charge, member: Member) -> bool:
    """Anything that could be what it waits for, also where it cannot be seen: on another host."""
    case = charge.case
    if any(m.progress.kind is ProgressClass.PROOF for m in case.members):
        return True
    if case.expected_world is not None and case.expected_world > len(case.ranks):
        return True
    if charge.log is not None and charge.log.kind in (ProgressClass.PROOF, ProgressClass.WEAK):
        return True
    gpu = charge.gpu
    if gpu is not None and (gpu.activity is GpuActivity.COMPUTING or gpu.memory_grown_bytes):
        return True
    others = [track.demand_share or 0.0 for track in member.threads if track is not member.lead]
    return (
        sum(others) > RESTING_CPU_SHARE
        or _takes_in(case, member)
        or any(_works(case, child) for child in _below(case, member))
    )


def _below(case: Case, member: Member) -> list[Member]:
    """Its descendants that have lived through all looks: one that was started anew each time is part of the poll."""
    found: list[Member] = []
    queue = [member]
    while queue:
        parent = queue.pop()
        children = [
            m
            for m in case.members
            if m.last.ppid == parent.pid and m.key.host == parent.key.host and m not in found
        ]
        queue += children
        found += children
    return [m for m in found if None not in m.looks and m.last.state not in ("Z", "X")]


def _works(case: Case, child: Member) -> bool:
    return (child.cpu_share or 0.0) > RESTING_CPU_SHARE or _takes_in(case, child)


def _takes_in(case: Case, member: Member) -> bool:
    """Bytes from storage or the network. What a poll itself reads is in memory already."""
    first, last = next((look for look in member.looks if look is not None), None), member.last
    if first is None or not case.window_s:
        return False
    if first.io is not None and last.io is not None:
        stored = last.io.read_bytes - first.io.read_bytes
        if stored / case.window_s >= LOAD_RATE_BYTES_S:
            return True
    return (_received(last) - _received(first)) / case.window_s >= LEAST_STREAM_BYTES_S


def _received(process: Process) -> int:
    return sum(socket.bytes_received or 0 for socket in process.sockets)
