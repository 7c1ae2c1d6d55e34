"""The Flight Recorder of real gloo jobs, and rings of other versions laid out by hand in our own memory."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hangdoctor.collect import elf, flight
from hangdoctor.collect.flight import read_flight
from hangdoctor.collect.flight_layouts import LAYOUTS, RING, EntryLayout
from hangdoctor.collect.flight_ring import MAX_PENDING, NEWEST, NotARing, read_ring
from hangdoctor.model import FlightEntry, Gap
from tests.b_support import eventually
from tests.conftest import Stuck, stuck

RANKS, LAGGARD = 5, 3


def pids_of(program: Stuck) -> Mapping[int, int]:
    """Rank to pid, from lines ``rank R pid P``."""
    return {int(line.split()[1]): int(line.split()[3]) for line in program.said}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[int, int]]:
    pytest.importorskip("torch")
    with stuck("b_gloo.py", RANKS, LAGGARD, tmp_path_factory.mktemp("job") / "store", lines=RANKS) as program:
        yield pids_of(program)


def newest(pid: int, group: str) -> FlightEntry | None:
    seen = read_flight(pid)
    assert isinstance(seen, tuple)
    return next((entry for entry in reversed(seen) if entry.group_description == group), None)


@pytest.mark.torch
def test_the_laggard_is_behind_by_one_and_has_nothing_pending(job: Mapping[int, int]) -> None:
    waiting = [rank for rank in job if rank != LAGGARD]

    def all_pending() -> bool:
        entries = [newest(job[rank], "default_pg") for rank in waiting]
        return all(entry is not None and entry.state == "pending" for entry in entries)

    eventually(all_pending)
    ahead = [newest(job[rank], "default_pg") for rank in waiting]
    assert {(entry.op, entry.sequence) for entry in ahead if entry} == {("gloo:all_reduce", 4)}
    behind = eventually(lambda: newest(job[LAGGARD], "default_pg"))
    assert (behind.op, behind.sequence, behind.state) == ("gloo:all_reduce", 3, "retired")


@pytest.mark.torch
def test_an_entry_says_what_it_moves_and_how_long_it_may_take(job: Mapping[int, int]) -> None:
    def pending() -> FlightEntry | None:
        entry = newest(job[0], "default_pg")
        return entry if entry and entry.state == "pending" else None

    entry = eventually(pending)
    assert (entry.input_sizes, entry.output_sizes, entry.dtype) == ("[[3, 7]]", "[[3, 7]]", "Float")
    assert entry.timeout_s == 1800.0
    first = entry.age_s
    again = eventually(pending)
    assert first is not None and again.age_s is not None and 0 <= first < again.age_s < 300


@pytest.mark.torch
def test_groups_are_kept_apart(job: Mapping[int, int]) -> None:
    pair = newest(job[1], "pair")
    assert pair is not None
    assert (pair.op, pair.sequence, pair.input_sizes, pair.dtype) == ("gloo:broadcast", 1, "[[5]]", "Long")
    assert newest(job[2], "pair") is None


@pytest.mark.torch
@pytest.mark.parametrize("size", ["3", "0"])
def test_a_ring_that_has_wrapped_and_one_that_is_off(size: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with stuck("b_gloo.py", 3, 1, tmp_path / "store", lines=3, env={"TORCH_FR_BUFFER_SIZE": size}) as program:
        pid = pids_of(program)[0]
        if size == "0":
            seen = read_flight(pid)
            assert isinstance(seen, Gap)
            assert seen.reason == "the recorder is off"
            assert seen.remedy is not None and "TORCH_FR_BUFFER_SIZE" in seen.remedy
            return

        def last() -> FlightEntry | None:
            entry = newest(pid, "default_pg")
            return entry if entry and entry.sequence == 4 else None

        assert eventually(last).state == "pending"


def test_a_process_without_torch_has_no_recorder() -> None:
    with stuck("c_hold.py") as program:
        assert read_flight(program.pid) is None


def test_a_process_that_is_gone_is_a_gap() -> None:
    seen = read_flight(2**22 - 1)
    assert isinstance(seen, Gap) and "gone" in seen.reason


def test_a_stripped_library_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "_LIBRARY", re.compile(r"libc\.so\.6"))
    monkeypatch.setattr(elf, "find_hidden", lambda *_: {})
    seen = read_flight(os.getpid())
    assert isinstance(seen, Gap) and "stripped" in seen.reason


@pytest.mark.parametrize(
    "symbol",
    [
        b"_ZZN4c10d14FlightRecorderIN3c105EventEE3getEvE8instance",
        b"_ZZN4c10d14FlightRecorderIN2at4cuda9CUDAEventEE3getEvE8instance",
        b"_ZZN4c10d14FlightRecorderIN3c104cuda9CUDAEventEE3getEvE8instance",
        b"_ZZN4c10d14FlightRecorder3getEvE8instance",
        b"_ZZN4c10d15NCCLTraceBuffer3getEvE8instance",
    ],
)
def test_the_symbol_is_known_under_all_its_names(symbol: bytes) -> None:
    assert flight._INSTANCE.fullmatch(symbol)
    assert not flight._INSTANCE.fullmatch(b"_ZGV" + symbol[2:])


# --- rings by hand ------------------------------------------------------------------------------------


@dataclass
class Ring:
    """A recorder of one layout in our own memory."""

    layout: EntryLayout
    kept: list[ctypes.Array[ctypes.c_char]] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)

    def keep(self, data: bytes) -> int:
        self.kept.append(ctypes.create_string_buffer(data, max(len(data), 1)))
        return ctypes.addressof(self.kept[-1])

    def string(self, text: str) -> bytes:
        return struct.pack("<QQ16x", self.keep(text.encode()), len(text))

    def vector(self, values: list[int]) -> bytes:
        raw = struct.pack(f"<{len(values)}q", *values)
        return struct.pack("<QII", self.keep(raw), len(values), len(values))

    def add(
        self,
        identity: int,
        op: str,
        *,
        group: str = "0",
        pg_id: int = 0,
        sequence: int = 1,
        flags: str = "",
        is_p2p: bool = False,
        age_s: float = 5.0,
    ) -> None:
        """``flags``: started, completed, retired."""
        layout, entry = self.layout, bytearray(self.layout.size)

        def put(offset: int, data: bytes) -> None:
            entry[offset : offset + len(data)] = data

        put(0, struct.pack("<Q", identity))
        put(layout.pg_id, struct.pack("<Q", pg_id))
        put(layout.group, self.string("described") + self.string(group))
        put(layout.sequence, struct.pack("<Q", sequence))
        put(layout.p2p_sequence, struct.pack("<Q", 40 + sequence))
        put(layout.name, self.string(op))
        put(layout.created, struct.pack("<qq", time.time_ns() - int(age_s * 1e9), 600_000))
        entry[layout.is_p2p] = is_p2p
        entry[layout.started + 8] = "started" in flags
        entry[layout.completed + 8] = "completed" in flags
        entry[layout.retired] = "retired" in flags
        put(layout.input_dims, self.vector([2, 1]))
        put(layout.output_dims, self.vector([0]))
        put(layout.sizes, self.vector([8, 128, 4]))
        dtypes = self.keep(b"\x0f")
        put(layout.input_dtypes, struct.pack("<QQ", dtypes, dtypes + 1))
        self.entries.append(bytes(entry))

    def place(self, *, maximum: int = 2000, following: int = 0, is_enabled: bool = True) -> int:
        first = self.keep(b"".join(self.entries))
        header = bytearray(RING.size)
        header[RING.enabled] = is_enabled
        size = sum(map(len, self.entries))
        header[RING.entries : RING.entries + 24] = struct.pack("<3Q", first, first + size, first + size)
        header[RING.maximum : RING.maximum + 16] = struct.pack("<QQ", maximum, following)
        return self.keep(bytes(header))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: str(layout.size))
def test_each_layout_is_recognised_by_its_structure(layout: EntryLayout) -> None:
    """63 * 64 entries, so that the bytes divide by the entry sizes of other versions too."""
    ring = Ring(layout)
    for identity in range(63 * 64):
        ring.add(identity, "nccl:all_reduce", sequence=identity + 1, flags="started completed retired")
    found = read_ring(os.getpid(), "x", ring.place(maximum=4096))
    assert [(record.id, record.sequence, record.group) for record in found] == [
        (identity, identity + 1, "0") for identity in range(4032 - NEWEST, 4032)
    ]
    assert (found[0].state, found[0].description) == ("completed", "described")
    assert (found[0].input_sizes, found[0].output_sizes, found[0].dtype) == (
        "[[8, 128], [4]]",
        "[[]]",
        "BFloat16",
    )


def test_states_of_nccl_entries() -> None:
    ring = Ring(LAYOUTS[0])
    for pg_id, flags in enumerate(["", "started", "started completed", "retired"]):
        ring.add(pg_id, "nccl:all_gather", pg_id=pg_id, flags=flags)
    found = read_ring(os.getpid(), "x", ring.place())
    assert [record.state for record in found] == ["scheduled", "started", "completed", "retired"]


def test_the_oldest_pending_entries_are_kept_and_the_newest() -> None:
    ring = Ring(LAYOUTS[0])
    for identity in range(100):
        ring.add(identity, "nccl:all_reduce", flags="retired completed" if identity < 10 else "")
    ids = [record.id for record in read_ring(os.getpid(), "x", ring.place())]
    assert ids == [*range(10, 10 + MAX_PENDING), *range(100 - NEWEST, 100)]


def test_point_to_point_calls_do_not_hide_collectives() -> None:
    ring = Ring(LAYOUTS[0])
    ring.add(0, "nccl:all_reduce", flags="retired")
    ring.add(1, "nccl:recv 3<-2", flags="retired", is_p2p=True)
    assert [record.op for record in read_ring(os.getpid(), "x", ring.place())] == [
        "nccl:all_reduce",
        "nccl:recv 3<-2",
    ]


def test_a_seam_is_allowed_once() -> None:
    ring = Ring(LAYOUTS[0])
    for identity in (7, 8, 9, 5, 6):
        ring.add(identity, "nccl:all_reduce", flags="retired")
    assert read_ring(os.getpid(), "x", ring.place(maximum=5, following=3))[-1].id == 9
    ring.add(3, "nccl:all_reduce")
    with pytest.raises(NotARing, match="layout"):
        read_ring(os.getpid(), "x", ring.place())


@pytest.mark.parametrize("damage", ["name", "time", "size", "count"])
def test_what_makes_no_sense_is_refused(damage: str) -> None:
    ring = Ring(LAYOUTS[0])
    for identity in range(3):
        op = "all_reduce" if damage == "name" else "nccl:all_reduce"
        ring.add(identity, op, age_s=-1e6 if damage == "time" else 1.0)
    if damage == "size":
        ring.entries[-1] += bytes(8)
    with pytest.raises(NotARing, match="layout"):
        read_ring(os.getpid(), "x", ring.place(maximum=2 if damage == "count" else 2000))


def test_an_empty_ring_has_nothing_to_say() -> None:
    assert read_ring(os.getpid(), "x", Ring(LAYOUTS[0]).place()) == []
