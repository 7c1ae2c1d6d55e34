"""Chains of frames: what threads that are alike share is what each would have been found to have alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangdoctor.collect.cpython import layouts
from hangdoctor.collect.cpython.chains import MAX_FRAMES, ChainReader, Trace
from hangdoctor.collect.cpython.layouts import FRAME_SHIM, FrameLayout
from hangdoctor.collect.memory import PAGE, Memory

VERSIONS = sorted(version for version, layout in layouts._LAYOUTS.items() if layout.frame)
CHUNKS, C_STACKS = 0x100000, 0x900000
CHUNK_BYTES = 16 << 10
CODES = st.integers(1, 3).map(lambda number: 0x5000 * number)


def layout_of(version: tuple[int, int]) -> FrameLayout:
    layout = layouts._LAYOUTS[version].frame
    assert layout is not None
    return layout


@dataclass(frozen=True)
class Call:
    """One frame. ``size``: distance to the next frame in its chunk; ``is_c``: lies on the C stack."""

    code: int
    instruction: int
    size: int
    is_c: bool = False


class Space:
    """An address space in which frames are written."""

    def __init__(self, layout: FrameLayout) -> None:
        self._layout = layout
        self._bytes: dict[int, bytearray] = {}

    def thread(self, number: int, calls: list[Call], root: int = 0) -> int:
        """The calls, outermost first, in a chunk of the thread's own; returns the address of the innermost."""
        place, c_place, outer = (
            CHUNKS + 2 * CHUNK_BYTES * number + 24,
            C_STACKS + 4 * PAGE * number + 256,
            root,
        )
        for call in calls:
            at = c_place if call.is_c else place
            self.frame(at, call.code, outer, call.instruction, FRAME_SHIM if call.is_c else 0)
            outer = at
            if call.is_c:
                c_place += 512
            else:
                place += call.size
        return outer

    def frame(self, at: int, code: int, outer: int, instruction: int, owner: int = 0) -> None:
        layout = self._layout
        self._write(at + layout.code, struct.pack("<Q", code))
        self._write(at + layout.previous, struct.pack("<Q", outer))
        self._write(at + layout.instruction, struct.pack("<Q", instruction))
        self._write(at + layout.owner, bytes([owner]))

    def _write(self, at: int, data: bytes) -> None:
        for offset, byte in enumerate(data):
            page = self._bytes.setdefault(at + offset & -PAGE, bytearray(PAGE))
            page[(at + offset) % PAGE] = byte

    def memory(self) -> Memory:
        memory = Memory(0)
        memory.pages.update({at: bytes(page) for at, page in self._bytes.items()})
        return memory


def read_alone(layout: FrameLayout, memory: Memory, tops: list[int]) -> list[Trace]:
    return [ChainReader(layout, memory).follow(top) for top in tops]


def read_together(layout: FrameLayout, memory: Memory, tops: list[int]) -> list[Trace]:
    reader = ChainReader(layout, memory)
    return [reader.follow(top) for top in tops]


calls_of_a_thread = st.lists(
    st.builds(Call, CODES, st.integers(0x6000, 0x6003), st.sampled_from((96, 128, 1000)), st.booleans()),
    min_size=1,
    max_size=12,
)


@given(
    st.sampled_from(VERSIONS), st.lists(calls_of_a_thread, min_size=1, max_size=6), st.sampled_from((0, 8))
)
def test_threads_read_together_are_as_each_alone(
    version: tuple[int, int], threads: list[list[Call]], root: int
) -> None:
    """However alike they are; ``root`` 8: the chains end in an address that nothing is at."""
    layout = layout_of(version)
    space = Space(layout)
    tops = [space.thread(number, calls, root) for number, calls in enumerate(threads)]
    memory = space.memory()
    together = read_together(layout, memory, tops)
    assert together == read_alone(layout, memory, tops)
    for trace, calls in zip(together, threads, strict=True):
        expected = [(call.code, call.instruction) for call in reversed(calls) if not call.is_c]
        assert list(trace.points) == expected and trace.is_whole is (root == 0)


POOL = [
    Call(0x5000, 1, 96),
    Call(0xA000, 2, 128),
    Call(0, 0, 0, is_c=True),
    *[Call(0xF000, 3, 112)] * 9,
    Call(0x5000, 4, 96),
]


@pytest.mark.parametrize("version", VERSIONS)
def test_threads_in_the_same_calls_share_them(version: tuple[int, int]) -> None:
    layout = layout_of(version)
    space = Space(layout)
    tops = [space.thread(number, POOL) for number in range(4)]
    other = space.thread(4, [*POOL[:-1], Call(0x5000, 5, 96)])
    *pool, last, odd = read_together(layout, space.memory(), [*tops, other])
    assert pool[1].points is pool[2].points is last.points
    assert odd.points != last.points and odd.points[1:] == last.points[1:]
    assert len({trace.addresses for trace in (*pool, last, odd)}) == 5


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("broken", range(1, 12))
def test_a_thread_that_only_seems_alike_is_read_as_it_is(version: tuple[int, int], broken: int) -> None:
    """Frames at the same distances, one of which does not lead to the next one down."""
    layout = layout_of(version)
    space = Space(layout)
    calls = [Call(0x5000 + number, number, 96) for number in range(12)]
    tops = [space.thread(number, calls) for number in range(3)]
    at = tops[2] - 96 * (len(calls) - 1 - broken)
    space.frame(at, 0x5000 + broken, 0, broken)
    traces = read_together(layout, space.memory(), tops)
    assert [len(trace.points) for trace in traces] == [12, 12, 12 - broken]
    assert traces[2].points == traces[0].points[: 12 - broken]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_of_c_code_among_those_alike_is_no_call(version: tuple[int, int]) -> None:
    layout = layout_of(version)
    space = Space(layout)
    calls = [Call(0x5000 + number, number, 96) for number in range(8)]
    tops = [space.thread(number, calls) for number in range(3)]
    space.frame(tops[2] - 96 * 3, 0x5004, tops[2] - 96 * 4, 4, FRAME_SHIM)
    traces = read_together(layout, space.memory(), tops)
    assert [len(trace.points) for trace in traces] == [8, 8, 7]
    assert traces == read_alone(layout, space.memory(), tops)


def test_a_chain_that_goes_in_a_circle_ends() -> None:
    layout = layout_of((3, 12))
    space = Space(layout)
    for at, outer in ((0x4040, 0x4040), (0x7100, 0x7200), (0x7200, 0x7100)):
        space.frame(at, 0x5000, outer, 0x5100)
    for top in (0x4040, 0x7100):
        trace = ChainReader(layout, space.memory()).follow(top)
        assert len(trace.points) == MAX_FRAMES and not trace.is_whole


def test_frames_that_overlap_are_followed_one_by_one() -> None:
    layout = layout_of((3, 12))
    space = Space(layout)
    tops = []
    for number in range(3):
        lowest = CHUNKS + CHUNK_BYTES * number
        for step in range(4):
            space.frame(lowest + 16 * step, 0x5000, lowest + 16 * (step - 1) if step else 0, 0x5100)
        tops.append(lowest + 48)
    assert read_together(layout, space.memory(), tops) == read_alone(layout, space.memory(), tops)
