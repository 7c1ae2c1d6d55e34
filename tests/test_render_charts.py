"""Progress charts: the culprit apart, a few others one by one, many as a band, and all of it in words, too."""

from __future__ import annotations

from dataclasses import replace

from hangdoctor.render._charts import HEIGHT, WIDTH, Chart, charts
from hangdoctor.render._digest import Names
from hangdoctor.report import ProgressClass, Report, Series
from tests.render_support import compiling, empty, laggard, loading, many_ranks, ready


def made(report: Report) -> dict[str, Chart]:
    return {chart.title: chart for chart in charts(report, Names(report))}


def points(text: str) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for x, _, y in (pair.partition(",") for pair in text.split())]


def test_proof_comes_first_and_every_chart_says_what_it_is_worth() -> None:
    assert [(chart.title, chart.kind) for chart in charts(laggard(), Names(laggard()))] == [
        ("collectives issued", "proof"),
        ("resident memory", "weak"),
        ("CPU time", "activity"),
    ]
    assert charts(ready(), Names(ready())) == charts(empty(), Names(empty())) == ()


def test_a_few_ranks_are_a_line_each_and_the_culprit_is_drawn_last() -> None:
    chart = made(laggard())["CPU time"]
    assert [line.is_culprit for line in chart.lines] == [False] * 6 + [True]
    assert chart.band is None
    assert [(caption.who, caption.text, caption.is_culprit) for caption in chart.captions] == [
        ("TP3", "0 s → 0.01 s", True),
        ("TP0-2,4-6", "0 s → 10 s", False),
    ]
    assert chart.words == "CPU time: TP3 0 s → 0.01 s; TP0-2,4-6 0 s → 10 s"


def test_a_thousand_ranks_are_a_band_and_a_line() -> None:
    report = many_ranks()
    rows = tuple(
        replace(row, series=(Series("CPU time", ProgressClass.ACTIVITY, "s", (0.0, float(n % 7))),))
        for n, row in enumerate(report.processes)
    )
    chart = made(replace(report, processes=rows))["CPU time"]
    assert [line.is_culprit for line in chart.lines] == [True]
    assert chart.band is not None
    upper, lower = points(chart.band)[:2], points(chart.band)[2:]
    assert [y for _, y in upper] < [y for _, y in reversed(lower)]  # up is smaller
    assert chart.captions[1].who == "rank 0-612,614-1023"
    # Every seventh of the 1,023 stands still.
    assert chart.captions[1].text == "0 s to 6 s at the end, 876 of 1,023 rose"


def test_a_rank_behind_by_one_collective_is_seen_to_be() -> None:
    chart = made(laggard())["collectives issued"]
    heights = {line.is_culprit: points(line.points)[-1][1] for line in chart.lines}
    assert heights[True] - heights[False] > HEIGHT / 2
    assert [tick.text for tick in chart.up] == ["5,119", "5,120"]


def test_everything_stays_within_the_drawing() -> None:
    for report in (laggard(), loading(), compiling(), many_ranks()):
        for chart in charts(report, Names(report)):
            drawn = [point for line in chart.lines for point in points(line.points)]
            drawn += points(chart.band or "")
            assert drawn and all(0 <= x <= WIDTH and 0 <= y <= chart.floor for x, y in drawn)


def test_a_look_that_saw_nothing_leaves_a_hole_and_no_zero() -> None:
    chart = made(loading())["bytes read"]
    assert chart.band is not None
    (guilty,) = chart.lines
    assert len(points(guilty.points)) == 3
    report = replace(loading(), processes=loading().processes[4:6])
    lines = made(report)["bytes read"].lines
    assert [len(points(line.points)) for line in lines] == [2, 3]


def test_a_compiler_that_works_for_a_rank_is_drawn_with_the_ranks() -> None:
    whos = [caption.who for caption in made(compiling())["CPU time"].captions]
    assert "CUDA device compiler pid 5377" in whos
    # Twin: one that does nothing is not.
    idle = Series("CPU time", ProgressClass.ACTIVITY, "s", (0.0, 0.0, 0.0))
    rows = (*compiling().processes[:2], replace(compiling().processes[2], series=(idle,)))
    captions = made(replace(compiling(), processes=rows))["CPU time"].captions
    assert [caption.who for caption in captions] == ["TP1", "TP0"]


def test_looks_without_a_clock_are_spread_evenly() -> None:
    report = loading()
    report = replace(report, timings=replace(report.timings, snapshots=(None, None, None)))
    (line,) = made(report)["weights loaded"].lines
    (a, _), (b, _), (c, _) = points(line.points)
    assert abs((b - a) - (c - b)) <= 1


def test_a_long_watch_is_thinned_out() -> None:
    report = loading()
    values = tuple(float(n % 100) for n in range(5000))
    rows = tuple(
        replace(row, series=(Series("x", ProgressClass.WEAK, "s", values),)) for row in report.processes
    )
    (chart,) = made(replace(report, processes=rows)).values()
    assert all(len(points(line.points)) <= 250 and not line.dots for line in chart.lines)
