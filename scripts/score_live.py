#!/usr/bin/env python
"""Run the live scenarios many times and print how often the verdict was right: the confusion matrix of hangdoctor.

    scripts/score_live.py                                  each scenario once
    scripts/score_live.py --runs 20 --load 1 --jobs 4      twenty times each, four at a time, beside a CPU burner
    scripts/score_live.py spin heartbeat                   only these
    scripts/score_live.py --runs 20 --resume runs.jsonl --minutes 10     ten minutes of it; say it again to go on
    scripts/score_live.py --runs 0 --resume runs.jsonl --write docs/live-matrix.md     sum up what there is

Exits with 1 when anything slow or ready was called hung, anything hung slow or ready, when there was no report, or when
more than a tenth of the answers was "unknown".
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.jobs import Answer, attach
from tests.scenarios import CULPRIT, SCENARIOS, LiveScenario, Playing, play

KINDS = ("hung", "slow", "ready", "unknown", "failed")
"""``failed``: attach gave no report."""
ATTACHES_A_START = 4
"""A job that stays in its state for ever is looked at as often before the next one is started."""
MOST_UNKNOWN = 0.1
BEGIN, END = "<!-- matrix: written by scripts/score_live.py -->", "<!-- end of matrix -->"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one scenario."""

    scenario: str
    truth: str
    said: str
    cause: str | None
    is_culprit_right: bool | None
    """``None`` where nobody is to blame or nobody was blamed because the answer was "unknown"."""
    wall_s: float
    load: int
    """Foreign processes that burned a CPU meanwhile."""

    @property
    def is_dangerous(self) -> bool:
        """The mistakes that cost people hours: hung for slow or ready, slow or ready for hung."""
        return self.said not in ("unknown", "failed") and (self.said == "hung") != (self.truth == "hung")


