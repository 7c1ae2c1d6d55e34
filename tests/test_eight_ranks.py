"""A job of eight ranks, as tensor parallelism on one host has them: kind, rank and cause, and one screen to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hangdoctor import bundle
from hangdoctor.analysis import diagnose
from hangdoctor.knowledge import load_knowledge
from hangdoctor.render import RENDERERS, RenderOptions
from tests.jobs import Answer, GlooJob, JobKeeper, attach, gloo_job, needs_torch, no_process_left

__all__ = ["no_process_left"]
pytestmark = [*needs_torch, pytest.mark.slow]
WORLD = 8
SCREEN_LINES = 64


@pytest.fixture(scope="module")
def keeper() -> Iterator[JobKeeper]:
    keeper = JobKeeper()
    yield keeper
    keeper.close()


def eight(keeper: JobKeeper, culprit: int) -> GlooJob:
    """The same eight ranks for each test that can take its fault back."""
    job = keeper.get("popen", WORLD, 2)
    job.culprit = culprit
    return job


def look(job: GlooJob, folder: Path) -> Answer:
    """Attach as a user does, and read the report on a screen of 80 columns."""
    path = folder / "eight.hang"
    answer = attach(job.pid, "--snapshots", "3", "--interval", "2", bundle=path)
    report = diagnose(bundle.read(path), load_knowledge())
    screen = RENDERERS["terminal"].render(report, RenderOptions(width=80))
    assert screen.count("\n") <= SCREEN_LINES, screen
    assert max(map(len, screen.splitlines())) <= 80, screen
    return answer


def test_idle(keeper: JobKeeper, tmp_path: Path) -> None:
    answer = look(eight(keeper, 2), tmp_path)
    assert (answer.kind, answer.cause, answer.culprits) == ("ready", "idle", []), answer.told()


@pytest.mark.parametrize(
    ("fault", "culprit", "kind", "cause"),
    [
        ("compute", 5, "slow", "dequantizing"),
        ("stopped", 7, "hung", "stopped-process"),
        ("sleep", 3, "hung", "laggard"),
    ],
)
def test_one_of_eight(
    keeper: JobKeeper, fault: str, culprit: int, kind: str, cause: str, tmp_path: Path
) -> None:
    job = eight(keeper, culprit)
    with job.suffer(fault):
        answer = look(job, tmp_path)
    assert (answer.kind, answer.cause, answer.culprit_ranks) == (kind, cause, {culprit}), answer.told()


def test_one_of_eight_calls_another_collective(keeper: JobKeeper, tmp_path: Path) -> None:
    job = eight(keeper, 2)
    with job.mismatch():
        answer = look(job, tmp_path)
    assert (answer.kind, answer.cause) == ("hung", "collective-mismatch"), answer.told()
    assert answer.culprit_ranks == {2}, answer.told()


def test_two_groups_wait_for_each_other(keeper: JobKeeper, tmp_path: Path) -> None:
    """Nobody is behind: the lower half waits in one group, the upper half in the other."""
    job = eight(keeper, 2)
    with job.cross_groups():
        answer = look(job, tmp_path)
    assert (answer.kind, answer.cause) == ("hung", "collective-mismatch"), answer.told()
    assert "not used in the same order" in answer.report["verdict"]["summary"]
    assert answer.culprit_ranks == set(range(WORLD)), answer.told()


def test_one_of_eight_never_comes_to_the_rendezvous(tmp_path: Path) -> None:
    with gloo_job("popen", world_size=WORLD, culprit=3, is_late=True) as job:
        answer = look(job, tmp_path)
    assert answer.kind in ("hung", "unknown"), answer.told()
    assert answer.culprit_ranks == {3}, answer.told()
