"""Weights from a file system whose throttle the test holds: slow with a percentage, and stuck."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hangdoctor.report import Kind
from tests.expectations import Expectation
from tests.real_server.installation import Installation
from tests.real_server.judging import Truth, attach_and_judge
from tests.real_server.server import serving, wait_for_open
from tests.slow_files import can_mount, throttled

SLOW, STUCK = "2500000", "0"
WORKER_1 = "VLLM::Worker_TP1"


@pytest.fixture(autouse=True)
def may_mount() -> None:
    if not can_mount():
        pytest.skip("no FUSE here: it takes root, or CAP_SYS_ADMIN, and /dev/fuse")


def test_each_reader_gets_its_own_rate(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    data = b"weights!" * 262144
    (tmp_path / "weights" / "one").write_bytes(data)
    read = (
        "import sys, time; t = time.monotonic(); print(len(open(sys.argv[1]).read()), time.monotonic() - t)"
    )
    with throttled(tmp_path / "weights", "slow-reader") as slow:
        slow.set_rate(str(len(data)))
        took = {}
        for title in ("fast-reader", "slow-reader"):
            done = subprocess.run(
                [title, "-c", read, str(slow.folder / "one")],
                executable=sys.executable,
                capture_output=True,
                text=True,
                check=True,
            )
            count, seconds = done.stdout.split()
            assert int(count) == len(data)
            took[title] = float(seconds)
        assert (slow.folder / "one").read_bytes() == data
    assert took["slow-reader"] > 0.8, took
    assert took["fast-reader"] < took["slow-reader"], took


@pytest.mark.real_server
@pytest.mark.slow
def test_worker_1_reads_its_weights_slowly_and_then_not_at_all(vllm: Installation, tmp_path: Path) -> None:
    with throttled(vllm.model("large"), WORKER_1) as slow, serving(vllm, model=slow.folder) as server:
        slow.set_rate(SLOW)
        worker = server.worker(1)
        wait_for_open(worker, slow.folder)
        expected = Expectation(
            truth="worker 1 gets its weights at 2.5 MB/s, worker 0 at full speed",
            note="The mapped file is read by page faults: D state, equal stacks, no byte in /proc/PID/io.",
            kinds=(Kind.SLOW,),
            culprits=frozenset((worker,)),
            rank="TP1",
            causes=("loading",),
            phases=("weights-load",),
        )
        answer = attach_and_judge(server.pid, Truth("slow-weights", expected), tmp_path)
        progress = answer.report["verdict"]["progress"]
        assert progress["class"] == "proof", progress
        assert 0 < progress["percent"] < 100, progress
        assert 5 < progress["eta_s"] < 200, progress
        slow.set_rate(STUCK)
        stuck = Expectation(
            truth="the file system no longer answers worker 1 in the middle of its weights",
            note="The stack is the same as while it was slow; ten seconds without a byte are within a load's patience.",
            kinds=(Kind.HUNG, Kind.UNKNOWN),
            culprits=frozenset((worker,)),
            rank="TP1",
            causes=("io-stuck",),
            phases=("weights-load",),
        )
        answer = attach_and_judge(server.pid, Truth("stuck-weights", stuck), tmp_path, "--interval", "5")
        assert answer.culprit_pids == {worker}, answer.told()
        slow.set_rate("max")
        server.wait_until_ready()
        assert len(server.ask().tokens(300.0)) == 8
