"""The scenarios of scripts/gpu_acceptance are well-formed, so that no GPU time is lost to a typo."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hangdoctor.report import Cause, Kind

FOLDER = Path(__file__).parents[1] / "scripts" / "gpu_acceptance"
sys.path.insert(0, str(FOLDER))

import run  # type: ignore[import-not-found]  # noqa: E402
from look import Look, judge  # type: ignore[import-not-found]  # noqa: E402
from plan import Scenario, read_plan  # type: ignore[import-not-found]  # noqa: E402
from target import FAULTS, JOB_FAULTS, SERVER_FAULTS  # type: ignore[import-not-found]  # noqa: E402

LIVES = read_plan()
SCENARIOS = [scenario for life in LIVES.values() for scenario in life.scenarios]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_expectations_name_things_that_exist(scenario: Scenario) -> None:
    assert scenario.expect.kinds and set(scenario.expect.kinds) <= {kind.value for kind in Kind}
    assert set(scenario.expect.causes) <= {cause.value for cause in Cause}
    assert scenario.wait in ("", "ready", "reached", "child", "log", "time")
    assert scenario.act in ("", "request", "load", "stop", "kill", "finish")
    assert scenario.arm is None or scenario.arm in FAULTS
    assert scenario.wait != "reached" or scenario.arm or scenario.wait_for
    re.compile(scenario.wait_for)


def test_every_fault_is_planted_and_used() -> None:
    plugin = (FOLDER / "faults" / "sitecustomize.py").read_text()
    planted = set(re.findall(r"^def (\w+)\(.*\) -> bool:", plugin, re.MULTILINE)) - {"is_victim"}
    assert planted == set(SERVER_FAULTS)
    job = (FOLDER / "training_job.py").read_text()
    assert {fault for fault in FAULTS if f'"{fault}"' in job} == set(JOB_FAULTS)
    assert {scenario.arm for scenario in SCENARIOS if scenario.arm} == set(FAULTS)


def test_a_life_ends_with_the_scenario_that_breaks_it() -> None:
    for life in LIVES.values():
        assert [scenario.is_last for scenario in life.scenarios] == [False] * (len(life.scenarios) - 1) + [
            True
        ]


def test_scenario_names_are_unique() -> None:
    names = [scenario.id for scenario in SCENARIOS]
    assert len(set(names)) == len(names)


class Pace:
    """A meter without a server: half as many tokens with the tool as without."""

    def rate(self, seconds: float) -> float:
        return 1000.0

    def rate_between(self, begun: float, ended: float) -> float:
        return 500.0


def test_each_attach_of_a_measurement_has_a_bundle_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scenario = next(one for one in SCENARIOS if one.id == "busy")
    names: list[str] = []

    def attach(pid: int, folder: Path, work: Path, options: tuple[str, ...], suffix: str) -> Look:
        names.append(suffix)
        verdict = {"kind": "hung" if suffix == "-2" else "ready", "cause": "serving", "culprits": []}
        exit_code = 3 if suffix == "-2" else 0
        return Look([], exit_code, 1.5, {"verdict": verdict, "evidence": []})

    monkeypatch.setattr(run, "attach", attach)
    result = run.Result("faults", "busy", False, [])
    session = run.Session(tmp_path, tmp_path, 0.0, ())
    target = type("Target", (), {"pid": 1})()
    look = run.measured(scenario, target, Pace(), tmp_path, session, result)
    assert names == ["-1", "-2", "-3"] and not look.problems
    assert result.problems == ["attach 2: kind hung, expected ready"]
    assert result.throughput["ratios"] == [0.5, 0.5, 0.5] and result.throughput["attach_s"] == [1.5] * 3


def test_a_window_is_compared_with_those_beside_it() -> None:
    told = run.compared([100.0, 200.0, 300.0], [75.0, 250.0], [])
    assert told["ratios"] == [0.5, 1.0] and told["ratio"] == 0.75


def test_what_ras_said_must_be_cited_where_that_is_expected() -> None:
    scenario = next(one for one in SCENARIOS if one.id == "skipped-all-reduce")
    verdict = {"kind": "hung", "cause": "collective-mismatch", "culprits": []}
    look = Look([], 3, 5.0, {"verdict": verdict, "evidence": [{"source": "diff of looks"}]})
    judge(look, scenario.expect)
    assert look.problems == ["evidence from ['diff of looks'], expected ncclras"]
    asked = Look([], 3, 5.0, {"verdict": verdict, "evidence": [{"source": "ncclras"}]})
    judge(asked, scenario.expect)
    assert asked.problems == []


def test_an_exit_without_a_report_is_right_only_where_the_target_may_be_gone() -> None:
    killed = next(one for one in SCENARIOS if one.id == "graphs-rank-killed")
    for code, left in ((5, []), (1, ["no JSON report"])):
        look = Look([], code, 0.7, problems=["no JSON report"])
        judge(look, killed.expect)
        assert look.problems == left
