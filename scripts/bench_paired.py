"""What looks cost a job that makes steps: windows with a look and windows beside them without, of one run.

A machine of two cores is not steady enough for two runs to be compared to 1 %, but what is slow to change (clocks,
caches, neighbours) is the same in windows that touch. So every look is compared with the windows right before and after
it, and many looks give an interval for the loss that assumes nothing of how it is distributed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb
from statistics import mean, median

QUIET_S = 0.7
"""Two bursts of work that are nearer to each other belong to one look."""
WORK = 0.1
"""Of a core: what a watch uses between looks stays below it, what a look uses is far above."""
SURE = 0.95


@dataclass(frozen=True, slots=True)
class Sample:
    """At one moment: the time in seconds, the steps made so far, and the CPU seconds that the watch has used so far."""

    at: float
    steps: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A median, and where the true one lies with a probability of at least 95 %."""

    low: float
    middle: float
    high: float
    mean: float
    count: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one look costs."""

    loss_s: Interval
    """Seconds of the job's steps."""
    null_s: Interval
    """The same of windows without a look, as if there were one: how far off the method is."""
    cpu_s: float
    look_s: float
    """The longest burst of work."""
    idle_share: float
    """Of one core, between looks."""

    def share_kept(self, interval_s: float) -> tuple[float, float, float]:
        """Lower end, middle and upper end of the steps that are left with a look every ``interval_s`` seconds.

        What the watch uses between looks is taken off as if it stopped the job for as long.
        """
        of = (self.loss_s.high, self.loss_s.middle, self.loss_s.low)
        low, middle, high = (1 - loss / interval_s - self.idle_share for loss in of)
        return low, middle, high


def find_looks(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Begin and end of every burst of the watch's work; the first (imports and all) and a cut one are left out."""
    bursts: list[tuple[float, float]] = []
    for before, after in pairwise(samples):
        if after.cpu_s - before.cpu_s < WORK * (after.at - before.at):
            continue
        if bursts and before.at - bursts[-1][1] < QUIET_S:
            bursts[-1] = (bursts[-1][0], after.at)
        else:
            bursts.append((before.at, after.at))
    return bursts[1:-1]


def compare(samples: Sequence[Sample], window_s: float) -> Outcome:
    """The cost of looks that come every two windows. Raises ValueError where they are too few or take too long."""
    looks = find_looks(samples)
    longest = max((end - begin for begin, end in looks), default=0.0)
    if longest > window_s:
        raise ValueError(f"a look takes {longest:.1f} s, longer than a window of {window_s:g} s")
    losses = list(_losses(samples, [begin for begin, _ in looks], window_s, window_s))
    # Off the looks: the second half of the windows between them, against the windows on both sides of that half.
    half = window_s / 2
    nulls = [
        2 * n
        for n in _losses(samples, [begin + 1.5 * window_s - half / 2 for begin, _ in looks], half, half / 2)
    ]
    if len(losses) < 6 or len(nulls) < 6:
        raise ValueError(f"{len(losses)} looks are too few to say anything")
    spent = [_rise(samples, begin, begin + window_s, "cpu_s") for begin, _ in looks]
    between = [_rise(samples, begin + window_s, begin + 1.9 * window_s, "cpu_s") for begin, _ in looks]
    return Outcome(
        loss_s=interval_of(losses),
        null_s=interval_of(nulls),
        cpu_s=mean(spent),
        look_s=longest,
        idle_share=mean(between) / (0.9 * window_s),
    )


def _losses(
    samples: Sequence[Sample], begins: Sequence[float], window_s: float, beside_s: float
) -> Iterator[float]:
    """Seconds of steps that are missing in the window at each of ``begins``, judged by those before and after it."""
    first, last = samples[0].at, samples[-1].at
    for begin in begins:
        end = begin + window_s
        if begin - beside_s < first or end + beside_s > last:
            continue
        around = _rise(samples, begin - beside_s, begin, "steps") + _rise(
            samples, end, end + beside_s, "steps"
        )
        made = _rise(samples, begin, end, "steps")
        if around > 0:
            yield window_s - made / (around / (2 * beside_s))


def _rise(samples: Sequence[Sample], begin: float, end: float, what: str) -> float:
    return _at(samples, end, what) - _at(samples, begin, what)


def _at(samples: Sequence[Sample], moment: float, what: str) -> float:
    """A counter at any moment, between two samples in proportion."""
    place = min(max(bisect_left(samples, moment, key=lambda sample: sample.at), 1), len(samples) - 1)
    before, after = samples[place - 1], samples[place]
    share = (moment - before.at) / (after.at - before.at)
    low, high = float(getattr(before, what)), float(getattr(after, what))
    return low + min(max(share, 0.0), 1.0) * (high - low)


def interval_of(values: Sequence[float]) -> Interval:
    """By order alone: how many of ``count`` values lie below the true median is a matter of coins."""
    ordered, count = sorted(values), len(values)
    cut, tail = 0, 0.0
    while cut < (count - 1) // 2:
        tail += comb(count, cut) / 2**count
        if 2 * tail > 1 - SURE:
            break
        cut += 1
    low = max(cut - 1, 0)
    return Interval(ordered[low], median(ordered), ordered[count - 1 - low], mean(ordered), count)
