"""What moved between two looks, rank by rank and thread by thread: the raw material of "is it still moving?".

The two looks may be of one capture or of two captures of the same job taken at different times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hangdoctor.analysis.build import build_case
from hangdoctor.analysis.describe import name_frame, name_thread
from hangdoctor.analysis.log_moves import log_progress
from hangdoctor.analysis.progress import describe_progress
from hangdoctor.case import Member, Movement, ThreadTrack, naming_frame
from hangdoctor.errors import WrongUsage
from hangdoctor.knowledge import Knowledge
from hangdoctor.knowledge.catalogue import RoleKind
from hangdoctor.model import Capture, Process, Snapshot
from hangdoctor.report import ProgressClass


@dataclass(frozen=True, slots=True)
class ThreadDifference:
    """One thread that moved, appeared or vanished."""

    tid: int | None
    name: str | None
    movement: Movement
    before: str | None
    """The frame that names what it did at the first look; ``None`` when it was not there."""
    after: str | None
    cpu_s: float | None
    switches: int | None


@dataclass(frozen=True, slots=True)
class ProcessDifference:
    """One process over the two looks."""

    pid: int
    label: str
    change: str
    """``same``, ``new`` or ``gone``."""
    phase_before: str | None
    phase_after: str | None
    progress: str | None
    """The strongest movement in words, and its class in front: ``proof: it has read 41 % of x``."""
    counters: tuple[tuple[str, int], ...]
    """Counters that changed, by how much: bytes, faults, CPU ticks."""
    threads: tuple[ThreadDifference, ...]
    still: int
    """Threads that were at the same place at both looks and did not run."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Everything that moved between two looks."""

    seconds: float | None
    processes: tuple[ProcessDifference, ...]
    log: str | None
    """The newest line of the log that says something new."""


def compare(before: Capture, after: Capture, knowledge: Knowledge) -> Difference:
    """Difference between the last look of ``before`` and the last of ``after``.

    For one and the same capture: between its first and last look. Raises :class:`WrongUsage` when there are not
    two looks to compare.
    """
    first, last = _pick(before, after)
    pair = replace(after, snapshots=(first, last))
    case = build_case(pair, knowledge)
    times = (first.taken_at, last.taken_at)
    return Difference(
        seconds=times[1] - times[0] if times[0] is not None and times[1] is not None else None,
        processes=tuple(_process(m) for m in case.members if m.kind is not RoleKind.HELPER or _changed(m)),
        log=log_progress(pair.snapshots).text,
    )


def _pick(before: Capture, after: Capture) -> tuple[Snapshot, Snapshot]:
    if before == after:
        if len(after.snapshots) < 2:
            raise WrongUsage(
                "this capture holds a single look: there is nothing to compare it with",
                hint="take another: hangdoctor collect PID -o later.hang; hangdoctor diff FIRST later.hang",
            )
        return after.snapshots[0], after.snapshots[-1]
    if not before.snapshots or not after.snapshots:
        raise WrongUsage("one of the two captures holds no look at all")
    first, last = before.snapshots[-1], after.snapshots[-1]
    if first.taken_at is not None and last.taken_at is not None and first.taken_at > last.taken_at:
        first, last = last, first
    return first, last


def _changed(member: Member) -> bool:
    return None in member.looks


def _process(member: Member) -> ProcessDifference:
    old, new = member.looks
    change = "same" if old is not None and new is not None else "new" if old is None else "gone"
    moved = [t for t in member.threads if t.movement is not Movement.STILL]
    phases = member.lead.phases if member.lead else (None, None)
    progress = None
    if member.progress.kind is not ProgressClass.NONE:
        progress = f"{member.progress.kind.value}: it {describe_progress(member.progress)}"
    return ProcessDifference(
        pid=member.pid,
        label=member.label,
        change=change,
        phase_before=phases[0].id if phases[0] else None,
        phase_after=phases[-1].id if phases[-1] else None,
        progress=progress,
        counters=_counters(old, new) if old is not None and new is not None else (),
        threads=tuple(_thread(t) for t in moved),
        still=len(member.threads) - len(moved),
    )


def _thread(track: ThreadTrack) -> ThreadDifference:
    first, last = track.views[0], track.views[-1]
    window = track.windows[0] if track.windows else None
    before = naming_frame(first) if first else None
    after = naming_frame(last) if last else None
    return ThreadDifference(
        tid=track.tid,
        name=name_thread(track),
        movement=track.movement,
        before=name_frame(before) if before else None,
        after=name_frame(after) if after else None,
        cpu_s=window.cpu_s if window else None,
        switches=window.switches if window else None,
    )


def _counters(old: Process, new: Process) -> tuple[tuple[str, int], ...]:
    pairs: list[tuple[str, int | None, int | None]] = [
        ("minor_faults", old.minor_faults, new.minor_faults),
        ("major_faults", old.major_faults, new.major_faults),
        ("rss_bytes", old.rss_bytes, new.rss_bytes),
        ("user_ticks", old.user_ticks, new.user_ticks),
        ("system_ticks", old.system_ticks, new.system_ticks),
    ]
    if old.io is not None and new.io is not None:
        pairs += [
            ("read_chars", old.io.read_chars, new.io.read_chars),
            ("write_chars", old.io.write_chars, new.io.write_chars),
            ("read_bytes", old.io.read_bytes, new.io.read_bytes),
            ("write_bytes", old.io.write_bytes, new.io.write_bytes),
        ]
    positions = {(f.fd, f.target): f.position for f in old.files}
    pairs += [(f"position of {f.target}", positions.get((f.fd, f.target)), f.position) for f in new.files]
    return tuple((name, b - a) for name, a, b in pairs if a is not None and b is not None and a != b)
