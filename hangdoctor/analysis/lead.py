"""Which thread speaks for a process.

Nearly always the main thread. Not when it has only handed its work over and waits for it (``Thread.join``, a
future, a queue): then the one other Python thread that is inside known work does, as in SGLang's older overlap
scheduler (``forward_thread_func``) or a training loop run in a worker thread.
"""

from __future__ import annotations

import re
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
    worker = next((t for t in tracks if t is not main and _works_for_it(main.last, t.last)), None)
    if worker is not None:
        return worker
    if not _has_handed_over(main.last):
        return main
    others = [t for t in tracks if t is not main and _interest(t.last) >= 2]
    return max(others, key=lambda track: _interest(track.last), default=main)


def _main_thread(identity: Identity, tracks: Sequence[ThreadTrack]) -> ThreadTrack | None:
    named = [t for t in tracks if t.last.thread.name == "MainThread"]
    if named:
        return named[0]
    return next((t for t in tracks if t.tid is not None and t.tid == identity.key.pid), None)


def _works_for_it(main: ThreadView, other: ThreadView) -> bool:
    """Whether ``other`` is the thread in which an idle-looking main thread lets the model run.

    SGLang up to 0.4 runs the forward in ``forward_thread_func`` while the main thread waits for its result, in a
    phase of the server that looks like rest. Where that thread is inside the model it is what the process does.
    """
    if other.machinery is not None or not _rests(main):
        return False
    name, stack = other.thread.name or "", other.thread.stack
    if stack is None or not stack.frames:
        return bool(_WORKER_NAME.search(name)) and other.thread.is_active_hint is True
    if other.match is not None and other.match.phase.stage is not Stage.ASPECT:
        return other.match.phase.stage is Stage.SERVING and other.activity not in _HANDED_OVER
    return (
        any(_MODEL_CODE.search(frame.file) for frame in stack.frames)
        and other.activity is not Activity.WAIT_WORK
    )


_WORKER_NAME = re.compile(r"forward_thread_func")
_MODEL_CODE = re.compile(
    r"torch/nn/modules/module\.py|torch/_ops\.py|(^|/)flashinfer/|pynccl|torch/cuda/graphs\.py"
)


def _rests(view: ThreadView) -> bool:
    """Idle, or waiting for a result or for requests: not in the middle of a step of its own."""
    if view.activity in _HANDED_OVER:
        return True
    phases = [p for p in (view.match.phase, view.match.aspect) if p is not None] if view.match else []
    return any(p.stage is Stage.IDLE or p.id.endswith(("overlap-thread", "receive-requests")) for p in phases)


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
