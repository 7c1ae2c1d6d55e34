"""Where CPython keeps what we read, by version: offsets in bytes, 64-bit builds with a GIL.

3.13 and later publish most offsets in ``_Py_DebugOffsets`` at the start of ``_PyRuntime``; the rest, and all of
3.10-3.12, were printed with ``offsetof`` against the headers of 3.10.13, 3.11.7, 3.12.1, 3.13.0, 3.13.18 and
3.14.10 (Include/internal: pycore_runtime.h, pycore_interp.h, pycore_frame.h, pycore_gil.h; cpython/code.h). A
version that is not here is not guessed at: its locks then have no holder.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from hangdoctor.collect.memory import Memory

Version = tuple[int, int]

COOKIE = b"xdebugpy"
FRAME_SHIM = 3
"""``owner`` from here on marks frames that stand for C code (FRAME_OWNED_BY_CSTACK, _INTERPRETER)."""
TAG_BITS = 7
"""3.14 keeps reference-counting tags in the low bits of what is on a stack; objects are 8-aligned or better."""


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """``_PyInterpreterFrame`` and the code object it runs (3.11 and later)."""

    current: int
    """In the thread state: the innermost frame, or (``via_cframe``) the C frame that points to it."""
    via_cframe: int | None
    previous: int
    code: int
    instruction: int
    owner: int
    slots: int
    """localsplus: locals, cells, free variables, then the value stack."""
    exception_table: int
    local_count: int
    stack_size: int
    file: int
    name: int
    bytecode: int
    names: int = 32
    """co_names, a tuple."""
    first_line: int = 68
    qualified_name: int = 128
    line_table: int = 136

    @property
    def head(self) -> tuple[int, int, int, int]:
        """The fields of a frame that lead from one to the next, in the order that they have in every version."""
        return self.code, self.previous, self.instruction, self.owner


@dataclass(frozen=True, slots=True)
class OldFrameLayout:
    """``PyFrameObject`` of 3.10, whose block stack says how much of the value stack is live."""

    current: int = 24
    previous: int = 24
    code: int = 32
    value_stack: int = 64
    block_count: int = 104
    blocks: int = 112
    block_size: int = 12
    block_level: int = 8
    slots: int = 352
    stack_size: int = 32
    file: int = 104
    name: int = 112
    last_instruction: int = 96
    names: int = 64
    first_line: int = 40
    line_table: int = 120


@dataclass(frozen=True, slots=True)
class Layout:
    """One version. ``None``: not kept by that version."""

    interpreters: int
    """Of the pointer to the newest; the next word points to the main one (struct pyinterpreters)."""
    next_interpreter: int
    threads: int
    next_thread: int
    ident: int
    native_id: int | None
    join_lock: int | None
    """on_delete_data: weak reference to the lock that ``Thread.join`` waits for (3.12 and earlier)."""
    gil_in_runtime: int | None
    gil_pointer: int | None
    """In the interpreter state."""
    frame: FrameLayout | None
    old_frame: OldFrameLayout | None = None


# struct _gil_runtime_state, the same in all of them.
GIL_SIZE = 208
GIL_HOLDER, GIL_LOCKED = 8, 16

_FRAME_3_13 = FrameLayout(
    current=72,
    via_cframe=None,
    previous=8,
    code=0,
    instruction=56,
    owner=70,
    slots=72,
    exception_table=40,
    local_count=72,
    stack_size=64,
    file=112,
    name=120,
    bytecode=200,
)
_LAYOUTS: dict[Version, Layout] = {
    (3, 10): Layout(
        interpreters=32,
        next_interpreter=0,
        threads=8,
        next_thread=8,
        ident=176,
        native_id=None,
        join_lock=208,
        gil_in_runtime=352,
        gil_pointer=None,
        frame=None,
        old_frame=OldFrameLayout(),
    ),
    (3, 11): Layout(
        interpreters=40,
        next_interpreter=0,
        threads=16,
        next_thread=8,
        ident=152,
        native_id=160,
        join_lock=192,
        gil_in_runtime=360,
        gil_pointer=None,
        frame=FrameLayout(
            current=56,
            via_cframe=8,
            previous=48,
            code=32,
            instruction=56,
            owner=69,
            slots=72,
            exception_table=40,
            local_count=76,
            stack_size=68,
            file=112,
            name=120,
            bytecode=184,
            first_line=72,
        ),
    ),
    (3, 12): Layout(
        interpreters=40,
        next_interpreter=0,
        threads=72,
        next_thread=8,
        ident=136,
        native_id=144,
        join_lock=176,
        gil_in_runtime=None,
        gil_pointer=384,
        frame=replace(_FRAME_3_13, current=56, via_cframe=0, bytecode=192),
    ),
    (3, 13): Layout(
        interpreters=632,
        next_interpreter=7264,
        threads=7344,
        next_thread=8,
        ident=152,
        native_id=160,
        join_lock=None,
        gil_in_runtime=None,
        gil_pointer=16,
        frame=_FRAME_3_13,
    ),
    (3, 14): Layout(
        interpreters=808,
        next_interpreter=7272,
        threads=7344,
        next_thread=8,
        ident=152,
        native_id=160,
        join_lock=None,
        gil_in_runtime=None,
        gil_pointer=16,
        frame=replace(_FRAME_3_13, owner=74, slots=80, bytecode=208),
    ),
}

_MAX_FRAME_BYTES = 1024
# Number of fields of struct _interpreter_state in _Py_DebugOffsets, and of those before gc.
_INTERPRETER_FIELDS = {(3, 13): 13, (3, 14): 16}
_CEVAL_GIL_FIELD = {(3, 13): 8, (3, 14): 9}


def choose_layout(memory: Memory, runtime: int, version: Version) -> Layout | None:
    """The layout of the interpreter whose ``_PyRuntime`` is at ``runtime``; ``None`` when not known.

    Where the interpreter publishes offsets, they override the table.
    """
    layout = _LAYOUTS.get(version)
    published = memory.read(runtime, len(COOKIE)) == COOKIE
    if layout is None or layout.frame is None or version not in _INTERPRETER_FIELDS:
        return None if published else layout
    if not published:
        return None
    _, free_threaded, _, _, interpreters = struct.unpack("<5Q", memory.read(runtime + 8, 40))
    if free_threaded:
        return None
    fields = _INTERPRETER_FIELDS[version]
    at_threads = runtime + 48 + 8 * fields
    interpreter = memory.unpack(f"{fields}Q", runtime + 48)
    thread = memory.unpack("9Q", at_threads)
    frame = _override(layout.frame, thread[4], memory.unpack("6Q", at_threads + 72))
    if not _is_in_order(frame):
        return None
    return replace(
        layout,
        interpreters=interpreters,
        next_interpreter=interpreter[2],
        threads=interpreter[3],
        gil_pointer=interpreter[_CEVAL_GIL_FIELD[version]],
        next_thread=thread[2],
        ident=thread[5],
        native_id=thread[6],
        frame=frame,
    )


def _override(frame: FrameLayout, current: int, published: tuple[int, ...]) -> FrameLayout:
    _, previous, code, instruction, slots, owner = published
    return replace(
        frame,
        current=current,
        previous=previous,
        code=code,
        instruction=instruction,
        slots=slots,
        owner=owner,
    )


def _is_in_order(frame: FrameLayout) -> bool:
    """Frames are read as one record; another order would be another version's."""
    return list(frame.head) == sorted(frame.head) and frame.owner < _MAX_FRAME_BYTES
