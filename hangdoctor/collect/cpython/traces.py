"""The calls of all threads as pairs of addresses, which is all that two looks need to be compared.

What a function is called, and its line, are read once for each place (:class:`~.frames.FrameReader`), however many
threads stand there. py-spy makes fifteen system calls a frame, and takes thirteen times the CPU time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hangdoctor.collect.cpython.chains import BROKEN, MAX_FRAMES, ChainReader, Point, Trace
from hangdoctor.collect.cpython.interpreter import Interpreter, ThreadState
from hangdoctor.collect.cpython.layouts import FrameLayout, OldFrameLayout
from hangdoctor.collect.memory import Memory

MAX_POINTS = 500_000
"""A process: ten times what a thousand threads of a server have. Chains that go in circles must not fill our memory."""
_PAGES_BEFORE = 3
"""Of the innermost frame: CPython keeps frames in chunks of 16 KiB that grow upwards (Python/pystate.c)."""


def trace_threads(interpreter: Interpreter, memory: Memory, threads: Sequence[ThreadState]) -> list[Trace]:
    """One for each of ``threads``.

    Pages that ``memory`` has already are not read again. Raises ``OSError`` only where nothing at all may be read.
    """
    layout, old = interpreter.layout.frame, interpreter.layout.old_frame
    if layout is not None:
        tops = _find_tops(threads, layout, memory)
        follow: Callable[[int], Trace] = ChainReader(layout, memory).follow
    elif old is not None:
        tops = [_word_at(memory, thread.address + old.current) for thread in threads]
        follow = partial(_follow_old, layout=old, memory=memory)
    else:
        return [BROKEN for _ in threads]
    traces, left = [], MAX_POINTS
    for top in tops:
        traces.append(BROKEN if top is None or left <= 0 else follow(top))
        left -= len(traces[-1].points)
    return traces


def unit_of(point: Point, layout: FrameLayout | None) -> int:
    """The instruction of a point, in code units (two bytes) from the start of its code.

    ``layout`` is ``None`` for 3.10.
    """
    code, instruction = point
    return instruction if layout is None else (instruction - code - layout.bytecode) // 2


def _find_tops(threads: Sequence[ThreadState], layout: FrameLayout, memory: Memory) -> list[int | None]:
    """The innermost frame of each thread, 0 where it has none, ``None`` where that cannot be read."""
    memory.prefetch([thread.address + layout.current for thread in threads])
    tops = [_word_at(memory, thread.address + layout.current) for thread in threads]
    if layout.via_cframe is not None:
        memory.prefetch([top + layout.via_cframe for top in tops if top])
        tops = [_word_at(memory, top + layout.via_cframe) if top else top for top in tops]
    memory.prefetch([top for top in tops if top], pages_before=_PAGES_BEFORE)
    return tops


def _word_at(memory: Memory, address: int) -> int | None:
    try:
        return memory.u64(address)
    except OSError:
        return None


def _follow_old(address: int, layout: OldFrameLayout, memory: Memory) -> Trace:
    points: list[Point] = []
    addresses: list[int] = []
    try:
        while address and len(points) < MAX_FRAMES:
            code, at = memory.u64(address + layout.code), memory.u32(address + layout.last_instruction)
            points.append((code, at))
            addresses.append(address)
            address = memory.u64(address + layout.previous)
    except OSError:
        address = -1
    return Trace(tuple(points), tuple(addresses), address == 0)
