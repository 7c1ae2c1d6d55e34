"""Counters over the looks as lines with coordinates: the culprits apart, the others one by one or as a band."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hangdoctor.render._digest import Names
from hangdoctor.render._wording import amount, clean, fold_labels
from hangdoctor.report import ProcessRow, ProgressClass, Report, Series

WIDTH, HEIGHT = 370, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 10, 24
_MOST_LINES = 8
"""More lines than that are a tangle: beyond, the others are a band from the lowest to the highest."""
_MOST_POINTS = 240
_MOST_CULPRITS = 4
_Values = tuple[float | None, ...]
_KINDS = (ProgressClass.PROOF, ProgressClass.WEAK, ProgressClass.ACTIVITY, ProgressClass.NONE)


@dataclass(frozen=True, slots=True)
class Line:
    """A polyline; ``dots`` are its looks, where there are few enough to be told apart."""

    points: str
    dots: tuple[tuple[int, int], ...]
    is_culprit: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """A label on an axis."""

    x: int
    y: int
    text: str


@dataclass(frozen=True, slots=True)
class Caption:
    """What a line shows, in words."""

    who: str
    text: str
    is_culprit: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """One counter of all processes."""

    title: str
    kind: str
    words: str
    """The whole chart in a sentence, for those who cannot see it."""
    lines: tuple[Line, ...]
    band: str | None
    """Outline of what lies between the lowest and the highest of the others."""
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    captions: tuple[Caption, ...]
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    floor: int = HEIGHT - _BOTTOM
    width: int = WIDTH
    height: int = HEIGHT


@dataclass(frozen=True, slots=True)
class _Track:
    who: str
    values: _Values
    is_culprit: bool


@dataclass(frozen=True, slots=True)
class _Scale:
    times: tuple[float, ...]
    low: float
    high: float
    marks: tuple[float, ...]
    """Values that are written on the axis."""

    def x(self, index: int) -> int:
        span = self.times[-1] - self.times[0]
        share = (self.times[index] - self.times[0]) / span if span else 0.0
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT))

    def y(self, value: float) -> int:
        share = (value - self.low) / (self.high - self.low)
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM))


def charts(report: Report, names: Names) -> tuple[Chart, ...]:
    """One chart a counter that was read at two looks or more; what can prove progress comes first."""
    found: dict[str, list[tuple[ProcessRow, Series]]] = defaultdict(list)
    for row in report.processes:
        for series in row.series:
            if sum(value is not None for value in series.values) >= 2:
                found[series.name].append((row, series))
    ordered = sorted(found.values(), key=lambda pairs: _KINDS.index(pairs[0][1].kind))
    made = (_chart(report, names, pairs) for pairs in ordered)
    return tuple(chart for chart in made if chart is not None)


def _chart(report: Report, names: Names, pairs: Sequence[tuple[ProcessRow, Series]]) -> Chart | None:
    first = pairs[0][1]
    tracks = _tracks(report, names, pairs)
    if not tracks:
        return None
    guilty = [track for track in tracks if track.is_culprit][:_MOST_CULPRITS]
    others = [track for track in tracks if not track.is_culprit]
    looks = max(len(track.values) for track in tracks)
    say = _sayer(first.unit)
    scale = _Scale(_times(report, looks), *_range(first.unit, (track.values for track in tracks)))
    is_band = len(others) > _MOST_LINES
    drawn = [*([] if is_band else others), *guilty]
    captions = tuple(_captions(guilty, others, say, is_band))
    return Chart(
        title=first.name,
        kind=first.kind.value,
        words=f"{first.name}: " + "; ".join(f"{caption.who} {caption.text}" for caption in captions),
        lines=tuple(_line(track, scale) for track in drawn),
        band=_band([track.values for track in others], scale) if is_band else None,
        across=tuple(_across(scale)),
        up=tuple(Tick(_LEFT - 8, scale.y(at) + 4, say(at)) for at in scale.marks),
        captions=captions,
    )


def _tracks(report: Report, names: Names, pairs: Sequence[tuple[ProcessRow, Series]]) -> list[_Track]:
    """Ranks and culprits always; of the others (launchers, compilers) those that rise like one of these."""
    culprits = {(culprit.host, culprit.pid) for culprit in report.verdict.culprits}
    has_ranks = any(row.rank is not None for row in report.processes)
    steepest = max(_rise(series.values) for _, series in pairs)
    tracks = []
    for row, series in pairs:
        is_culprit = (row.host, row.pid) in culprits
        is_worth = row.rank is not None or is_culprit or not has_ranks
        if is_worth or (steepest > 0 and _rise(series.values) >= 0.25 * steepest):
            who = names.short(row.pid, row.host, row.rank, row.role)
            tracks.append(_Track(who, series.values, is_culprit))
    return tracks


def _rise(values: _Values) -> float:
    known = [value for value in values if value is not None]
    return known[-1] - known[0]


def _times(report: Report, looks: int) -> tuple[float, ...]:
    """Seconds since the first look; the numbers of the looks where there was no clock."""
    known = [time for time in report.timings.snapshots if time is not None]
    if len(known) != looks or any(b <= a for a, b in pairwise(known)):
        return tuple(float(index) for index in range(looks))
    return tuple(time - known[0] for time in known)


def _range(unit: str, every: Iterable[_Values]) -> tuple[float, float, tuple[float, ...]]:
    """Lowest and highest value of the axis, and what is written there."""
    if unit == "%":
        return 0.0, 100.0, (0.0, 100.0)
    known = [value for values in every for value in values if value is not None]
    low, high = min(known), max(known)
    # A counter of collectives begins anywhere, and a rank behind by two of a million must be seen to be.
    if unit == "collectives":
        room = 0.15 * (high - low) or 1.0
        return low - room, high + room / 2, (low, high) if high > low else (low,)
    low = min(0.0, low)
    return (low, high, (low, high)) if high > low else (low, low + 1.0, (low,))


def _sayer(unit: str) -> Callable[[float], str]:
    if unit == "%":
        return lambda value: f"{value:.0f} %"
    if unit == "bytes":
        return amount
    if unit == "collectives":
        return lambda value: f"{value:,.0f}"
    unit = clean(unit)[:4]  # there is no room for more beside the axis
    return lambda value: f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"


def _shown(looks: int) -> Sequence[int]:
    every = -(-looks // _MOST_POINTS)
    return [*range(0, looks - 1, every), looks - 1]


def _points(values: _Values, scale: _Scale) -> list[tuple[int, int]]:
    return [
        (scale.x(index), scale.y(value))
        for index in _shown(len(values))
        if (value := values[index]) is not None
    ]


def _line(track: _Track, scale: _Scale) -> Line:
    points = _points(track.values, scale)
    return Line(_text(points), tuple(points) if len(points) <= 24 else (), track.is_culprit)


def _band(every: Sequence[_Values], scale: _Scale) -> str:
    lowest, highest = (
        tuple(_of_look(every, index, pick) for index in range(max(map(len, every)))) for pick in (min, max)
    )
    return _text([*_points(highest, scale), *reversed(_points(lowest, scale))])


def _of_look(every: Sequence[_Values], index: int, pick: Callable[[Iterable[float]], float]) -> float | None:
    known = [v for values in every if index < len(values) and (v := values[index]) is not None]
    return pick(known) if known else None


def _text(points: Iterable[tuple[int, int]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)


def _across(scale: _Scale) -> Iterable[Tick]:
    looks = len(scale.times)
    chosen = range(looks) if looks <= 3 else (0, looks - 1)
    taken = -WIDTH
    for index in chosen:
        x = scale.x(index)
        if x - taken >= 44:  # two looks close to each other need one label
            taken = x
            yield Tick(min(x, WIDTH - 27), HEIGHT - 8, f"+{scale.times[index]:.3g} s")


def _captions(
    guilty: Sequence[_Track], others: Sequence[_Track], say: Callable[[float], str], is_band: bool
) -> Iterable[Caption]:
    for track in guilty:
        yield Caption(track.who, _course(track.values, say), True)
    if is_band:
        yield Caption(fold_labels((track.who for track in others), limit=48), _spread(others, say), False)
        return
    alike: dict[str, list[str]] = defaultdict(list)
    for track in others:
        alike[_course(track.values, say)].append(track.who)
    for course, who in alike.items():
        yield Caption(fold_labels(who, limit=48), course, False)


def _spread(tracks: Sequence[_Track], say: Callable[[float], str]) -> str:
    known = ([value for value in track.values if value is not None] for track in tracks)
    ends = [values[-1] for values in known]
    between = " to ".join(dict.fromkeys((say(min(ends)), say(max(ends)))))
    rises = sum(_rise(track.values) > 0 for track in tracks)
    rose = {0: "none rose", len(tracks): "all rose"}.get(rises, f"{rises:,} of {len(tracks):,} rose")
    return f"{between} at the end, {rose}"


def _course(values: _Values, say: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    first, last = say(known[0]), say(known[-1])
    return f"{first} all the time" if len(set(known)) == 1 else f"{first} → {last}"
