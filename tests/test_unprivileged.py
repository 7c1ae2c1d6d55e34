"""An ordinary user without py-spy gets the same verdict: a part of what ``scripts/score_unprivileged.py`` measures."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import jobs, lacking, scenarios
from tests.conftest import stuck
from tests.jobs import needs_torch, no_process_left
from tests.lacking import has_privileges, look, without_privileges

__all__ = ["no_process_left"]
pytestmark = pytest.mark.slow

LOOKS = ("--snapshots", "2", "--interval", "1.5")


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The targets run as an ordinary user too. The front of a command that does the same for hangdoctor."""
    prefix = without_privileges()
    if prefix and "--reuid" in prefix[1]:
        prefix = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")  # the folders of the tests are root's
    monkeypatch.setattr(scenarios, "stuck", lambda *args, **kwargs: stuck(*args, prefix=prefix, **kwargs))
    return prefix


@pytest.mark.parametrize("name", ["heartbeat", "load-read", "service-idle"])
def test_without_py_spy_the_verdict_is_the_same(name: str, as_user: tuple[str, ...]) -> None:
    with scenarios.play(scenarios.SCENARIOS[name]) as playing:
        whole, less = (look(playing.pid, tier, LOOKS, as_user) for tier in ("everything", "no py-spy"))
    assert less.agrees_with(whole), f"{whole.told()}\n{less.told()}"
    assert less.kind == scenarios.SCENARIOS[name].kind, less.told()
    assert [gap["remedy"] for gap in less.report["gaps"] if gap["source"] == "py-spy"]
    assert "this machine" not in {gap["subject"] for gap in whole.report["gaps"] if gap["source"] == "py-spy"}


@pytest.mark.parametrize("name", ["load-stopped-stream"])
def test_without_attach_a_hang_is_told_or_left_open_and_nobody_else_is_blamed(
    name: str, as_user: tuple[str, ...]
) -> None:
    with scenarios.play(scenarios.SCENARIOS[name]) as playing:
        dark = look(playing.pid, "no attach", LOOKS, as_user)
    victims = {pid for rank, pid in playing.rank_pids.items() if rank != scenarios.CULPRIT}
    assert dark.kind in ("hung", "unknown"), dark.told()
    assert dark.kind == "unknown" or not dark.culprits & victims, dark.told()


class TestGloo:
    """torch.distributed, told from the kernel alone: no stack, no system call, no memory."""

    pytestmark = needs_torch

    def test_the_missing_rank_is_named(self) -> None:
        with jobs.gloo_job("popen", world_size=3, culprit=1) as job:
            idle = look(job.pid, "no attach", LOOKS)
            with job.suffer("sleep"):
                dark = look(job.pid, "no attach", LOOKS)
        assert (dark.kind, dark.culprits) == ("hung", frozenset({job.culprit_pid})), dark.told()
        assert dark.report["verdict"]["confidence"] == "possible"  # the shape of waits is no proof
        waiting = {row["pid"] for row in dark.report["verdict"]["victims"]}
        assert waiting == set(job.rank_pids) - {job.culprit_pid}
        # Twin: the same ranks, each in its queue.
        assert idle.kind in ("ready", "unknown"), idle.told()


def test_that_privileges_are_really_gone() -> None:
    code = "import sys; sys.path.insert(0, '.'); from tests.lacking import has_privileges; print(has_privileges())"
    command = [*without_privileges(), sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=lacking.PROGRAMS.parents[1]
    )
    assert done.stdout.strip() == "False"
    assert has_privileges() or not without_privileges()
