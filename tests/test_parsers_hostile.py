"""Input that was made to harm: nothing is executed, and nothing grows beyond its size."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import pytest

from hangdoctor.errors import UnreadableInput
from hangdoctor.parsers import read_files, read_text
from hangdoctor.parsers.pickle_containers import PickleRefused, read_containers
from tests.parsers_support import DUMPS

PROTO = b"\x80\x02"


class Evil:
    """Touches a file when unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_code_is_refused_and_calls_nothing(tmp_path: Path, protocol: int) -> None:
    trap, path = tmp_path / "trap", tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [Evil(str(trap))], "pg_config": {}}, protocol))
    with pytest.raises(UnreadableInput) as caught:
        read_files([str(path)])
    assert "could run code" in caught.value.message
    assert not trap.exists()
    assert pickle.loads(path.read_bytes()) and trap.exists()  # the trap works


OPCODES = {
    "GLOBAL": b"cos\nsystem\n.",
    "STACK_GLOBAL": b"X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93.",
    "REDUCE": b"]]R.",
    "BUILD": b"]}b.",
    "INST": b"(ios\nsystem\n.",
    "OBJ": b"(]o.",
    "NEWOBJ": b"])\x81.",
    "EXT1": b"\x82\x01.",
    "PERSID": b"Px\n.",
    "BINPERSID": b"NQ.",
    "BYTEARRAY8": b"\x96" + struct.pack("<Q", 1) + b"x.",
}


@pytest.mark.parametrize("name", OPCODES)
def test_opcodes_beyond_containers_are_refused(name: str) -> None:
    with pytest.raises(PickleRefused, match="could run code"):
        read_containers(PROTO + OPCODES[name])


CLAIMS = {
    "text of 4 GB": b"X\xff\xff\xff\xff",
    "text of 16 EB": b"\x8d" + b"\xff" * 8,
    "memo entry 2^32": b"Nr\xff\xff\xff\xff.",
    "frame of 16 EB": b"\x95" + b"\xff" * 8 + b"N.",
    "number of 2 GB": b"\x8b\xff\xff\xff\x7f",
}


@pytest.mark.parametrize("name", CLAIMS)
def test_lengths_that_a_pickle_only_claims_cost_nothing(name: str) -> None:
    try:
        value, _ = read_containers(PROTO + CLAIMS[name])
    except PickleRefused:
        return
    assert value is None


def test_a_small_pickle_cannot_grow() -> None:
    laughs = PROTO + b"]q\x00" + b"".join(b"]q%c(h%ch%ce" % (n, n - 1, n - 1) for n in range(1, 60))
    bomb = PROTO + b"]q\x00(" + b"h\x00" * 3 + b"e."  # a list that holds itself
    assert read_containers(bomb)[0] is not None
    assert read_containers(laughs + b".")[0] is not None


def test_plain_pickles_are_read_as_pickle_would(tmp_path: Path) -> None:
    value = {"a": [1, -2, 2**40, 1.5, True, None, "ü"], "b": ((), (1,), (1, 2, 3)), "c": {"d": [[], {}]}}
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert read_containers(pickle.dumps(value, protocol)) == (value, None)


def test_a_truncated_pickle_gives_what_was_complete() -> None:
    whole = (DUMPS / "nccl_trace_rank_0").read_bytes()
    value, problem = read_containers(whole[: len(whole) * 3 // 4])
    assert problem is not None and "cut short" in problem
    assert isinstance(value, dict) and len(value["entries"]) >= 2


@pytest.mark.parametrize("char", "[{")
def test_deeply_nested_json(char: str) -> None:
    text = '[{"pid": 1, "thread_id": 2, "frames": ' + char * 100_000
    assert read_text(text).snapshots[0].processes == ()


def test_truncated_json_keeps_the_threads_that_were_whole() -> None:
    whole = (DUMPS / "py-spy.json").read_text()
    capture = read_text(whole[: len(whole) * 2 // 3], "dump.json")
    (process,) = capture.snapshots[0].processes
    assert 1 <= len(process.threads) <= 3
    assert any("cut short" in gap.reason for gap in capture.gaps)


def test_missing_comma_of_nccl_2_28_is_mended() -> None:
    text = (
        '{"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [\n'
        '{"hash": "0xae94423cfbb2ef4a", "size": 5,\n'
        '"ranks_count": 4, "missing_ranks_count": 1, "ranks": [{"rank": 3, "host": "h", "pid": 1003, "cuda_dev": 3,\n'
        '"nvml_dev": 3, "status": {"init_state": 0}, "collective_counts": {"AllReduce": 639}}],\n'
        '"missing_ranks": [{"rank": 4, "host": "h", "pid": 1004, "cuda_dev": 4, "nvml_dev": 4\n'
        '"status": {"unresponsive": true, "considered_dead": false}}]}], "ras": {"timeouts_count": 0}}'
    )
    capture = read_text(text + "\nmore prose\n")
    (answer,) = capture.snapshots[0].ras
    assert [r.pid for r in answer.communicators[0].missing] == [1004]
    assert {p.pid: p.rank_hint for p in capture.snapshots[0].processes} == {1003: "rank 3", 1004: "rank 4"}
    assert any("mended" in gap.reason for gap in capture.gaps)


def test_a_lookalike_of_json_is_prose() -> None:
    assert read_text('{"entries": [1, 2]}\n').snapshots[0].processes == ()
