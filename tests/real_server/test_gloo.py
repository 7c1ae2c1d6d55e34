"""The same faults where the ranks meet in torch.distributed: the victims then sleep in the collective and use no CPU.

The engine core dies at the end.
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
from tests.real_server.server import Server, wait_for_state

pytestmark = [pytest.mark.real_server, pytest.mark.slow]

SLEEPS = "The victim, worker 0, sleeps in a gloo all_reduce: nobody uses any CPU."


@pytest.fixture
def server(keeper: Keeper) -> Server:
    return keeper.ready(TIDEPOOL_USE_GLOO="1")


@pytest.mark.parametrize("bug", ("lock", "gil", "desync"))
def test_worker_1_is_wedged_in_a_step(server: Server, tmp_path: Path, bug: str) -> None:
    faults.check_bug(server, bug, SLEEPS, tmp_path, suffix="-gloo")


def test_a_worker_is_stopped(server: Server, tmp_path: Path) -> None:
    pid = server.worker(1)
    truth = faults.stopped("sigstop-worker1-gloo", "worker 1", pid, "TP1", SLEEPS)
    faults.check_stopped(server, pid, truth, tmp_path)


def test_the_engine_core_is_killed_and_the_api_server_lives(server: Server, tmp_path: Path) -> None:
    """Its workers get another parent within milliseconds and end some seconds later; a client keeps the rest alive."""
    workers, engine = {server.worker(0), server.worker(1)}, server.engine
    expected = Expectation(
        truth="the engine core was killed; the API server waits for a client's connection to close",
        note="The engine core is in no look. Its workers, adopted by init, may vanish between the looks.",
        kinds=(Kind.HUNG,),
        culprits=frozenset((engine,)),
        is_unseen=True,
        causes=("dead-process", "missing-peer"),
    )
    with server.half_a_request():
        os.kill(engine, signal.SIGKILL)
        wait_for_state(engine, "ZX")
        answer = attach_and_judge(server.pid, Truth("kill-enginecore", expected), tmp_path)
        assert workers <= {row["pid"] for row in answer.report["processes"]}, (
            "the orphans belong to the server"
        )
        for worker in workers:
            wait_for_state(worker, "X")
        attach_and_judge(server.pid, Truth("enginecore-gone", expected), tmp_path)
