"""Python frames of a thread, and which slots of their value stacks are certainly live.

A ``with`` block keeps its ``__exit__`` on the frame's value stack, but a stack also has stale slots above its
top, and the top itself is in a register while C code runs. What tells them apart is the exception table of the
code object: it says for every instruction how deep the stack must be unwound before the innermost handler runs.
Every active ``with`` has a handler around the current instruction, so its ``__exit__`` lies below that depth;
whatever lies below it is live. A block that was left, however deeply nested it was, has no such handler.
(Format: Objects/exception_handling_notes.txt, later InternalDocs/exception_handling.md. 3.10 has a block stack.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hangdoctor.collect.cpython.chains import Point, Trace
from hangdoctor.collect.cpython.interpreter import Interpreter
from hangdoctor.collect.cpython.layouts import TAG_BITS, FrameLayout, OldFrameLayout
from hangdoctor.collect.cpython.lines import find_line
from hangdoctor.collect.memory import Memory

_MAX_SLOTS = 4096
_MAX_TABLE_BYTES = 1 << 16
_ASCII_DATA = 40
"""Of a compact ASCII ``str`` (PyASCIIObject); 48 in 3.10 and 3.11, which also keep wstr."""
_STATE, _TEXT_BYTES = 32, 1024


@dataclass(frozen=True, slots=True)
class Frame:
    """One call. ``live`` are the values below the handler depth, bottom first, tags cleared."""

    address: int
    code: int
    live: tuple[int, ...]
    slots: tuple[int, int]
    """Address and number of all its slots, live or not."""
    unit: int = 0
    """The instruction it is at, in code units from the start of its code."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a frame stands. ``function`` is qualified from 3.11 on; ``line`` is ``None`` where the table has none."""

    function: str
    file: str
    line: int | None


@dataclass(frozen=True, slots=True)
class _Code:
    local_count: int
    stack_size: int
    bytecode: int
    handlers: tuple[tuple[int, int, int], ...]
    """(first, end, depth) in code units."""


