"""The threads of one process as they were at one moment, shared by the steps of a look that follow each other.

Stacks are read first, and some milliseconds later locks, which need the same frames: reading them once takes a third
off both (measured). Whoever needs to know what is so now, or that nothing has changed, looks anew.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from hangdoctor.collect.cpython.chains import Trace
from hangdoctor.collect.cpython.frames import FrameReader
from hangdoctor.collect.cpython.interpreter import Interpreter, ThreadState, open_interpreter
from hangdoctor.collect.cpython.traces import trace_threads
from hangdoctor.collect.memory import Memory

_BUDGET_BYTES = 32 << 20
_THREAD_BYTES = 64 << 10
"""Read of a thread, by the page: its state, the end of its C stack, two chunks of frames."""
_RECENT_S = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A Python thread and the calls that it was in."""

    state: ThreadState
    trace: Trace


class View:
    """What is read through this is read once."""

    def __init__(self, interpreter: Interpreter, tids: Collection[int] | None = None) -> None:
        """``tids``: of the threads that are looked at, all by default. Raises ``OSError`` when nothing may be read."""
        states = [state for state in interpreter.threads if tids is None or state.tid in tids]
        self.interpreter = interpreter
        self.memory = Memory(interpreter.memory.pid, _BUDGET_BYTES + len(states) * _THREAD_BYTES)
        self.frames = FrameReader(interpreter, self.memory)
        self.taken_at = time.monotonic()
        traces = trace_threads(interpreter, self.memory, states)
        self.threads = {state.tid: Seen(state, trace) for state, trace in zip(states, traces, strict=True)}
        """By the host's tid."""

    def anew(self, tids: Collection[int] | None = None) -> View | None:
        """Some of the threads, or all, as they are now, those that began since too; ``None``: it has ended."""
        interpreter = open_interpreter(self.memory.pid)
        return None if interpreter is None else View(interpreter, tids)


_recent: dict[int, View] | None = None
"""The last one. What is asked about a process is asked at once, and 300 of them are not to fill our memory."""


def remember_views() -> None:
    """From now on, in this process, a view is kept for the step that comes next."""
    global _recent
    _recent = {}


def open_view(pid: int) -> View | None:
    """All Python threads of a process; ``None`` without an interpreter that is known.

    Raises ``OSError`` when memory may not be read. Behind a deadline: reading ``maps`` may block.
    """
    interpreter = open_interpreter(pid)
    if interpreter is None:
        return None
    view = View(interpreter)
    if _recent is not None:
        _recent.clear()
        _recent[pid] = view
    return view


def take_view(pid: int) -> View | None:
    """The one that was kept a moment ago, which is kept no longer; else as :func:`open_view`."""
    kept = _recent.pop(pid, None) if _recent is not None else None
    if kept is not None and time.monotonic() - kept.taken_at <= _RECENT_S:
        return kept
    return open_view(pid)
