"""The arithmetic of scripts/bench_watch: a loss that was put in comes out, and none where there is none."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from scripts.bench_paired import Outcome, Sample, compare, find_looks, interval_of
from tests.jobs import MARK, RUN, marked, needs_torch, no_process_left

__all__ = ["no_process_left"]
SCRIPT = Path(__file__).parent.parent / "scripts" / "bench_watch"
WINDOW_S = 3.0


def run(
    lost_s: float, *, looks: int = 40, noise: float = 0.05, drift: float = 0.2, seed: int = 7
) -> list[Sample]:
    """A job of about 300 steps a second that gets slower by ``drift``, jitters, and loses ``lost_s`` in each look."""
    dice = random.Random(seed)
    samples, steps, cpu, jitter = [], 0.0, 0.0, 0.0
    end = 2 * WINDOW_S * (looks + 2)
    for tick in range(int(end / 0.1)):
        at = 0.1 * tick
        samples.append(Sample(at, steps, cpu))
        is_look = at % (2 * WINDOW_S) < 0.5
        jitter = 0.9 * jitter + dice.gauss(0, noise)
        steps += 30 * (1 - drift * at / end) * (1 + jitter) * (1 - (lost_s / 0.5 if is_look else 0))
        cpu += 0.03 if is_look else 0.0005
    return samples


def outcome(lost_s: float, **more: float) -> Outcome:
    return compare(run(lost_s, **more), WINDOW_S)  # type: ignore[arg-type]


def test_looks_are_found_by_the_work_they_are() -> None:
    looks = find_looks(run(0.1, looks=10))
    assert len(looks) == 10
    assert all(begin % 6.0 == pytest.approx(0.0, abs=0.11) or begin % 6.0 > 5.8 for begin, _ in looks)
    assert all(end - begin == pytest.approx(0.5, abs=0.11) for begin, end in looks)


@pytest.mark.parametrize("lost_s", [0.05, 0.3])
def test_what_a_look_takes_away_comes_out(lost_s: float) -> None:
    found = outcome(lost_s, noise=0.02)
    assert found.loss_s.low <= lost_s <= found.loss_s.high
    assert found.loss_s.high - found.loss_s.low < 0.15
    assert found.cpu_s == pytest.approx(0.15, abs=0.04)


def test_a_loss_of_three_percent_is_refuted_and_one_of_a_tenth_is_proven() -> None:
    """At the bar of 99 % with a look every 10 s."""
    assert outcome(0.3, noise=0.01).share_kept(10.0)[2] < 0.99
    assert outcome(0.01, noise=0.01).share_kept(10.0)[0] > 0.99


def test_a_run_that_is_too_noisy_decides_nothing() -> None:
    low, _, high = outcome(0.1, noise=0.6, looks=8).share_kept(10.0)
    assert low < 0.99 < high


def test_windows_without_a_look_lose_nothing() -> None:
    null = outcome(0.3, noise=0.02).null_s
    assert null.low <= 0 <= null.high


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    dice = random.Random(3)
    intervals = [interval_of([dice.expovariate(1.0) for _ in range(30)]) for _ in range(400)]
    held = sum(each.low <= 0.6931 <= each.high for each in intervals)
    assert held >= 0.93 * 400
    assert held < 400


def test_too_few_looks_say_nothing() -> None:
    with pytest.raises(ValueError, match="too few"):
        outcome(0.1, looks=3)


@needs_torch[1]
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whatever_ends_the_bench_ends_its_job_and_its_watch(number: int) -> None:
    mark = f"{RUN}-{uuid.uuid4().hex}"
    command = [sys.executable, str(SCRIPT), "--no-pauses", "--ranks", "3", "--seconds", "60"]
    bench = subprocess.Popen(
        command, env={**os.environ, MARK: mark}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        # The bench, a launcher, three ranks and the watch.
        while len(marked(mark)) < 6:
            assert bench.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        bench.send_signal(number)
        bench.wait(30)
        deadline = time.monotonic() + 10
        while left := marked(mark):
            assert time.monotonic() < deadline, left
            time.sleep(0.01)
    finally:
        bench.kill()
        bench.wait()
