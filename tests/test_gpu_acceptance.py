"""The scenarios of scripts/gpu_acceptance are well-formed, so that no GPU time is lost to a typo."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hangdoctor.report import Cause, Kind

FOLDER = Path(__file__).parents[1] / "scripts" / "gpu_acceptance"
sys.path.insert(0, str(FOLDER))

from plan import Scenario, read_plan  # type: ignore[import-not-found]  # noqa: E402
from target import FAULTS  # type: ignore[import-not-found]  # noqa: E402

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
    assert planted == set(FAULTS) == {scenario.arm for scenario in SCENARIOS if scenario.arm}


def test_a_life_ends_with_the_scenario_that_breaks_it() -> None:
    for life in LIVES.values():
        assert [scenario.is_last for scenario in life.scenarios] == [False] * (len(life.scenarios) - 1) + [
            True
        ]


def test_scenario_names_are_unique() -> None:
    names = [scenario.id for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
