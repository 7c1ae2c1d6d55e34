"""Acceptance on real GPUs: ``run.py LIFE… --out DIR``; one archive a life comes back, renewed after each scenario.

Starts each target of scenarios.toml, brings it into every state, attaches as a user would and compares the answer with
the right one. Exit code 0: all as expected; 1: not all; 2: nothing could be run. README.md says how to prepare.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tarfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, median

from look import Look, attach, judge, time_reads, watch
from plan import Life, Scenario, read_plan
from target import NotReached, Target
from targets import start_target
from throughput import Meter

WARM_UP_S, REST_S, WATCH_S, ROUNDS = 5.0, 10.0, 12.0, 3
LEAST_S, LEAST_MEASURED_S = 50.0, 110.0
"""Less than this left: no further scenario is begun, so that the archive is whole when the limit strikes."""


@dataclass
class Result:
    """What came of one scenario."""

    life: str
    scenario: str
    is_right: bool
    problems: list[str]
    verdict: str = ""
    attach_s: float | None = None
    exit_code: int | None = None
    throughput: dict[str, object] = field(default_factory=dict)


@dataclass
class Session:
    """Where things are, and until when."""

    work: Path
    out: Path
    end: float
    only: tuple[str, ...]
    options: tuple[str, ...] = ()
    """More words for every ``hangdoctor attach``."""
    results: list[Result] = field(default_factory=list)

    def left_s(self) -> float:
        return self.end - time.monotonic()


def live(session: Session, life: Life, port: int) -> None:
    """One start of a target and its scenarios."""
    folder = session.work / "runs" / life.id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wanted = [s for s in life.scenarios if not session.only or s.id in session.only]
    if not wanted:
        return
    if life.is_cold:
        for caches in (session.work / "home", Path("/tmp/torchinductor_root")):
            shutil.rmtree(caches, ignore_errors=True)
        (session.work / "home").mkdir()
    target = start_target(replace(life, scenarios=tuple(wanted)), folder, session.work, port)
    meter = Meter(target, folder / "tokens.txt")
    try:
        for scenario in wanted:
            if session.left_s() < (LEAST_MEASURED_S if scenario.measure else LEAST_S):
                note(session, Result(life.id, scenario.id, False, ["not run: no time left"]))
                continue
            is_alive = play(session, life, scenario, target, meter, folder / scenario.id)
            pack(session, life, folder)
            if not is_alive:
                break
    finally:
        target.end()
        pack(session, life, folder)


def play(
    session: Session, life: Life, scenario: Scenario, target: Target, meter: Meter, folder: Path
) -> bool:
    """Run one scenario; whether the target can go on."""
    folder.mkdir()
    result = Result(life.id, scenario.id, False, [])
    stopped: int | None = None
    try:
        stopped = provoke(scenario, target, meter)
        target.wait(scenario)
        look = measured(scenario, target, meter, folder, session, result)
        if scenario.ras:
            time_reads(target.pid, folder, session.work)
        result.problems += look.problems
        result.verdict, result.exit_code = look.words, look.exit_code
        result.attach_s = round(look.wall_s, 2)
        result.is_right = not result.problems
    except NotReached as why:
        result.problems.append(str(why))
    (folder / "log_tail.txt").write_text(target.log_text()[-20000:])
    note(session, result)
    (folder / "result.json").write_text(json.dumps(asdict(result), indent=1))
    if scenario.is_last or target.process.poll() is not None:
        return False
    return set_free(scenario, target, stopped, session)


def provoke(scenario: Scenario, target: Target, meter: Meter) -> int | None:
    """Bring the target's trouble about; the pid of a stopped rank."""
    if scenario.act != "load":
        meter.end_load()
    if scenario.act in ("request", "load", "stop", "kill"):
        target.wait_ready()
    if scenario.arm is not None and not (target.panel / scenario.arm).exists():
        target.arm(scenario.arm, scenario.parameter)
    if scenario.act == "load":
        meter.begin_load()
    if scenario.act in ("stop", "kill"):
        victim = target.victim(scenario.parameter)
        target.start_request()
        time.sleep(0.5)
        signal_victim(victim, signal.SIGSTOP if scenario.act == "stop" else signal.SIGKILL)
        return victim if scenario.act == "stop" else None
    if scenario.act == "request":
        target.start_request()
    return None


def signal_victim(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)


