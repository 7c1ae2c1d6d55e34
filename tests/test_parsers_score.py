"""scripts/score_reports.py: what it does without its corpus, and that it does not flatter."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from hangdoctor.analysis import diagnose
from hangdoctor.model import Rank
from hangdoctor.parsers import read_text
from hangdoctor.report import Confidence, Culprit, Kind, Report
from tests.parsers_support import knowledge, reports

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "score_reports.py"
CASE = {
    "id": "vllm-23448-seq-off-by-one",
    "derivable_from_evidence": "full",
    "expected": {"verdict": "hung", "phase": "serving_collective"},
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("score_reports", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["score_reports"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def report() -> Report:
    return diagnose(read_text(reports()[CASE["id"]], "report", knowledge()), knowledge())


def blaming(report: Report, rank: int, confidence: Confidence) -> Report:
    culprit = Culprit(None, None, None, None, Rank(global_rank=rank), None, None, "waits")
    verdict = replace(report.verdict, kind=Kind.HUNG, confidence=confidence, culprits=(culprit,), summary="")
    return replace(report, verdict=verdict)


def test_without_the_corpus_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    copy = shutil.copy(SCRIPT, tmp_path / "scripts")
    done = subprocess.run([sys.executable, copy], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "no corpus" in done.stderr and done.stdout == ""


def test_the_right_rank_is_right_and_its_victim_wrong(script: ModuleType, report: Report) -> None:
    right = script.score(CASE, blaming(report, 3, Confidence.CERTAIN))
    wrong = script.score(CASE, blaming(report, 0, Confidence.CERTAIN))
    assert (right.culprit_right, right.is_wrong_and_certain) == (True, False)
    assert (wrong.culprit_right, wrong.is_wrong_and_certain) == (False, True)


def test_naming_nobody_is_not_right(script: ModuleType, report: Report) -> None:
    nobody = replace(report, verdict=replace(report.verdict, culprits=(), summary="", alternatives=()))
    assert script.score(CASE, nobody).culprit_right is False


def test_a_slow_case_called_hung_is_counted(script: ModuleType, report: Report) -> None:
    slow = {**CASE, "expected": {"verdict": "slow", "phase": "weight_loading"}}
    found = script.score(slow, blaming(report, 3, Confidence.POSSIBLE))
    assert (found.is_false_hung, found.verdict_right, found.phase_right) == (True, False, False)
