"""Sentences about processes and threads, in the words of the people who run them."""

from __future__ import annotations

from hangdoctor.analysis.findings import Suspect
from hangdoctor.analysis.standing import is_dead, is_stopped
from hangdoctor.case import Member, Movement, ThreadTrack, naming_frame
from hangdoctor.knowledge.catalogue import Stage
from hangdoctor.model import Activity, Frame, Method, Stack

_SHOWN_FRAMES = 6


def name_member(member: Member) -> str:
    """``TP1 (pid 4902)``; without the pid where a foreign dump gave none."""
    pid = member.last.known_pid
    return member.label if pid is None else f"{member.label} (pid {pid})"


def name_frame(frame: Frame) -> str:
    """``load_shard (loader.py:19)``."""
    place = frame.file.rsplit("/", 1)[-1] or frame.module or "?"
    return f"{frame.function} ({place}:{frame.line})" if frame.line else f"{frame.function} ({place})"


def name_stack(stack: Stack, limit: int = _SHOWN_FRAMES) -> str:
    """The innermost frames, innermost first, separated by a left triangle."""
    names = [name_frame(frame) for frame in stack.frames[:limit]]
    more = len(stack.frames) - limit
    return " ◂ ".join(names) + (f" ◂ {more} more" if more > 0 else "")


def name_thread(track: ThreadTrack | None) -> str | None:
    """Python's name, else the kernel's."""
    if track is None:
        return None
    thread = track.last.thread
    return thread.name or thread.comm


_PAST = {Method.FLIGHT_RECORDER: "issued the stuck work", Method.TRACEBACK: "failed"}
"""Stacks that do not show where a thread stands now."""


def doing(suspect: Suspect) -> str:
    """What a suspect does, as a clause after its name: ``sleeps in load_shard (gloo.py:19)``."""
    member, track = suspect.member, suspect.track
    if is_dead(member):
        return "has vanished" if member.is_gone else "is dead (zombie)"
    where = _where(track)
    if is_stopped(member):
        return f"is stopped{where}"
    if track is None:
        return "shows no threads"
    past = _PAST.get(track.last.thread.stack.method) if track.last.thread.stack else None
    if past is not None:
        return f"{past}{where}"
    if member.compilers:
        names = ", ".join(sorted({p.comm or "?" for p in member.compilers}))
        return f"compiles{where} ({names})"
    phase = member.phase if track is member.lead else None
    if phase is not None and phase.stage is Stage.STARTUP:
        return f"is {phase.title}{where}{_cpu(track)}"
    view = track.last
    if view.activity is Activity.WAIT_LOCK and view.thread.lock is not None:
        return f"waits for a {view.thread.lock.kind}{where}"
    if (
        view.activity in (Activity.BLOCKED, Activity.RUN)
        and phase is not None
        and phase.stage is not Stage.ASPECT
    ):
        return f"is {phase.title}{where}{_cpu(track)}"
    return f"{view.activity.value}{where}{_cpu(track)}"


def _where(track: ThreadTrack | None) -> str:
    frame = naming_frame(track.last) if track else None
    return f" in {name_frame(frame)}" if frame else ""


def _cpu(track: ThreadTrack) -> str:
    share = track.cpu_share
    if share is None or share < 0.05:
        return ""
    return f", {100 * share:.0f} % of a core"


def moved(movement: Movement) -> bool | None:
    """Whether a thread moved, for tables: ``None`` when it cannot be told."""
    if movement is Movement.UNKNOWN:
        return None
    return movement in (Movement.MOVING, Movement.CYCLING)
