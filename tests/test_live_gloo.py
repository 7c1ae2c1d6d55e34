"""`attach` on real torch.distributed jobs: the right kind, rank, frame and cause; silence on healthy ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.jobs import Answer, GlooJob, JobKeeper, attach, needs_torch, no_process_left

__all__ = ["no_process_left"]
pytestmark = [*needs_torch, pytest.mark.slow]

HUNG, NOT_HUNG = 3, 0
WALL_LIMIT_S = 15.0
"""From the command to the verdict, on a host that has CPUs left."""


def crowding() -> float:
    """By how much runnable processes outnumber the CPUs: what takes a second alone takes so many here."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Truth:
    """The right answer to one fault."""

    fault: str
    kind: str
    causes: tuple[str, ...]
    functions: frozenset[str]
    """Frames that a person would blame, most often one."""


FAULTS = [
    Truth("idle", "ready", ("idle",), frozenset()),
    Truth("sleep", "hung", ("laggard",), frozenset({"load_tokenizer"})),
    # The thread that keeps the lock is to blame; where the holder cannot be read, the line that waits for it.
    Truth("lock", "hung", ("lock-held",), frozenset({"prefetch_pages", "read_cache", "wait"})),
    Truth("gil", "hung", ("gil-held",), frozenset({"call_driver"})),
    Truth("stopped", "hung", ("stopped-process",), frozenset({"stage_batch"})),
    Truth(
        "compute",
        "slow",
        ("dequantizing",),
        frozenset(
            {"dequantize_layers", "unpack_int4", "scale_groups", "permute_tiles", "clip_outliers"}
            | {"round_weights", "check_layer"}
        ),
    ),
]
# Prime or odd worlds, culprits neither first nor last, three ways to launch.
JOBS = [("popen", 4, 2), ("spawn", 7, 5), ("torchrun", 5, 3)]
# The first is attached to as a user does by default; three looks in four seconds take a third of the time.
LOOKS = {"popen": ()}
QUICK = ("--snapshots", "3", "--interval", "2")


@pytest.fixture(scope="module")
def keeper() -> Iterator[JobKeeper]:
    keeper = JobKeeper()
    yield keeper
    keeper.close()


def assert_blames(answer: Answer, job: GlooJob, truth: Truth) -> None:
    assert answer.kind == truth.kind, answer.told()
    assert answer.exit_code == (HUNG if truth.kind == "hung" else NOT_HUNG)
    assert answer.culprit_pids == {job.culprit_pid}, answer.told()
    assert answer.culprit_ranks == {job.culprit}, answer.told()
    assert answer.cause in truth.causes, answer.told()
    assert answer.culprit_functions <= truth.functions, answer.told()
    assert answer.culprit_functions or truth.fault == "stopped"
    victims = {victim["pid"] for victim in answer.report["verdict"]["victims"]}
    assert victims >= set(job.rank_pids) - {job.culprit_pid}, answer.told()
    assert answer.wall_s < WALL_LIMIT_S * crowding()


# Job after job, not fault after fault: starting ranks takes longer than attaching to them.
CASES = [
    pytest.param(job_kind, truth, id=f"{job_kind[0]}-{job_kind[1]}-{truth.fault}")
    for job_kind in JOBS
    for truth in FAULTS
]


@pytest.mark.parametrize(("job_kind", "truth"), CASES)
def test_verdict(keeper: JobKeeper, job_kind: tuple[str, int, int], truth: Truth) -> None:
    job = keeper.get(*job_kind)
    looks = LOOKS.get(job_kind[0], QUICK)
    if truth.fault == "idle":
        assert_idle(attach(job.pid, *looks))
        return
    with job.suffer(truth.fault):
        assert_blames(attach(job.pid, *looks), job, truth)


def assert_idle(answer: Answer) -> None:
    """Twin of all faults: the same ranks, each in its queue."""
    assert answer.kind == "ready", answer.told()
    assert answer.cause == "idle", answer.told()
    assert answer.exit_code == NOT_HUNG
    assert answer.culprits == []


def test_any_pid_of_the_job_will_do(keeper: JobKeeper) -> None:
    job = keeper.get("torchrun", 5, 3)
    with job.suffer("sleep"):
        answer = attach(job.rank_pids[1], "--snapshots", "2", "--interval", "1")
        assert answer.kind == "hung", answer.told()
        assert answer.culprit_ranks == {3}, answer.told()
        assert {row["pid"] for row in answer.report["processes"]} >= set(job.rank_pids)


def test_running_collectives_are_not_hung(keeper: JobKeeper) -> None:
    """Twin: the same ranks in the same collective, but it ends each time."""
    job = keeper.get("popen", 4, 2)
    with job.train():
        answer = attach(job.pid)
    assert answer.kind in ("ready", "slow"), answer.told()
    assert answer.culprits == [] or answer.kind == "slow", answer.told()


def test_different_collectives(keeper: JobKeeper) -> None:
    job = keeper.get("popen", 4, 2)
    with job.mismatch():
        answer = attach(job.pid)
    assert answer.kind == "hung", answer.told()
    assert answer.cause == "collective-mismatch", answer.told()
    assert answer.culprit_ranks == {2}, answer.told()


def test_dead_rank_not_reaped(keeper: JobKeeper) -> None:
    job = keeper.get("popen", 4, 2)
    with job.lose_rank():
        answer = attach(job.pid)
    assert answer.kind == "hung", answer.told()
    assert answer.cause == "dead-process", answer.told()
    assert answer.culprit_pids == {job.culprit_pid}, answer.told()
    assert answer.culprit_ranks == {2}, answer.told()


def test_dead_rank_gone_without_a_trace(keeper: JobKeeper) -> None:
    """Its parent has reaped it: only the size of the world says that somebody is missing, here or on another host."""
    job = keeper.get("reap", 3, 1)
    with job.lose_rank():
        answer = attach(job.pid)
    assert answer.kind in ("hung", "unknown"), answer.told()
    assert answer.cause in ("dead-process", "missing-peer"), answer.told()
    assert not answer.culprit_ranks & {0, 2}, answer.told()
