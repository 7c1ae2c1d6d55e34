"""Python stacks from the interpreter's own structures in the target's memory: nothing is started, stopped, signalled.

The first choice wherever the version is known (:mod:`hangdoctor.collect.cpython.layouts`): a tenth of the time of
py-spy, which starts a program for each process, reads the symbols of its libpython anew and makes fifteen system calls
a frame; and it needs neither ptrace nor py-spy. It is believed only as far as it can be checked: every chain of frames
must be followed to its end, every frame have a function and a file, and each stack end where Python's stacks end or be
found again by a second look. A process with a stack that fails this is py-spy's to read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hangdoctor.collect.cpython.attributes import read_attributes
from hangdoctor.collect.cpython.chains import Point
from hangdoctor.collect.cpython.layouts import TAG_BITS, FrameLayout, OldFrameLayout
from hangdoctor.collect.cpython.traces import unit_of
from hangdoctor.collect.cpython.view import Seen, View, open_view
from hangdoctor.collect.stacks import Dump, DumpedThread, FrameTable, is_rooted
from hangdoctor.model import Frame, Method

PROCESS_S = 1.0
PER_THREAD_S = 0.002
"""Three to twenty times what 40 frames take."""
_LOOKS = 4
"""At most, at stacks that do not end as they should. What runs through small calls never does."""
_NAME_INDEX, _ARGS_INDEX = 1, 2
"""``Thread.__init__`` sets ``_target``, ``_name``, and then ``_args``, a tuple (Lib/threading.py of 3.10 to 3.14)."""
_TYPE = 8
_TRAMPOLINE = "<interpreter trampoline>"
"""3.12's entry frames (Python/pylifecycle.c)."""


def read_stacks(pid: int) -> Dump | None:
    """All Python threads of a process, with the host's tids; ``None`` without an interpreter that is known.

    ``torn`` are the threads whose stacks failed the checks of this module. Raises ``OSError`` when memory may not be
    read. Behind a deadline: reading ``maps`` may block.
    """
    began, started_at = time.monotonic(), time.time()
    view = open_view(pid)
    if view is None or not view.threads:
        return None
    table = FrameTable()
    seen = _look(view, table)
    for _ in range(_LOOKS - 1):
        doubtful = {one.thread.tid for one in seen.values() if one.is_doubtful and one.thread.tid is not None}
        if not doubtful:
            break
        # Those alone, which takes microseconds: a thread that runs has moved on before all of many are read.
        seen = _settle(seen, _look(View(view.interpreter, doubtful), table))
    duration_s = time.monotonic() - began
    return Dump(
        pid,
        tuple(one.thread for one in seen.values()),
        Method.MEMORY,
        started_at + duration_s / 2,
        duration_s,
        torn=frozenset(pthread for pthread, one in seen.items() if one.is_doubtful),
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """One thread in one look."""

    thread: DumpedThread
    is_broken: bool
    """A frame cannot be what it should be."""
    is_doubtful: bool
    """Broken, or it does not end where Python's stacks end: torn, or a thread that C code made.

    So is one without frames: between two frames of C a thread that runs seems to have none.
    """


def _settle(first: dict[int, _Read], second: dict[int, _Read]) -> dict[int, _Read]:
    """What is no longer in doubt after another look: whole by now, or the same again."""
    settled = dict(first)
    for pthread, one in first.items():
        again = second.get(pthread)
        if not one.is_doubtful or again is None:
            continue
        if not again.is_doubtful:
            settled[pthread] = again
        elif not one.is_broken and again.thread.frames == one.thread.frames:
            settled[pthread] = replace(one, is_doubtful=False)
        else:
            settled[pthread] = again
    return settled


def _look(view: View, table: FrameTable) -> dict[int, _Read]:
    """By pthread."""
    reader = StackReader(view, table)
    holder = view.interpreter.gil_holder()
    found = {}
    for tid, seen in view.threads.items():
        frames = reader.frames_of(seen.trace.points)
        is_broken = not seen.trace.is_whole or not reader.can_be(seen.trace.points)
        thread = DumpedThread(
            pthread=seen.state.ident or seen.state.address,
            tid=tid,
            name=reader.name_of(seen, frames),
            owns_gil=tid == holder,
            frames=tuple(filter(_can_be, frames)) if is_broken else frames,
        )
        is_doubtful = is_broken or not frames or not is_rooted(frames)
        found[thread.pthread] = _Read(thread, is_broken, is_doubtful)
    return found


def _can_be(frame: Frame) -> bool:
    """A frame of the interpreter itself stands in for C code and is left out, unless it was read while it was made."""
    return bool(frame.function and frame.file) and frame.function != _TRAMPOLINE


class StackReader:
    """The stacks of a view, with names and lines."""

    def __init__(self, view: View, table: FrameTable) -> None:
        self._view = view
        self._table = table
        self._frame_layout = view.interpreter.layout.frame
        self._known: dict[Point, Frame] = {}
        self._impossible: set[Point] = set()
        self._types: dict[int, tuple[int, int]] = {}
        self._stacks: dict[int, tuple[Sequence[Point], tuple[Frame, ...]]] = {}
        """By the identity of the points, which are kept so that it stays theirs: threads of a pool share them."""

    def frames_of(self, points: Sequence[Point]) -> tuple[Frame, ...]:
        """Functions, files and lines; empty names where they cannot be read."""
        known = self._stacks.get(id(points))
        if known is None:
            frames = tuple([self._frame(point) for point in points])
            known = self._stacks[id(points)] = points, frames
        return known[1]

    def _frame(self, point: Point) -> Frame:
        frame = self._known.get(point)
        if frame is None:
            place = self._view.frames.place_of(point[0], unit_of(point, self._frame_layout))
            frame = self._known[point] = self._table.frame(place.function, place.file, place.line or 0, None)
            if not _can_be(frame):
                self._impossible.add(point)
        return frame

    def can_be(self, points: Sequence[Point]) -> bool:
        """Whether each of the points, which :meth:`frames_of` has seen, may be a call."""
        return not self._impossible or self._impossible.isdisjoint(points)

    def name_of(self, seen: Seen, frames: Sequence[Frame]) -> str | None:
        """The name of a ``threading.Thread``, from the ``self`` of its outermost frame.

        ``None`` for a subclass that sets attributes of its own before it calls ``Thread.__init__``.
        """
        interpreter, memory = self._view.interpreter, self._view.memory
        if seen.state.tid == memory.pid:
            return "MainThread"
        layout = self._frame_layout or interpreter.layout.old_frame
        if layout is None or not frames or frames[-1].function.rpartition(".")[2] != "_bootstrap":
            return None
        try:
            instance = memory.u64(seen.trace.addresses[-1] + layout.slots) & ~TAG_BITS
            values = read_attributes(interpreter, memory, instance)
            if len(values) <= _ARGS_INDEX:
                return None
            name, args = values[_NAME_INDEX], values[_ARGS_INDEX]
            types = memory.u64(name + _TYPE), memory.u64(args + _TYPE)
            if types != self._types_in(seen.trace.points[-1][0], layout):
                return None
            return self._view.frames.text(name) or None
        except OSError:
            return None

    def _types_in(self, code: int, layout: FrameLayout | OldFrameLayout) -> tuple[int, int]:
        """The types ``str`` and ``tuple``: those of a code's name, and of its tuple of names."""
        if code not in self._types:
            memory = self._view.memory
            name, names = memory.u64(code + layout.name), memory.u64(code + layout.names)
            self._types[code] = memory.u64(name + _TYPE), memory.u64(names + _TYPE)
        return self._types[code]
