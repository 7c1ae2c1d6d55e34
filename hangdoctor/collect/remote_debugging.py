"""Stacks through CPython's own ``_remote_debugging``, where hangdoctor runs on the same version (3.14 or later).

For what our own reader does not know: a version newer than it, or one without a GIL. The module reads the target's
memory as py-spy does, without a stop, a signal or a write, and needs no process of its own: 60 threads of 40 frames
take 1.4 ms. It is private and changes with every version, so it is asked for what it has, and everything that goes
wrong sends the process on to py-spy.

That of 3.14 ends a stack where C code called Python, which every thread has (``Context.run``): what is further out is
read by our own reader, as is who has the GIL. Thread names it has none; from 3.14 on the kernel knows them too.

It runs in a reader, behind a deadline, for it walks structures that change while it reads.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hangdoctor.collect.cpython.chains import Trace
from hangdoctor.collect.cpython.view import open_view
from hangdoctor.collect.namespaces import map_threads
from hangdoctor.collect.own_stacks import StackReader
from hangdoctor.collect.stacks import Dump, DumpedThread, FrameTable, is_rooted
from hangdoctor.model import Frame, Method, Process

FIRST_VERSION = (3, 14)
_TRIES = 3
"""A thread that runs makes a read fail now and then; py-spy has its own ways with those that run hot."""


class Unreadable(Exception):
    """Not this time, or not with this version of the module."""


def is_here() -> bool:
    """Whether this interpreter has the module."""
    return sys.version_info >= FIRST_VERSION and _find_module() is not None


def is_same_version(process: Process) -> bool:
    """Whether a process runs the version that we run, free-threaded or not: the module refuses all others."""
    suffix = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return process.versions.get("python") == f"{sys.version_info[0]}.{sys.version_info[1]}{suffix}"


def _find_module() -> Any:
    try:
        return importlib.import_module("_remote_debugging")
    except ImportError:
        return None


def read_stacks(pid: int) -> Dump:
    """All Python threads of ``pid``, tids as the target numbers them. Raises :class:`Unreadable`.

    Read twice: a stack that differs is marked as torn.
    """
    began, started_at = time.monotonic(), time.time()
    try:
        unwinder = _find_module().RemoteUnwinder(pid, all_threads=True)
        first, second = _read(unwinder), _read(unwinder)
        torn = frozenset(tid for tid, frames in first.items() if frames != second.get(tid))
        inside = _Inside(pid)
        to_frames = _Frames()
        threads = tuple(inside.complete(tid, to_frames.convert(frames)) for tid, frames in first.items())
    except Exception as error:  # the module raises whatever it meets, from RuntimeError to UnicodeDecodeError
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    if inside.main_tid not in second:
        # A sub-interpreter hides the others, or the main thread has ended: py-spy's words for it are known.
        raise Unreadable("the main thread is not among its threads")
    duration_s = time.monotonic() - began
    return Dump(pid, threads, Method.REMOTE_DEBUGGING, started_at + duration_s / 2, duration_s, torn)


def _read(unwinder: Any) -> dict[int, Sequence[Any]]:
    """The frames of each thread as the module describes them, by tid."""
    for attempt in range(_TRIES):
        try:
            threads = list(_list_threads(unwinder.get_stack_trace()))
        except Exception:
            if attempt == _TRIES - 1:
                raise
        else:
            return {int(thread.thread_id): list(thread.frame_info) for thread in threads}
    raise Unreadable("no try was made")


def _list_threads(answer: Iterable[Any]) -> Iterator[Any]:
    """3.14 lists threads, 3.15 interpreters with their threads."""
    for item in answer:
        inner = getattr(item, "threads", None)
        if inner is None:
            yield item
        else:
            yield from inner


class _Frames:
    """Equal frames once: what 3.14 describes them with can be a key."""

    def __init__(self) -> None:
        self._table = FrameTable()
        self._known: dict[Any, Frame] = {}

    def convert(self, frames: Sequence[Any]) -> tuple[Frame, ...]:
        """Python's own; 3.15 can mark where C code and the garbage collector run, in frames without a file."""
        return tuple([self._frame(frame) for frame in frames if not frame.filename.startswith("~")])

    def _frame(self, frame: Any) -> Frame:
        known = self._known.get(frame)
        if known is None:
            known = self._known[frame] = self._table.frame(frame.funcname, frame.filename, _line(frame), None)
        return known


def _line(frame: Any) -> int:
    line = getattr(frame, "lineno", None)  # 3.14
    if line is None:
        location = getattr(frame, "location", None)  # 3.15: a LocationInfo, or nothing for made-up frames
        line = getattr(location, "lineno", None)
    return int(line or 0)


class _Inside:
    """What our own reader adds."""

    def __init__(self, pid: int) -> None:
        inner_tids = {tid: inner for inner, tid in map_threads(pid).items()}
        self.main_tid = inner_tids.get(pid, pid)
        """As the target numbers it, like all others here."""
        view = open_view(pid)
        self._reader: StackReader | None = None
        self._traces: dict[int | None, Trace] = {}
        self._holder: int | None = None
        if view is not None:
            holder = view.interpreter.gil_holder()
            self._holder = None if holder is None else inner_tids.get(holder)
            self._reader = StackReader(view, FrameTable())
            self._traces = {inner_tids.get(tid): seen.trace for tid, seen in view.threads.items()}

    def complete(self, tid: int, frames: tuple[Frame, ...]) -> DumpedThread:
        """The thread with its whole stack. Raises :class:`Unreadable` when its outer end cannot be had."""
        if frames and not is_rooted(frames):
            frames = (*frames, *self._outer_frames(tid, frames))
        return DumpedThread(
            pthread=tid,
            tid=tid,
            name="MainThread" if tid == self.main_tid else None,
            owns_gil=tid == self._holder,
            frames=frames,
        )

    def _outer_frames(self, tid: int, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """Those beyond the last that was seen, if the same function is found at its depth."""
        trace = self._traces.get(tid)
        if self._reader is None or trace is None:
            raise Unreadable(f"thread {tid} has no outer end")
        last = len(frames) - 1
        rest = self._reader.frames_of(trace.points[last:])
        if not rest or rest[0].function != frames[last].function:
            raise Unreadable(f"the stack of thread {tid} moves")
        return rest[1:]
