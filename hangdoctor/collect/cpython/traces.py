"""The calls of all threads as pairs of addresses, which is all that two looks need to be compared.

What a function is called, and its line, are read once for each place (:class:`~.frames.FrameReader`), however many
threads stand there. 480 threads of 40 frames each take 20 ms; py-spy, which makes fifteen system calls a frame, 600.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hangdoctor.collect.cpython.interpreter import Interpreter, ThreadState
from hangdoctor.collect.cpython.layouts import FRAME_SHIM, TAG_BITS, FrameLayout, OldFrameLayout
from hangdoctor.collect.memory import PAGE, Memory

MAX_FRAMES = 4096
"""A thread, as in py-spy. Python itself stops a recursion after 1,000 calls, unless told otherwise."""
MAX_POINTS = 500_000
"""A process: ten times what a thousand threads of a server have. Chains that go in circles must not fill our memory."""
_PAGES_BEFORE = 3
"""Of the innermost frame: CPython keeps frames in chunks of 16 KiB that grow upwards (Python/pystate.c)."""

Point = tuple[int, int]
"""A code object's address, and the instruction: its address, or from 3.10's start of the code in code units."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The calls of one thread, innermost first."""

    points: tuple[Point, ...]
    addresses: tuple[int, ...]
    """Of their frames."""
    is_whole: bool
    """Followed to its end; ``False`` where the chain broke, as it does under the hands of a thread that runs."""


_BROKEN = Trace((), (), False)


def trace_threads(
    interpreter: Interpreter,
    memory: Memory,
    threads: Sequence[ThreadState] | None = None,
    *,
    depth: int = MAX_FRAMES,
) -> list[Trace]:
    """One for each of ``threads``, by default all, of at most ``depth`` frames.

    Pages that ``memory`` has already are not read again. Raises ``OSError`` only where nothing at all may be read.
    """
    threads = interpreter.threads if threads is None else threads
    layout, old = interpreter.layout.frame, interpreter.layout.old_frame
    if layout is not None:
        tops = _find_tops(threads, layout, memory, 0 if depth == 1 else _PAGES_BEFORE)
        follow: Callable[[int], Trace] = partial(_follow, depth=depth, head=_Head(layout), memory=memory)
    elif old is not None:
        tops = [_word_at(memory, thread.address + old.current) for thread in threads]
        follow = partial(_follow_old, depth=depth, layout=old, memory=memory)
    else:
        return [_BROKEN for _ in threads]
    traces, left = [], MAX_POINTS
    for top in tops:
        traces.append(_BROKEN if top is None or left <= 0 else follow(top))
        left -= len(traces[-1].points)
    return traces


def unit_of(point: Point, layout: FrameLayout | None) -> int:
    """The instruction of a point, in code units (two bytes) from the start of its code.

    ``layout`` is ``None`` for 3.10.
    """
    code, instruction = point
    return instruction if layout is None else (instruction - code - layout.bytecode) // 2


def _find_tops(
    threads: Sequence[ThreadState], layout: FrameLayout, memory: Memory, pages_before: int
) -> list[int | None]:
    """The innermost frame of each thread, 0 where it has none, ``None`` where that cannot be read."""
    memory.prefetch([thread.address + layout.current for thread in threads])
    tops = [_word_at(memory, thread.address + layout.current) for thread in threads]
    if layout.via_cframe is not None:
        memory.prefetch([top + layout.via_cframe for top in tops if top])
        tops = [_word_at(memory, top + layout.via_cframe) if top else top for top in tops]
    memory.prefetch([top for top in tops if top], pages_before=pages_before)
    return tops


def _word_at(memory: Memory, address: int) -> int | None:
    try:
        return memory.u64(address)
    except OSError:
        return None


class _Head:
    """The four fields of a frame that are needed, unpacked in one go; and where each is among them."""

    def __init__(self, layout: FrameLayout) -> None:
        named = {layout.code: "Q", layout.previous: "Q", layout.instruction: "Q", layout.owner: "B"}
        text, at = "<", 0
        for offset, letter in sorted(named.items()):
            text += f"{offset - at}x{letter}"
            at = offset + struct.calcsize(f"<{letter}")
        order = sorted(named)
        self.size = at
        self.unpack_from = struct.Struct(text).unpack_from
        self.places = tuple(
            order.index(offset) for offset in (layout.code, layout.instruction, layout.owner, layout.previous)
        )


def _follow(address: int, depth: int, head: _Head, memory: Memory) -> Trace:
    """Written for speed: this loop is most of what a look at many threads costs."""
    pages, unpack, size = memory.pages, head.unpack_from, head.size
    at_code, at_instruction, at_owner, at_previous = head.places
    points: list[Point] = []
    addresses: list[int] = []
    try:
        for _ in range(MAX_FRAMES):
            if not address or len(points) >= depth:
                break
            data, at = pages.get(address & -PAGE), address & PAGE - 1
            if data is None or at + size > PAGE:
                data, at = memory.read(address, size), 0
            fields = unpack(data, at)
            if fields[at_owner] < FRAME_SHIM:
                points.append((fields[at_code] & ~TAG_BITS, fields[at_instruction]))
                addresses.append(address)
            address = fields[at_previous]
    except OSError:
        address = -1
    return Trace(tuple(points), tuple(addresses), address == 0)


def _follow_old(address: int, depth: int, layout: OldFrameLayout, memory: Memory) -> Trace:
    points: list[Point] = []
    addresses: list[int] = []
    try:
        while address and len(points) < depth:
            code, at = memory.u64(address + layout.code), memory.u32(address + layout.last_instruction)
            points.append((code, at))
            addresses.append(address)
            address = memory.u64(address + layout.previous)
    except OSError:
        address = -1
    return Trace(tuple(points), tuple(addresses), address == 0)
