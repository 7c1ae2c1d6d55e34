"""The confusion matrix of scripts/score_live.py: what counts as dangerous, what is left to run, where the tables go."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.scenarios import SCENARIOS

SCRIPT = Path(__file__).parent.parent / "scripts" / "score_live.py"


@pytest.fixture(scope="module")
def score() -> ModuleType:
    spec = importlib.util.spec_from_file_location("score_live", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["score_live"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("truth", "said", "is_dangerous"),
    [
        ("slow", "hung", True),
        ("ready", "hung", True),
        ("hung", "slow", True),
        ("hung", "ready", True),
        ("hung", "unknown", False),
        ("slow", "unknown", False),
        ("ready", "slow", False),
        ("hung", "hung", False),
        ("hung", "failed", False),
    ],
)
def test_what_costs_people_hours(score: ModuleType, truth: str, said: str, is_dangerous: bool) -> None:
    assert score.Outcome("spin", truth, said, None, None, 5.0, 1).is_dangerous is is_dangerous


def test_a_second_run_does_what_the_first_left(score: ModuleType, tmp_path: Path) -> None:
    chosen = [SCENARIOS["spin"], SCENARIOS["load-read"]]
    record = score.Record(tmp_path / "runs.jsonl")
    first = [(chosen[0], 4), *[(chosen[1], 1)] * 4]
    assert list(score.plan(chosen, 6, record)) == [*first, (chosen[0], 2), *[(chosen[1], 1)] * 2]
    for _ in range(5):
        record.add(score.Outcome("spin", "hung", "hung", "spin", True, 5.0, 1))
    again = score.Record(tmp_path / "runs.jsonl")
    assert again.outcomes == record.outcomes
    assert list(score.plan(chosen, 6, again))[:4] == [(chosen[1], 1)] * 4  # spin has more behind it
    assert list(score.plan(chosen[:1], 6, again)) == [(chosen[0], 1)]
    assert list(score.plan(chosen[:1], 5, again)) == []


def test_the_tables_replace_what_stood_between_the_marks(score: ModuleType, tmp_path: Path) -> None:
    outcomes = [
        score.Outcome("spin", "hung", "hung", "spin", True, 5.0, 1),
        score.Outcome("spin", "hung", "unknown", None, None, 6.0, 1),
        score.Outcome("load-read", "slow", "hung", "laggard", False, 7.0, 1),
    ]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{score.BEGIN}\nold\n{score.END}\nafter\n")
    score.write_between_marks(page, score.summary(outcomes))
    text = page.read_text()
    assert "old" not in text and text.startswith("before\n") and text.endswith("\nafter\n")
    assert "| **hung** | 1 | 0 | 0 | 1 | 0 |" in text and "| **slow** | 1 | 0 | 0 | 0 | 0 |" in text
    assert "hung called slow or ready" in text.lower() and "called hung: 1. Unknown: 33.3%" in text
    assert "Culprit right: 1 of 2" in text
    page.write_text("no marks")
    with pytest.raises(SystemExit):
        score.write_between_marks(page, "x")


def test_the_page_in_the_documentation_has_the_marks(score: ModuleType) -> None:
    text = (SCRIPT.parent.parent / "docs" / "live-matrix.md").read_text()
    assert text.index(score.BEGIN) < text.index(score.END)


def test_every_scenario_says_what_is_right_and_may_be_told_apart() -> None:
    assert {scenario.kind for scenario in SCENARIOS.values()} == {"hung", "slow", "ready"}
    unsure = [name for name, scenario in SCENARIOS.items() if scenario.may_be_unknown]
    assert len(unsure) <= len(SCENARIOS) / 10, unsure