def measured(
    scenario: Scenario, target: Target, meter: Meter, folder: Path, session: Session, result: Result
) -> Look:
    """Attach; with ``measure`` also compare the throughput with and without it, in turns."""

    def look_on(suffix: str = "") -> Look:
        look = attach(target.pid, folder, session.work, (*scenario.options, *session.options), suffix)
        judge(look, scenario.expect)
        return look

    if scenario.measure is None:
        return look_on()
    meter.rate(WARM_UP_S)
    without, attached, looks = [meter.rate(REST_S)], [], []
    for number in range(1, ROUNDS + 1):
        begun = time.monotonic()
        if scenario.measure == "watch":
            result.problems += watch(target.pid, folder, session.work, WATCH_S)
        else:
            looks.append(look_on(f"-{number}"))
        attached.append(meter.rate_between(begun, time.monotonic()))
        without.append(meter.rate(REST_S))
    result.throughput = compared(without, attached, [look.wall_s for look in looks])
    for number, look in enumerate(looks[:-1], 1):
        result.problems += [f"attach {number}: {problem}" for problem in look.problems]
    return looks[-1] if looks else look_on()


def compared(without: list[float], attached: list[float], walls: list[float]) -> dict[str, object]:
    """Each window with the tool against the mean of the two beside it without."""
    ratios = [one / mean(without[number : number + 2]) for number, one in enumerate(attached)]
    return {
        "without_tokens_s": [round(rate, 1) for rate in without],
        "with_tokens_s": [round(rate, 1) for rate in attached],
        "ratios": [round(ratio, 4) for ratio in ratios],
        "ratio": round(median(ratios), 4),
        "attach_s": [round(wall, 2) for wall in walls],
    }


def set_free(scenario: Scenario, target: Target, stopped: int | None, session: Session) -> bool:
    """Undo the trouble; whether the target serves (or goes on starting) again."""
    if stopped is not None:
        signal_victim(stopped, signal.SIGCONT)
    if scenario.act == "finish":  # the fault ends by itself
        return True
    if scenario.arm is None and stopped is None:
        return True
    if scenario.arm is not None:
        target.release(scenario.arm)
    if scenario.act not in ("request", "stop"):
        return True
    if target.recovered():
        return True
    note(
        session,
        Result(target.life.id, scenario.id, False, ["the target did not recover; its life ends here"]),
    )
    return False


def note(session: Session, result: Result) -> None:
    session.results.append(result)
    mark = "ok   " if result.is_right else "WRONG"
    took = f"{result.attach_s:6.1f} s" if result.attach_s is not None else "        "
    print(
        f"{mark} {result.life}/{result.scenario:40} {took}  {result.verdict}  {result.throughput or ''}",
        flush=True,
    )
    for problem in result.problems:
        print(f"      {problem}", flush=True)


def pack(session: Session, life: Life, folder: Path) -> None:
    """Renew the life's archive; bundles are compressed already, the rest is small."""
    (folder / "results.json").write_text(json.dumps([asdict(item) for item in session.results], indent=1))
    part = session.out / f"{life.id}.part"
    with tarfile.open(part, "w:gz", compresslevel=4) as archive:
        archive.add(folder, arcname=life.id, filter=lambda item: None if item.isfifo() else item)
    part.replace(session.out / f"{life.id}.tar.gz")


def main() -> int:
    lives = read_plan()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lives", nargs="*", metavar="LIFE", help=", ".join(lives))
    parser.add_argument("--dry-run", action="store_true", help="only the CPU job, to try this driver")
    parser.add_argument("--only", action="append", default=[], metavar="SCENARIO")
    parser.add_argument(
        "--looks", type=int, metavar="N", help="as many at every attach, also if fewer prove it"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/hd"))
    parser.add_argument("--budget-s", type=float, default=560.0)
    words = parser.parse_args()
    chosen = words.lives or (["dry"] if words.dry_run else [])
    unknown = [name for name in chosen if name not in lives]
    if unknown or not chosen:
        parser.error(f"unknown life {unknown}" if unknown else "which life?")
    words.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that targets are ended
    options = ("--snapshots", str(words.looks)) if words.looks else ()
    session = Session(words.work, words.out, time.monotonic() + words.budget_s, tuple(words.only), options)
    for number, name in enumerate(chosen):
        if session.left_s() > LEAST_S:
            live(session, lives[name], 31100 + 10 * number)
    right = sum(result.is_right for result in session.results)
    print(f"{right} of {len(session.results)} right, {words.budget_s - session.left_s():.0f} s", flush=True)
    if not session.results:
        return 2
    return 0 if right == len(session.results) else 1


if __name__ == "__main__":
    sys.exit(main())
