#!/usr/bin/env python3
"""Scores hangdoctor on recordings of real servers.

    scripts/score_captures.py                       one line a stage, then totals
    scripts/score_captures.py --stage f2f -v        the full report for the stages whose names contain f2f
    scripts/score_captures.py --bundles             the bundles in tests/bundles instead of the recordings

The recordings (../shared/captures) are not part of the repository; where they are absent the bundles that were
made from them are scored, and that is said. Exit code 0 whatever the score; the test suite judges.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from hangdoctor import bundle  # noqa: E402
from hangdoctor.analysis import diagnose  # noqa: E402
from hangdoctor.knowledge import Knowledge, load_knowledge  # noqa: E402
from hangdoctor.render import RENDERERS, RenderOptions  # noqa: E402
from hangdoctor.report import Kind, Report  # noqa: E402
from tests import expectations  # noqa: E402
from tests.expectations import BUNDLES, RECORDED, Expectation, Score  # noqa: E402
from tests.import_captures import Stage, find_stages  # noqa: E402


def main() -> None:
    """Parse the command line and print the score."""
    options = _options()
    stages = [stage for stage in _stages(options) if options.stage in stage.name]
    if not stages:
        sys.exit(f"no stage has {options.stage!r} in its name; there are: {', '.join(RECORDED)}")
    knowledge = load_knowledge()
    width = max(len(stage.name) for stage in stages)
    scores: list[tuple[Expectation, Report, Score]] = []
    for stage in stages:
        expected = expectations.load(stage.name)
        started = time.perf_counter()
        report = _diagnose(stage, knowledge)
        took = time.perf_counter() - started
        if report is None:
            continue
        score = expectations.compare(report, expected)
        scores.append((expected, report, score))
        print(_line(stage.name.ljust(width), expected, report, score, took))
        if options.verbose:
            print(RENDERERS["terminal"].render(report, RenderOptions()))
            print(f"\n  Truth: {expected.truth}\n  {expected.note}\n")
    print(_totals(scores, len(stages)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Score hangdoctor on recordings of real servers.")
    parser.add_argument("--captures", type=Path, default=ROOT.parent / "shared" / "captures", metavar="DIR")
    parser.add_argument("--bundles", action="store_true", help="score tests/bundles, not the recordings")
    parser.add_argument("--stage", default="", metavar="TEXT", help="only stages whose names contain TEXT")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the full reports")
    return parser.parse_args()


def _stages(options: argparse.Namespace) -> Iterator[Stage]:
    if not options.bundles and options.captures.is_dir():
        yield from find_stages(options.captures)
        return
    if not options.bundles:
        print(f"No recordings in {options.captures}: scoring the bundles made from them.", file=sys.stderr)
    for name in RECORDED:
        yield Stage(name, partial(bundle.read, BUNDLES / name / "capture.hang"))


def _diagnose(stage: Stage, knowledge: Knowledge) -> Report | None:
    """A crash is one lost stage, not the end of the score."""
    try:
        return diagnose(stage.load(), knowledge)
    except Exception as error:
        print(f"✗ {stage.name}: {type(error).__name__}: {error}")
        return None


def _line(name: str, expected: Expectation, report: Report, score: Score, took: float) -> str:
    verdict = report.verdict
    named = ", ".join(
        f"{culprit.rank.label if culprit.rank else culprit.role or '?'} {culprit.pid} {culprit.phase or '-'}"
        for culprit in verdict.culprits[:3]
    )
    cause = verdict.cause.value if verdict.cause else "-"
    best = "=" if verdict.kind is expected.kinds[0] else "~"
    mark = "✗" if score.complaints else best
    said = f"{verdict.kind.value}/{verdict.confidence.value} {cause}"
    wrong = f"   ✗ {'; '.join(score.complaints)}" if score.complaints else ""
    return f"{mark} {name} {said:32} {named} ({took:.2f} s){wrong}"


def _totals(scores: list[tuple[Expectation, Report, Score]], asked: int) -> str:
    def count(attribute: str) -> int:
        return sum(not score.kind and not getattr(score, attribute) for _, _, score in scores)

    right = sum(not score.complaints for _, _, score in scores)
    modest = sum(
        not score.complaints and report.verdict.kind is not expected.kinds[0]
        for expected, report, score in scores
    )
    alarms = sum(
        report.verdict.kind is Kind.HUNG and Kind.HUNG not in expected.kinds for expected, report, _ in scores
    )
    return (
        f"\n{asked} stages: {right} right ({modest} of them honestly unknown); kind {count('kind')}, "
        f"culprit {count('culprit')}, cause {count('cause')}, phase {count('phase')}; "
        f"called hung without reason: {alarms}; crashed: {asked - len(scores)}"
    )


if __name__ == "__main__":
    main()
