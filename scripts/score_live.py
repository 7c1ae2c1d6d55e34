#!/usr/bin/env python
"""Run the live scenarios many times and print how often the verdict was right: the confusion matrix of hangdoctor.

    scripts/score_live.py                        each scenario once
    scripts/score_live.py --runs 20 --load 2     twenty times each, while two processes burn the CPUs
    scripts/score_live.py spin heartbeat         only these

Each run starts the job anew. Exits with 1 when anything slow or ready was called hung, anything hung slow or ready,
or when there was no report.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.jobs import Answer, attach
from tests.scenarios import CULPRIT, SCENARIOS, LiveScenario, Playing, play

KINDS = ("hung", "slow", "ready", "unknown", "failed")
"""``failed``: attach gave no report."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one scenario."""

    scenario: LiveScenario
    said: str
    cause: str | None
    is_culprit_right: bool | None
    """``None`` where nobody is to blame or nobody was blamed because the answer was "unknown"."""
    wall_s: float


def burn() -> None:
    """One CPU's worth of foreign load."""
    while True:
        sum(range(10_000))


@contextmanager
def cpu_load(processes: int) -> Iterator[None]:
    """Keep ``processes`` CPUs busy with something that is not the job."""
    burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(processes)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def is_culprit_right(scenario: LiveScenario, playing: Playing, answer: Answer) -> bool | None:
    """Blamed is the culprit or something that it waits for, and no other rank."""
    if not scenario.is_blamed or answer.kind == "unknown":
        return None
    victims = {pid for rank, pid in playing.rank_pids.items() if rank != CULPRIT}
    return bool(answer.culprit_pids) and not answer.culprit_pids & victims


def run_once(scenario: LiveScenario, options: Sequence[str]) -> Outcome:
    """Start, attach, end."""
    with play(scenario) as playing:
        try:
            answer = attach(playing.pid, *options)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr)
            return Outcome(scenario, "failed", None, None, 0.0)
    return Outcome(
        scenario,
        answer.kind if answer.kind in KINDS else "unknown",
        answer.cause,
        is_culprit_right(scenario, playing, answer),
        answer.wall_s,
    )


def matrix(outcomes: Sequence[Outcome]) -> str:
    """Truth by answer, as a Markdown table."""
    counts = Counter((outcome.scenario.kind, outcome.said) for outcome in outcomes)
    lines = ["| truth \\ answer | " + " | ".join(KINDS) + " |", "|---|" + "---:|" * len(KINDS)]
    for truth in KINDS[:3]:
        lines.append(f"| {truth} | " + " | ".join(str(counts[truth, said]) for said in KINDS) + " |")
    return "\n".join(lines)


def per_scenario(outcomes: Sequence[Outcome]) -> str:
    """One line a scenario: what was said how often, causes, culprits."""
    lines = [
        "| scenario | truth | answers | causes | culprit right | seconds |",
        "|---|---|---|---|---:|---:|",
    ]
    for name in dict.fromkeys(outcome.scenario.name for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.scenario.name == name]
        answers = ", ".join(f"{said} {count}" for said, count in Counter(o.said for o in mine).most_common())
        causes = ", ".join(sorted({outcome.cause or "–" for outcome in mine}))
        judged = [outcome.is_culprit_right for outcome in mine if outcome.is_culprit_right is not None]
        culprit = f"{sum(judged)}/{len(judged)}" if judged else "–"
        seconds = sorted(outcome.wall_s for outcome in mine)[len(mine) // 2]
        lines.append(
            f"| {name} | {mine[0].scenario.kind} | {answers} | {causes} | {culprit} | {seconds:.1f} |"
        )
    return "\n".join(lines)


def is_dangerous(outcome: Outcome) -> bool:
    """The mistakes that cost people hours: hung for slow or ready, slow or ready for hung."""
    return outcome.said not in ("unknown", "failed") and (outcome.said == "hung") != (
        outcome.scenario.kind == "hung"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: all")
    parser.add_argument("--runs", type=int, default=1, help="of each scenario (default: 1)")
    parser.add_argument(
        "--load", type=int, default=0, help="processes that burn a CPU meanwhile (default: 0)"
    )
    parser.add_argument("--snapshots", default="3")
    parser.add_argument("--interval", default="2")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.scenarios if name not in SCENARIOS]:
        parser.error(f"no such scenario: {', '.join(unknown)}; there are: {', '.join(SCENARIOS)}")
    chosen = [SCENARIOS[name] for name in options.scenarios or SCENARIOS]
    outcomes: list[Outcome] = []
    began = time.monotonic()
    with cpu_load(options.load):
        for run in range(options.runs):
            for scenario in chosen:
                if missing := scenario.missing():
                    print(f"{scenario.name}: not run, no {', '.join(missing)}", file=sys.stderr)
                    continue
                outcome = run_once(
                    scenario, ("--snapshots", options.snapshots, "--interval", options.interval)
                )
                outcomes.append(outcome)
                mark = "!!" if is_dangerous(outcome) else "  "
                print(f"{mark} {run + 1} {scenario.name}: {scenario.kind} -> {outcome.said}", file=sys.stderr)
    unknown_share = sum(outcome.said == "unknown" for outcome in outcomes) / max(1, len(outcomes))
    minutes = (time.monotonic() - began) / 60
    print(f"{len(outcomes)} runs of {len(chosen)} scenarios, {options.load} CPU burners, {minutes:.0f} min\n")
    print(matrix(outcomes) + "\n\n" + per_scenario(outcomes))
    print(f"\nunknown: {unknown_share:.0%}; dangerous: {sum(map(is_dangerous, outcomes))}")
    return 1 if any(is_dangerous(outcome) or outcome.said == "failed" for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
