"""Each live scenario once: the right kind, and where it can be known, cause and culprit."""

from __future__ import annotations

import os

import pytest

from tests.jobs import attach
from tests.scenarios import CULPRIT, SCENARIOS, LiveScenario, play

pytestmark = pytest.mark.slow
# Three looks in four seconds: enough for every scenario here, and a third of the default's time.
LOOKS = ("--snapshots", "3", "--interval", "2")
# What differs from another one in a detail is left to scripts/score_live.py, which runs all of them many times.
RARE = frozenset(
    {
        "load-direct",
        "load-from-start",
        "load-storage-mapped",
        "load-trickle",
        "save-torch",
        "dequantize-c-gil-free",
        "dequantize-numpy-gil-held",
        "dequantize-torch-gil-held",
        "compile-ninja-1-wait",
        "service-threaded",
    }
)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_verdict(scenario: LiveScenario) -> None:
    if scenario.name in RARE and "HANGDOCTOR_ALL_SCENARIOS" not in os.environ:
        pytest.skip("run by scripts/score_live.py, and here with HANGDOCTOR_ALL_SCENARIOS=1")
    if missing := scenario.missing():
        message = f"{scenario.name} was not tested: no {', '.join(missing)}"
        required = os.environ.get("HANGDOCTOR_REQUIRE", "").split(",")
        pytest.fail(message) if set(missing) & set(required) else pytest.skip(message)
    with play(scenario) as playing:
        answer = attach(playing.pid, *LOOKS)
    assert answer.kind in scenario.accepted_kinds, answer.told()
    if answer.kind != scenario.kind:
        return
    if scenario.causes:
        assert answer.cause in scenario.causes, answer.told()
    if scenario.functions:
        assert answer.culprit_functions <= scenario.functions, answer.told()
    if scenario.is_blamed:
        blamed = {row["pid"] for row in answer.culprits}
        victims = set(playing.rank_pids.values()) - {playing.rank_pids[CULPRIT]}
        assert blamed, answer.told()
        # A process that the culprit itself waits for (its compiler, its source of data) is as right.
        assert not blamed & victims, answer.told()
    if scenario.kind == "ready":
        assert answer.culprits == [], answer.told()


def test_the_rare_ones_exist() -> None:
    assert set(SCENARIOS).issuperset(RARE)
