"""Which thread speaks for a process.

Nearly always the main thread. Not when it has only handed its work over and waits for it (``Thread.join``, a
future, a queue): then the one other Python thread that is inside known work does, as in SGLang's older overlap
scheduler (``forward_thread_func``) or a training loop run in a worker thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from hangdoctor.analysis.identify import Identity
from hangdoctor.case import ThreadTrack, ThreadView
from hangdoctor.knowledge.catalogue import Stage
from hangdoctor.model import Activity

_HANDED_OVER = frozenset({Activity.WAIT_WORK, Activity.BLOCKED, Activity.WAIT_LOCK, Activity.WAIT_EVENT})
_JOINING = ("join", "_wait_for_tstate_lock", "result", "wait")


def choose_lead(identity: Identity, tracks: Sequence[ThreadTrack]) -> ThreadTrack | None:
    """The track of the thread that stands for the process, or ``None`` when no thread was seen."""
    if not tracks:
        return None
    main = _main_thread(identity, tracks)
    if main is None:
        return max(tracks, key=lambda track: _interest(track.last))
    if not _has_handed_over(main.last):
        return main
    others = [t for t in tracks if t is not main and _interest(t.last) >= 2]
    return max(others, key=lambda track: _interest(track.last), default=main)


def _main_thread(identity: Identity, tracks: Sequence[ThreadTrack]) -> ThreadTrack | None:
    named = [t for t in tracks if t.last.thread.name == "MainThread"]
    if named:
        return named[0]
    return next((t for t in tracks if t.tid is not None and t.tid == identity.key.pid), None)


def _has_handed_over(view: ThreadView) -> bool:
    if view.match is not None and view.match.phase.stage is not Stage.ASPECT:
        return False  # a server's own phase is the news, also when it is idle
    if view.activity not in _HANDED_OVER or view.thread.stack is None:
        return False
    innermost = view.thread.stack.frames[:3]
    return any(frame.function.rsplit(".", 1)[-1] in _JOINING for frame in innermost)


def _interest(view: ThreadView) -> int:
    """0 machinery, 1 nothing known, 2 known work or wait, 3 a phase of the server itself."""
    if view.machinery is not None or view.thread.stack is None or not view.thread.stack.frames:
        return 0
    if view.match is None:
        return 1
    phase = view.match.phase
    if phase.stage in (Stage.STARTUP, Stage.SERVING):
        return 3
    # A collective or a GPU wait in another thread is the job's work; a pipe or a queue is just that thread's.
    return 2 if phase.stage is Stage.ASPECT and phase.server == "torch" else 1
