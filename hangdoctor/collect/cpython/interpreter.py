"""The CPython interpreter inside a process: its thread states and who has the GIL, from memory."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hangdoctor.collect import elf
from hangdoctor.collect.cpython.layouts import (
    GIL_HOLDER,
    GIL_LOCKED,
    GIL_SIZE,
    Layout,
    Version,
    choose_layout,
)
from hangdoctor.collect.memory import Memory, Regions, read_regions
from hangdoctor.collect.namespaces import map_threads

MAX_THREADS = 8192
_BUDGET_BYTES = 64 << 20
"""Thousands of thread states, and the symbols of a libpython."""
_MAX_INTERPRETERS = 64
_RUNTIME, _VERSION = b"_PyRuntime", b"Py_Version"
_IN_PATH = re.compile(r"python(\d)\.(\d+)")
_PTHREAD_TID = {"x86_64": 720, "aarch64": 208}
"""Of ``struct pthread`` in glibc: its header (704 or 192 bytes), a list (16), then the tid (nptl/descr.h)."""


@dataclass(frozen=True, slots=True)
class ThreadState:
    """A Python thread: where its state is, ``threading.get_ident()``, and the host tid that runs it."""

    address: int
    ident: int
    tid: int


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Everything needed to read Python objects of one process."""

    memory: Memory
    version: Version
    layout: Layout
    threads: tuple[ThreadState, ...]
    tids: frozenset[int]
    """The host's, of all threads of the process then, Python's or not."""
    gil: int | None
    """Address of the state of the main interpreter's GIL; it is :data:`layouts.GIL_SIZE` bytes long."""

    def is_gil(self, address: int) -> bool:
        """Whether a futex belongs to the GIL."""
        return self.gil is not None and self.gil <= address < self.gil + GIL_SIZE

    def gil_holder(self) -> int | None:
        """Host tid of the thread that has the GIL now; ``None`` when nobody has or it cannot be told."""
        if self.gil is None:
            return None
        state = self.memory.fresh(self.gil, GIL_LOCKED + 4)
        if int.from_bytes(state[GIL_LOCKED : GIL_LOCKED + 4], "little") != 1:
            return None
        holder = int.from_bytes(state[GIL_HOLDER : GIL_HOLDER + 8], "little")
        return next((thread.tid for thread in self.threads if thread.address == holder), None)

    def tid_of(self, ident: int) -> int | None:
        """Host tid of a Python thread by its ident."""
        return next((thread.tid for thread in self.threads if thread.ident == ident), None)


def open_interpreter(pid: int) -> Interpreter | None:
    """``None`` when there is no Python in the process, or one whose layout is not known.

    Raises ``OSError`` when memory may not be read. Behind a deadline: reading ``maps`` may block.
    """
    return find_interpreter(Memory(pid, _BUDGET_BYTES), read_regions(pid), map_threads(pid))


def find_interpreter(memory: Memory, regions: Regions, inner_tids: Mapping[int, int]) -> Interpreter | None:
    """``None`` when there is no Python in the process, or one whose layout is not known. Raises ``OSError``."""
    executable = os.path.basename(os.readlink(f"/proc/{memory.pid}/exe"))

    def is_candidate(name: str) -> bool:
        return "python" in name or name == executable

    found = elf.find_symbols(memory, regions, (_RUNTIME, _VERSION), is_candidate)
    runtime = found.get(_RUNTIME)
    if runtime is None:
        return None
    if _VERSION in found:
        number = memory.u32(found[_VERSION].address)
        version = (number >> 24, number >> 16 & 0xFF)
    else:  # Py_Version came with 3.11
        match = _IN_PATH.search(os.path.basename(runtime.path))
        if match is None:
            return None
        version = (int(match[1]), int(match[2]))
    layout = choose_layout(memory, runtime.address, version)
    if layout is None:
        return None
    # struct pyinterpreters: the newest, from which all are chained, then the main one. From 3.12 on each may have a GIL
    # of its own, and the threads that do the work are of the main one.
    newest, main = memory.unpack("QQ", runtime.address + layout.interpreters)
    threads = tuple(_walk_threads(memory, layout, newest, inner_tids))
    tids = frozenset(inner_tids.values())
    return Interpreter(
        memory, version, layout, threads, tids, _find_gil(memory, layout, runtime.address, main)
    )


def _find_gil(memory: Memory, layout: Layout, runtime: int, interpreter: int) -> int | None:
    if layout.gil_in_runtime is not None:
        gil = runtime + layout.gil_in_runtime
    elif layout.gil_pointer is not None and interpreter:
        gil = memory.u64(interpreter + layout.gil_pointer)
    else:
        return None
    interval, holder = memory.unpack("QQ", gil)
    locked = memory.u32(gil + GIL_LOCKED)
    # The switch interval is in microseconds (5000 unless set); this is the check that the offset is right.
    is_plausible = 0 < interval < 10**10 and locked in (0, 1) and holder % 8 == 0
    return gil if is_plausible else None


def _walk_threads(
    memory: Memory, layout: Layout, interpreter: int, inner_tids: Mapping[int, int]
) -> Iterator[ThreadState]:
    seen = 0
    for _ in range(_MAX_INTERPRETERS):
        if not interpreter:
            return
        state = memory.u64(interpreter + layout.threads)
        while state and seen < MAX_THREADS:
            seen += 1
            ident = memory.u64(state + layout.ident)
            tid = inner_tids.get(_read_native_id(memory, layout, state, ident) or -1)
            if tid is not None:
                yield ThreadState(state, ident, tid)
            state = memory.u64(state + layout.next_thread)
        interpreter = memory.u64(interpreter + layout.next_interpreter)


def _read_native_id(memory: Memory, layout: Layout, state: int, ident: int) -> int | None:
    if layout.native_id is not None:
        return memory.u64(state + layout.native_id) & 0xFFFFFFFF
    offset = _PTHREAD_TID.get(platform.machine())
    if offset is None or not ident:
        return None
    try:
        return memory.u32(ident + offset)
    except OSError:
        return None