class FrameReader:
    """Reads frames of one process; code objects are read once."""

    def __init__(self, interpreter: Interpreter, memory: Memory) -> None:
        """``memory`` is where frames are read from: a new one for a second, independent look."""
        self._layout = interpreter.layout
        self._version = interpreter.version
        self._memory = memory
        self._codes: dict[int, _Code | None] = {}
        self._blocks: dict[int, tuple[Sequence[Point], Sequence[int]]] = {}
        """Places of calls with blocks by the identity of the points, which are kept so that it stays theirs."""
        self._places: dict[tuple[int, int], Place] = {}
        self._texts: dict[int, str] = {}

    def innermost(self, trace: Trace) -> Frame | None:
        """``None`` without one, or where the memory of a thread that runs has become something else."""
        if not trace.points:
            return None
        try:
            return self._read_frame(trace.points[0], trace.addresses[0])
        except (OSError, struct.error):
            return None

    def frames_with_blocks(self, trace: Trace) -> list[Frame]:
        """Innermost first, without those of functions that have neither ``with`` nor ``try``.

        Ends early where the memory of a thread that runs has become something else.
        """
        frames = []
        try:
            for place in self._places_of_blocks(trace.points):
                frame = self._read_frame(trace.points[place], trace.addresses[place])
                if frame is not None:
                    frames.append(frame)
        except (OSError, struct.error):
            pass
        return frames

    def _places_of_blocks(self, points: Sequence[Point]) -> Sequence[int]:
        """Which of the calls may have blocks; found once for all threads that are in the same calls."""
        layout = self._layout.frame
        if layout is None:
            return range(len(points))
        known = self._blocks.get(id(points))
        if known is None:
            codes = [self._code(code, layout) for code, _ in points]
            places = tuple([place for place, code in enumerate(codes) if code is not None and code.handlers])
            known = self._blocks[id(points)] = points, places
        return known[1]

    def _read_frame(self, point: Point, address: int) -> Frame | None:
        """Raises ``OSError`` and ``struct.error``."""
        (code_address, instruction), layout, old = point, self._layout.frame, self._layout.old_frame
        if layout is not None:
            code = self._code(code_address, layout)
            return None if code is None else self._frame(address, layout, code_address, code, instruction)
        return None if old is None else self._old_frame(address, old, code_address, instruction)

    def name_of(self, code: int) -> tuple[str, str]:
        """Function and file name of a code object; empty where they cannot be read."""
        layout = self._layout.frame or self._layout.old_frame
        if layout is None:
            return "", ""
        return self._text_at(code + layout.name), self._text_at(code + layout.file)

    def place_of(self, code: int, unit: int) -> Place:
        """Function, file and line of an instruction; empty names where they cannot be read."""
        key = code, unit
        if key not in self._places:
            self._places[key] = self._read_place(code, unit)
        return self._places[key]

    def _read_place(self, code: int, unit: int) -> Place:
        layout = self._layout.frame or self._layout.old_frame
        function, file = self.name_of(code)
        if layout is None:
            return Place(function, file, None)
        is_old = isinstance(layout, OldFrameLayout)
        if not isinstance(layout, OldFrameLayout):
            function = self._text_at(code + layout.qualified_name) or function
        try:
            table = self._memory.u64(code + layout.line_table)
            size = self._memory.u64(table + 16)
            first = self._memory.u32(code + layout.first_line)
            line = None
            if size <= _MAX_TABLE_BYTES:
                # PyBytesObject: size at 16, hash at 24, bytes at 32.
                line = find_line(self._memory.read(table + 32, size), first, unit, is_old=is_old)
        except OSError:
            line = None
        return Place(function, file, line)

    def _text_at(self, pointer: int) -> str:
        try:
            return self.text(self._memory.u64(pointer))
        except OSError:
            return ""

    def text(self, address: int) -> str:
        """The ``str`` object at ``address``, at most 1024 bytes of it. Raises ``OSError``."""
        if address not in self._texts:
            self._texts[address] = self._read_text(address)
        return self._texts[address]

    def _read_text(self, address: int) -> str:
        """``state`` has, after two bits on interning, the width of a character, "compact" and whether it is ASCII.

        (Include/cpython/unicodeobject.h, 3.10 to 3.14 with a GIL.)
        """
        length = self._memory.u64(address + 16)
        state = self._memory.u32(address + _STATE) >> 2
        width, is_ascii = state & 7, bool(state & 16)
        data = _ASCII_DATA if self._version >= (3, 12) else 48
        if not is_ascii:  # PyCompactUnicodeObject: a cached UTF-8 form, and before 3.12 a length of wstr
            data = 56 if self._version >= (3, 12) else 72
        codec = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}.get(width)
        if codec is None:
            return ""
        return self._memory.read(address + data, min(length * width, _TEXT_BYTES)).decode(codec, "replace")

    def _frame(self, address: int, layout: FrameLayout, code_address: int, code: _Code, at: int) -> Frame:
        unit = (at - code.bytecode) // 2
        depth = 0
        for first, end, deep in code.handlers:
            if first <= unit < end:
                depth = deep
                break
        live = self._values(address + layout.slots + 8 * code.local_count, min(depth, code.stack_size))
        slots = (address + layout.slots, code.local_count + code.stack_size)
        return Frame(address, code_address, live, slots, unit)

    def _values(self, address: int, count: int) -> tuple[int, ...]:
        if not count:
            return ()
        return tuple(value & ~TAG_BITS for value in self._memory.unpack(f"{count}Q", address))

    def slot_values(self, frame: Frame) -> tuple[int, ...]:
        """All slots of a frame, stale ones too."""
        try:
            return self._values(*frame.slots)
        except OSError:
            return ()

    def _code(self, address: int, layout: FrameLayout) -> _Code | None:
        if address not in self._codes:
            try:
                self._codes[address] = self._read_code(address, layout)
            except OSError:
                self._codes[address] = None
        return self._codes[address]

    def _read_code(self, address: int, layout: FrameLayout) -> _Code | None:
        memory = self._memory
        local_count = memory.u32(address + layout.local_count)
        stack_size = memory.u32(address + layout.stack_size)
        table = memory.u64(address + layout.exception_table)
        size = memory.u64(table + 16)
        if local_count > _MAX_SLOTS or stack_size > _MAX_SLOTS or size > _MAX_TABLE_BYTES:
            return None
        # PyBytesObject: size at 16, hash at 24, bytes at 32.
        handlers = tuple(parse_exception_table(memory.read(table + 32, size))) if size else ()
        return _Code(local_count, stack_size, address + layout.bytecode, handlers)

    def _old_frame(self, address: int, layout: OldFrameLayout, code: int, at: int) -> Frame | None:
        memory = self._memory
        stack = memory.u64(address + layout.value_stack)
        stack_size = memory.u32(code + layout.stack_size)
        blocks = memory.u32(address + layout.block_count)
        depth = 0
        if 0 < blocks <= 20:  # CO_MAXBLOCKS
            last = address + layout.blocks + layout.block_size * (blocks - 1)
            depth = memory.u32(last + layout.block_level)
        slots = address + layout.slots
        count = (stack - slots) // 8 + stack_size
        if not 0 <= count <= _MAX_SLOTS or depth > stack_size:
            return None
        return Frame(address, code, self._values(stack, depth), (slots, count), at)


def parse_exception_table(table: bytes) -> Iterator[tuple[int, int, int]]:
    """(first, end, depth) of each entry, in code units; stops at damage.

    An entry is four numbers (start, length, target, depth << 1 | lasti) in 6-bit groups, big end first; bit 6
    says that another group follows, bit 7 that an entry starts.
    """
    numbers: list[int] = []
    value = 0
    for byte in table:
        if byte & 0x80 and numbers:
            return
        value = value << 6 | byte & 0x3F
        if byte & 0x40:
            continue
        numbers.append(value)
        value = 0
        if len(numbers) == 4:
            start, length, _, depth = numbers
            yield start, start + length, depth >> 1
            numbers = []