class Record:
    """The outcomes so far, kept in a file of a line each where one is named. Threads may add to it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.outcomes: list[Outcome] = []
        if path is not None and path.exists():
            self.outcomes = [Outcome(**json.loads(line)) for line in path.read_text().splitlines()]

    def add(self, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes.append(outcome)
            if self._path is not None:
                with self._path.open("a") as lines:
                    lines.write(json.dumps(asdict(outcome)) + "\n")
            mark = "!!" if outcome.is_dangerous else "??" if outcome.said == "unknown" else "  "
            print(
                f"{mark} {outcome.scenario}: {outcome.truth} -> {outcome.said} ({outcome.cause}), "
                f"{outcome.wall_s:.1f} s",
                file=sys.stderr,
                flush=True,
            )

    def count(self, scenario: LiveScenario) -> int:
        return sum(outcome.scenario == scenario.name for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class Orders:
    """How to run what."""

    options: tuple[str, ...]
    """Of attach."""
    load: int
    keep: Path | None
    """Folder for the captures of answers that were not the truth."""
    end: float
    """Monotonic time after which nothing is begun."""


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


def look(scenario: LiveScenario, playing: Playing, orders: Orders) -> Outcome:
    """One attach."""
    bundle = None
    if orders.keep is not None:
        bundle = orders.keep / f"{scenario.name}-{time.time_ns() // 1_000_000}.hang"
    try:
        answer = attach(playing.pid, *orders.options, bundle=bundle)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return Outcome(scenario.name, scenario.kind, "failed", None, None, 0.0, orders.load)
    right = is_culprit_right(scenario, playing, answer)
    if bundle is not None and answer.kind == scenario.kind and right is not False:
        bundle.unlink(missing_ok=True)
    said = answer.kind if answer.kind in KINDS else "unknown"
    return Outcome(scenario.name, scenario.kind, said, answer.cause, right, answer.wall_s, orders.load)


def sit(scenario: LiveScenario, times: int, orders: Orders, record: Record) -> None:
    """Start the job once and look at it ``times`` times."""
    if time.monotonic() >= orders.end:
        return
    with play(scenario) as playing:
        for _ in range(times):
            record.add(look(scenario, playing, orders))
            if time.monotonic() >= orders.end:
                return


def plan(chosen: Sequence[LiveScenario], runs: int, record: Record) -> Iterator[tuple[LiveScenario, int]]:
    """What is left to do, four runs of each scenario after the other, those that lag behind first."""
    left = {scenario.name: runs - record.count(scenario) for scenario in chosen}
    while any(count > 0 for count in left.values()):
        for scenario in sorted(chosen, key=lambda scenario: -left[scenario.name]):
            times = max(0, min(left[scenario.name], ATTACHES_A_START))
            left[scenario.name] -= times
            yield from [(scenario, times)] * bool(times) if scenario.is_lasting else [(scenario, 1)] * times


def run_all(chosen: Sequence[LiveScenario], runs: int, jobs: int, orders: Orders, record: Record) -> None:
    """Several at a time, of which a third keeps a CPU busy; the rest mostly sleeps."""
    sittings = list(plan(chosen, runs, record))
    lanes = [[s for s in sittings if s[0].is_busy], [s for s in sittings if not s[0].is_busy]]
    third = max(1, jobs // 3)
    with ThreadPoolExecutor(third) as busy, ThreadPoolExecutor(max(1, jobs - third)) as calm:
        if jobs == 1:
            calm = busy
        futures = [
            pool.submit(sit, scenario, times, orders, record)
            for pool, lane in zip((busy, calm), lanes, strict=True)
            for scenario, times in lane
        ]
        for future in futures:
            future.result()


def matrix(outcomes: Sequence[Outcome]) -> str:
    """Truth by answer, as a Markdown table."""
    counts = Counter((outcome.truth, outcome.said) for outcome in outcomes)
    lines = ["| truth \\ answer | " + " | ".join(KINDS) + " |", "|---|" + "---:|" * len(KINDS)]
    for truth in KINDS[:3]:
        lines.append(f"| **{truth}** | " + " | ".join(str(counts[truth, said]) for said in KINDS) + " |")
    return "\n".join(lines)


def per_scenario(outcomes: Sequence[Outcome]) -> str:
    """One line a scenario: what was said how often, causes, culprits."""
    lines = [
        "| scenario | truth | answers | causes | culprit right | seconds |",
        "|---|---|---|---|---:|---:|",
    ]
    names = {outcome.scenario for outcome in outcomes}
    for name in (name for name in SCENARIOS if name in names):
        mine = [outcome for outcome in outcomes if outcome.scenario == name]
        answers = ", ".join(f"{said} {count}" for said, count in Counter(o.said for o in mine).most_common())
        causes = ", ".join(sorted({outcome.cause or "–" for outcome in mine}))
        judged = [outcome.is_culprit_right for outcome in mine if outcome.is_culprit_right is not None]
        culprit = f"{sum(judged)}/{len(judged)}" if judged else "–"
        seconds = sorted(outcome.wall_s for outcome in mine)[len(mine) // 2]
        lines.append(f"| {name} | {mine[0].truth} | {answers} | {causes} | {culprit} | {seconds:.1f} |")
    return "\n".join(lines)


def unknown_share(outcomes: Sequence[Outcome]) -> float:
    """Share of the answers that say "cannot tell"."""
    return sum(outcome.said == "unknown" for outcome in outcomes) / max(1, len(outcomes))


def summary(outcomes: Sequence[Outcome]) -> str:
    """Both tables and what they come to."""
    if not outcomes:
        return "no runs"
    loads = sorted({outcome.load for outcome in outcomes})
    burning = (
        "1 foreign process burned"
        if loads == [1]
        else f"{' or '.join(map(str, loads))} foreign processes burned"
    )
    counts = Counter(outcome.scenario for outcome in outcomes).values()
    each = f"{min(counts)}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    head = (
        f"{len(outcomes)} runs of {len(counts)} scenarios, {each} of each, on {os.cpu_count()} cores, "
        f"while {burning} a core."
    )
    wrong = sum(outcome.is_dangerous for outcome in outcomes)
    judged = [outcome.is_culprit_right for outcome in outcomes if outcome.is_culprit_right is not None]
    tail = (
        f"Hung called slow or ready, or slow or ready called hung: {wrong}. Unknown: "
        f"{unknown_share(outcomes):.1%}. Culprit right: {sum(judged)} of {len(judged)} times somebody was to be blamed."
    )
    return f"{head}\n\n{matrix(outcomes)}\n\n{tail}\n\n{per_scenario(outcomes)}"


def write_between_marks(path: Path, text: str) -> None:
    """Replace what stands between the two marks of a Markdown file. Exits when it has no such marks."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{path} has no lines '{BEGIN}' and '{END}'")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: all")
    parser.add_argument("--runs", type=int, default=1, help="of each scenario (default: 1)")
    parser.add_argument(
        "--load", type=int, default=0, help="processes that burn a CPU meanwhile (default: 0)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="scenarios at a time (default: 1)")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after that time")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="count what stands there, add to it")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="captures of answers that were not the truth"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between its marks")
    parser.add_argument("--snapshots", default="3")
    parser.add_argument("--interval", default="2")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.scenarios if name not in SCENARIOS]:
        parser.error(f"no such scenario: {', '.join(unknown)}; there are: {', '.join(SCENARIOS)}")
    return options


def runnable(scenarios: Iterable[LiveScenario]) -> Iterator[LiveScenario]:
    """Without those for which something is missing here; which, is said."""
    for scenario in scenarios:
        if missing := scenario.missing():
            print(f"{scenario.name}: not run, no {', '.join(missing)}", file=sys.stderr)
        else:
            yield scenario


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_arguments(arguments)
    record = Record(options.resume)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    if options.runs > 0:
        chosen = list(runnable(SCENARIOS[name] for name in options.scenarios or SCENARIOS))
        looks = ("--snapshots", options.snapshots, "--interval", options.interval)
        end = time.monotonic() + 60 * options.minutes
        with cpu_load(options.load):
            run_all(
                chosen, options.runs, options.jobs, Orders(looks, options.load, options.keep, end), record
            )
    text = summary(record.outcomes)
    print(text)
    if options.write is not None:
        write_between_marks(options.write, text)
    bad = any(outcome.is_dangerous or outcome.said == "failed" for outcome in record.outcomes)
    return 1 if bad or unknown_share(record.outcomes) > MOST_UNKNOWN else 0


if __name__ == "__main__":
    sys.exit(main())
