"""One server that is wedged and let go again, many times over: who holds it up, in which frame.

/health answers 200 in all of these, which is the trap: it proves that the API server lives, and no more.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hangdoctor.report import Kind
from tests.expectations import Expectation
from tests.real_server import faults
from tests.real_server.conftest import Keeper
from tests.real_server.judging import Truth, attach_and_judge
from tests.real_server.server import NoAnswer

pytestmark = [pytest.mark.real_server, pytest.mark.slow]

SPINS = "The victim, worker 0, spins in a shared-memory all_reduce and takes all the CPU it can get."


@pytest.mark.parametrize("bug", faults.BUGS)
def test_worker_1_is_wedged_in_a_step(keeper: Keeper, tmp_path: Path, bug: str) -> None:
    faults.check_bug(keeper.ready(), bug, SPINS, tmp_path)


@pytest.mark.parametrize("rank", (1, 0))
def test_a_worker_is_stopped(keeper: Keeper, tmp_path: Path, rank: int) -> None:
    server = keeper.ready()
    pid = server.worker(rank)
    truth = faults.stopped(f"sigstop-worker{rank}", f"worker {rank}", pid, f"TP{rank}", SPINS)
    faults.check_stopped(server, pid, truth, tmp_path)


def test_the_engine_core_is_stopped(keeper: Keeper, tmp_path: Path) -> None:
    server = keeper.ready()
    note = (
        "Both workers are idle and healthy; the API server waits for an engine that never reads the request."
    )
    truth = faults.stopped("sigstop-enginecore", "the engine core", server.engine, None, note)
    faults.check_stopped(server, server.engine, truth, tmp_path)


def test_a_request_waits_for_a_kernel_that_worker_1_builds(keeper: Keeper, tmp_path: Path) -> None:
    server = keeper.ready()
    usual = server.ask().tokens()
    workers = frozenset((server.worker(0), server.worker(1)))
    with server.suffering("compile", rank=1, says=2) as request:
        truth = Truth(
            "jit-build",
            Expectation(
                truth="one worker builds a C++ extension at its first use, the other waits for the build's lock file",
                note="Which of the two got the lock is chance; the one that waits for the file is not the culprit.",
                kinds=(Kind.SLOW,),
                culprits=workers,
                causes=("compiling",),
            ),
        )
        attach_and_judge(server.pid, truth, tmp_path)
        assert request.is_pending, "the build ended before the looks did"
    assert request.tokens(timeout_s=180.0) == usual


def test_worker_1_is_killed(keeper: Keeper, tmp_path: Path) -> None:
    """Last: the server does not survive it. A stopped engine core cannot notice, so that there is time to look."""
    server = keeper.ready()
    worker, engine = server.worker(1), server.engine
    request = server.ask(100000 // 10)
    os.kill(worker, signal.SIGKILL)
    truth = Truth(
        "kill-worker1",
        Expectation(
            truth="worker 1 was killed while it served a request",
            note="The engine core notices within a second and ends the server, some of it while the looks are taken.",
            kinds=(Kind.HUNG,),
            culprits=frozenset((worker,)),
            is_unseen=True,
            rank="TP1",
            causes=("dead-process", "missing-peer"),
        ),
    )
    attach_and_judge(server.pid, truth, tmp_path)
    with pytest.raises(NoAnswer):
        request.tokens()
    assert engine
