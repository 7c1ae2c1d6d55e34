"""Following the chains of frames of CPython 3.11 and later; threads that are alike are read as a whole.

The frames of a thread lie one behind the other in a chunk of 16 KiB (Python/pystate.c), outer ones lower, and a frame
of a function always has the same size. So two threads of a pool that wait in the same call have frames at the same
distances, and all that has to be checked for the second is that each frame points to the one below it: one ``unpack``
for 40 frames instead of 40 (a third of the time, measured). Frames of C code lie on the C stack, between two such runs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hangdoctor.collect.cpython.layouts import FRAME_SHIM, TAG_BITS, FrameLayout
from hangdoctor.collect.memory import PAGE, Memory

MAX_FRAMES = 4096
"""A thread, as in py-spy. Python itself stops a recursion after 1,000 calls, unless told otherwise."""
_MAX_RUN_BYTES = 16 << 10
_SHORTEST_RUN = 3
"""Frames: fewer are read one by one as fast."""

Point = tuple[int, int]
"""A code object's address, and the instruction: its address, or from 3.10's start of the code in code units."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The calls of one thread, innermost first."""

    points: tuple[Point, ...]
    """The same object for threads that are in the same calls."""
    addresses: tuple[int, ...]
    """Of their frames."""
    is_whole: bool
    """Followed to its end; ``False`` where the chain broke, as it does under the hands of a thread that runs."""


BROKEN = Trace((), (), False)


@dataclass(frozen=True, slots=True)
class _Run:
    """Frames in one chunk, innermost first; or one frame of C code, which is no call of Python's."""

    points: tuple[Point, ...]
    addresses: tuple[int, ...]
    outer: int
    """Address of the frame further out; 0 at the end, -1 where the chain broke."""


class ChainReader:
    """Reads the chains of the threads of one process."""

    def __init__(self, layout: FrameLayout, memory: Memory) -> None:
        self._memory = memory
        self._head = _Head(layout)
        self._shapes: dict[int, _Shape] = {}
        """By the place of the innermost frame within its page."""
        self._points: dict[tuple[Point, ...], tuple[Point, ...]] = {}
        """Of runs: equal ones are the same object."""
        self._joined: dict[tuple[int, ...], tuple[Point, ...]] = {}
        """Of all runs of a thread, by the identities of the points of each."""

    def follow(self, address: int) -> Trace:
        """From the innermost frame, 0 where there is none."""
        runs: list[_Run] = []
        left = MAX_FRAMES
        while address > 0 and left > 0:
            shape = self._shapes.get(address & PAGE - 1)
            run = (shape.read(self._memory, address) if shape else None) or self._walk(address, left)
            if run.points:
                runs.append(run)
            left -= max(1, len(run.points))
            address = run.outer
        if len(runs) == 1:
            return Trace(runs[0].points, runs[0].addresses, address == 0)
        return Trace(self._join(runs), tuple([at for run in runs for at in run.addresses]), address == 0)

    def _join(self, runs: list[_Run]) -> tuple[Point, ...]:
        key = tuple([id(run.points) for run in runs])
        if key not in self._joined:
            self._joined[key] = tuple([point for run in runs for point in run.points])
        return self._joined[key]

    def _walk(self, address: int, left: int) -> _Run:
        """At most ``left`` frames, one by one. Written for speed: a thread that is like no other is read here."""
        unpack, last, lowest = self._head.unpack_from, PAGE - self._head.size, address - _MAX_RUN_BYTES
        page, base = b"", -PAGE
        points: list[Point] = []
        addresses: list[int] = []
        try:
            while len(points) < left:
                at = address - base
                if not 0 <= at <= last:
                    page, base = self._page_at(address, last)
                    at = address - base
                code, outer, instruction, owner = unpack(page, at)
                if owner >= FRAME_SHIM:
                    address = address if points else outer
                    break
                points.append((code & ~TAG_BITS, instruction))
                addresses.append(address)
                is_run = lowest <= outer < address
                address = outer
                if not is_run:
                    break
        except OSError:
            address = -1
        if len(points) >= _SHORTEST_RUN:
            self._shapes[addresses[0] & PAGE - 1] = _Shape(self._head, addresses, self._points)
        found = tuple(points)
        return _Run(self._points.setdefault(found, found), tuple(addresses), address)

    def _page_at(self, address: int, last: int) -> tuple[bytes, int]:
        """The page of a frame and its address; with the next one, if the frame begins beyond ``last`` in its own."""
        base = address & -PAGE
        page = self._memory.pages.get(base)
        if page is None or address - base > last:
            page = self._memory.read(base, PAGE if address - base <= last else 2 * PAGE)
        return page, base


class _Head:
    """The four fields of a frame that are needed, unpacked in one go: code, outer frame, instruction, owner."""

    def __init__(self, layout: FrameLayout) -> None:
        self.text, at = "", 0
        for offset, letter in zip(layout.head, "QQQB", strict=True):
            self.text += f"{offset - at}x{letter}"
            at = offset + struct.calcsize(f"<{letter}")
        self.size = at
        self.unpack_from = struct.Struct(f"<{self.text}").unpack_from


class _Shape:
    """Distances between the frames of a run, and what was in the frames at such distances."""

    def __init__(
        self, head: _Head, addresses: Sequence[int], points: dict[tuple[Point, ...], tuple[Point, ...]]
    ) -> None:
        """``addresses``: of the frames, innermost first, which is downwards. ``points``: those known already."""
        self._points = points
        self._distances = [address - addresses[-1] for address in addresses]
        gaps = [inner - outer - head.size for inner, outer in pairwise(addresses)]
        self._size = self._distances[0] + head.size
        # Frames that overlap are none, and those of no other thread will be like them.
        text = head.text + "".join(f"{max(0, gap)}x{head.text}" for gap in reversed(gaps))
        self._unpack = struct.Struct(f"<{text}").unpack if min(gaps) >= 0 else None
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Point, ...]] = {}

    def read(self, memory: Memory, address: int) -> _Run | None:
        """The run with its innermost frame at ``address``; ``None`` if it has another shape."""
        lowest = address - self._distances[0]
        if self._unpack is None or lowest <= 0:
            return None
        try:
            values = self._unpack(memory.read(lowest, self._size))
        except OSError:
            return None
        addresses = tuple([lowest + distance for distance in self._distances])
        outers = values[1::4]
        if outers[1:] != addresses[:0:-1] or max(values[3::4]) >= FRAME_SHIM:
            return None
        key = values[::4], values[2::4]
        points = self._known.get(key)
        if points is None:
            found = tuple([(code & ~TAG_BITS, at) for code, at in zip(*map(reversed, key), strict=True)])
            points = self._known[key] = self._points.setdefault(found, found)
        return _Run(points, addresses, outers[0])
