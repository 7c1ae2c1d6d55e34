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
from hangdoctor.collect.cpython.frames import FrameReader
from hangdoctor.collect.cpython.interpreter import Interpreter, ThreadState, find_interpreter
from hangdoctor.collect.cpython.layouts import TAG_BITS
from hangdoctor.collect.cpython.traces import Point, Trace, trace_threads, unit_of
from hangdoctor.collect.memory import Memory, read_regions
from hangdoctor.collect.namespaces import map_threads
from hangdoctor.collect.stacks import Dump, DumpedThread, FrameTable, is_rooted
from hangdoctor.model import Frame, Method

PROCESS_S = 1.0
PER_THREAD_S = 0.002
"""Three to twenty times what 40 frames take."""
_BUDGET_BYTES = 32 << 20
_THREAD_BYTES = 64 << 10
"""Read of a thread, by the page: its state, the end of its C stack, two chunks of frames."""
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
    interpreter = find_interpreter(Memory(pid, _BUDGET_BYTES), read_regions(pid), map_threads(pid))
    if interpreter is None or not interpreter.threads:
        return None
    table = FrameTable()
    seen = _look(interpreter, table)
    for _ in range(_LOOKS - 1):
        doubtful = {one.thread.tid for one in seen.values() if one.is_doubtful}
        if not doubtful:
            break
        # Those alone, which takes microseconds: a thread that runs has moved on before all of many are read.
        threads = tuple(state for state in interpreter.threads if state.tid in doubtful)
        interpreter = replace(interpreter, threads=threads)
        seen = _settle(seen, _look(interpreter, table))
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
class _Seen:
    """One thread in one look."""

    thread: DumpedThread
    is_broken: bool
    """A frame cannot be what it should be."""
    is_doubtful: bool
    """Broken, or it does not end where Python's stacks end: torn, or a thread that C code made.

    So is one without frames: between two frames of C a thread that runs seems to have none.
    """


def _settle(first: dict[int, _Seen], second: dict[int, _Seen]) -> dict[int, _Seen]:
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


def _look(interpreter: Interpreter, table: FrameTable) -> dict[int, _Seen]:
    """By pthread. With memory of its own: what was read for the last look is not used again."""
    pid, count = interpreter.memory.pid, len(interpreter.threads)
    reader = StackReader(interpreter, Memory(pid, _BUDGET_BYTES + count * _THREAD_BYTES), table)
    holder = interpreter.gil_holder()
    seen = {}
    for state, trace in zip(interpreter.threads, reader.traces, strict=True):
        frames = reader.frames_of(trace.points)
        is_broken = not trace.is_whole or not all(map(_can_be, frames))
        thread = DumpedThread(
            pthread=state.ident or state.address,
            tid=state.tid,
            name=reader.name_of(state, trace, frames),
            owns_gil=state.tid == holder,
            frames=tuple(filter(_can_be, frames)) if is_broken else frames,
        )
        is_doubtful = is_broken or not frames or not is_rooted(frames)
        seen[thread.pthread] = _Seen(thread, is_broken, is_doubtful)
    return seen


def _can_be(frame: Frame) -> bool:
    """A frame of the interpreter itself stands in for C code and is left out, unless it was read while it was made."""
    return bool(frame.function and frame.file) and frame.function != _TRAMPOLINE


class StackReader:
    """The stacks of one interpreter as they are when this is made. Raises ``OSError`` when nothing may be read."""

    def __init__(self, interpreter: Interpreter, memory: Memory, table: FrameTable) -> None:
        self._interpreter = interpreter
        self._memory = memory
        self._table = table
        self._reader = FrameReader(interpreter, memory)
        self._known: dict[Point, Frame] = {}
        self.traces = trace_threads(interpreter, memory)
        """One for each of ``interpreter.threads``."""

    def frames_of(self, points: Sequence[Point]) -> tuple[Frame, ...]:
        """Functions, files and lines; empty names where they cannot be read."""
        known = self._known
        for point in set(points).difference(known):
            place = self._reader.place_of(point[0], unit_of(point, self._interpreter.layout.frame))
            known[point] = self._table.frame(place.function, place.file, place.line or 0, None)
        return tuple([known[point] for point in points])

    def name_of(self, state: ThreadState, trace: Trace, frames: Sequence[Frame]) -> str | None:
        """The name of a ``threading.Thread``, from the ``self`` of its outermost frame.

        ``None`` for a subclass that sets attributes of its own before it calls ``Thread.__init__``.
        """
        if state.tid == self._interpreter.memory.pid:
            return "MainThread"
        layout = self._interpreter.layout.frame or self._interpreter.layout.old_frame
        if layout is None or not frames or frames[-1].function.rpartition(".")[2] != "_bootstrap":
            return None
        try:
            instance = self._memory.u64(trace.addresses[-1] + layout.slots) & ~TAG_BITS
            values = read_attributes(self._interpreter, self._memory, instance)
            code = trace.points[-1][0]
            if len(values) <= _ARGS_INDEX:
                return None
            if not self._is_alike(values[_NAME_INDEX], code + layout.name):
                return None
            if not self._is_alike(values[_ARGS_INDEX], code + layout.names):
                return None
            return self._reader.text(values[_NAME_INDEX]) or None
        except OSError:
            return None

    def _is_alike(self, address: int, pointer: int) -> bool:
        """Whether an object has the type of another, by a pointer to that: a code's name, or its tuple of names."""
        memory = self._memory
        return memory.u64(address + _TYPE) == memory.u64(memory.u64(pointer) + _TYPE)
