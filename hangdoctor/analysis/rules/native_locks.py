"""The GIL against a lock of the loader, the driver or the C library: seen in native frames, where no owner is recorded.

A thread that waits for the GIL inside a callback still holds what its caller locked (``dl_iterate_phdr`` keeps the
loader's lock while it calls back). When another thread wants that same lock and is not itself waiting for the GIL, it
came there from Python with the GIL in hand: neither can go on. A driver call that never sleeps by itself, blocked
inside the driver, waits for the driver's lock in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.analysis.describe import name_thread
from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.case import Member, Movement, ThreadTrack
from hangdoctor.model import Frame
from hangdoctor.report import Cause, Confidence, Kind

_GIL = re.compile(
    r"^(take_gil|PyEval_RestoreThread|PyEval_AcquireThread|PyGILState_Ensure|_PyThreadState_Attach)$"
)
_LOCK = re.compile(
    r"^_*(GI_+)?(pthread_(mutex_(timed|clock)?lock|rwlock_(timed|clock)?(rd|wr)lock|spin_lock)(_full|_slow)?"
    r"|lll_lock_wait(_private)?|futex_(abstimed_)?wait(_common)?(64)?(_cancelable)?|syscall|futex_lock_pi|rtld_mutex_lock)$"
)
_NEVER_SLEEPS = re.compile(
    r"^(cudaSetDevice|cudaGetDevice|cudaEventQuery|cudaStreamQuery|cuCtxSetCurrent|cuCtxGetCurrent)$"
)
_DRIVER = re.compile(r"lib(cuda|cudart|amdhip64|hsa-runtime64)[.-]")
_PLAIN = re.compile(r"^_*(GI_+)?")
_LONG_S = 60.0
"""The first call of a process creates its context in here: seconds, on a loaded host up to a minute."""
_NEAR = 12
"""The GIL is taken within so many frames of where a thread stands."""


def check(situation: Situation) -> Finding | None:
    """Fires on a GIL against lock inversion, or on a call that never sleeps and is blocked."""
    for member in situation.case.members:
        found = _inversion(member) or _blocked_call(situation, member)
        if found is not None:
            return found
    return None


def _inversion(member: Member) -> Finding | None:
    wanting_gil = [t for t in member.threads if _gil_index(t) is not None]
    for holder in member.threads:
        region = _wanted_region(holder)
        if region is None:
            continue
        inside = [t for t in wanting_gil if t is not holder and _is_inside(t, region)]
        if inside:
            because = (
                f"deadlock: thread {_name(inside[0])} waits for the GIL inside {region}, "
                f"whose lock it holds; thread {_name(holder)} waits for that lock and has not given up the GIL"
            )
            suspects = tuple(Suspect(member, track) for track in (holder, *inside))
            return Finding(
                Kind.HUNG, Confidence.LIKELY, Cause.LOCK_CYCLE, because, suspects, needs_no_second_look=True
            )
    return None


def _frames(track: ThreadTrack) -> tuple[Frame, ...]:
    stack = track.last.thread.stack
    return stack.frames if stack is not None else ()


def _gil_index(track: ThreadTrack) -> int | None:
    names = [frame.function for frame in _frames(track)[:_NEAR]]
    return next((index for index, name in enumerate(names) if _GIL.match(name)), None)


def _wanted_region(track: ThreadTrack) -> str | None:
    """The function around the lock that a thread waits for; ``None`` when it waits for none, or for the GIL."""
    frames = _frames(track)
    if track.movement is Movement.MOVING or not frames or not _LOCK.match(frames[0].function):
        return None
    if _gil_index(track) is not None:
        return None
    around = next((f.function for f in frames if not _LOCK.match(f.function)), None)
    is_lock = any(
        "mutex" in f.function or "rwlock" in f.function or "lll_lock" in f.function for f in frames[:6]
    )
    return _plain(around) if around is not None and is_lock else None


def _is_inside(track: ThreadTrack, region: str) -> bool:
    """Whether a frame outside of the wait for the GIL is ``region``."""
    start = _gil_index(track)
    return start is not None and region in _plain_names(_frames(track)[start + 1 :])


def _plain_names(frames: Iterable[Frame]) -> set[str]:
    return {_plain(frame.function) for frame in frames}


def _plain(function: str) -> str:
    """``dl_iterate_phdr`` for ``__GI___dl_iterate_phdr``."""
    return _PLAIN.sub("", function)


def _name(track: ThreadTrack) -> str:
    tid = f" ({track.tid})" if track.tid is not None else ""
    return f"{name_thread(track) or '?'}{tid}"


def _blocked_call(situation: Situation, member: Member) -> Finding | None:
    """Below a call that only asks or sets, frames of the driver: it waits there for a lock."""
    for track in member.threads:
        frames = _frames(track)
        index = next((i for i, f in enumerate(frames[:_NEAR]) if _NEVER_SLEEPS.match(f.function)), None)
        if (
            index is None
            or index < 2
            or track.movement is Movement.MOVING
            or not all(_DRIVER.search(f.module or f.file) for f in frames[1:index])
        ):
            continue
        call = frames[index].function
        is_long = track.movement is Movement.STILL and situation.case.window_s >= _LONG_S
        return Finding(
            Kind.HUNG if is_long else Kind.UNKNOWN,
            Confidence.POSSIBLE,
            Cause.LOCK_HELD,
            f"{call} never sleeps by itself, so it waits for a lock of the driver; a caller that keeps the GIL blocks "
            "all other threads meanwhile",
            (Suspect(member, track),),
            decider="which thread is inside the driver: native stacks of all threads",
            command="py-spy dump --native --pid {pid}",
        )
    return None


RULE = Rule(
    id="native-locks",
    order=32,
    summary="Native frames show a lock inversion with the GIL, or a driver call that waits for the driver's lock.",
    refuted_by="any of the threads leaving its wait in a later look",
    check=check,
)
