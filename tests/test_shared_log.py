"""A count that advances in a log that all ranks write: whose is it?"""

from __future__ import annotations

import pytest

from hangdoctor.model import Frame, OpenFile
from hangdoctor.report import Cause, Kind
from tests.captures import SLEEP, Looks, frames, in_collective, rank
from tests.test_verdict import LOADING, ODD, WORLD, answer, culprit_ranks, diagnosis, job

BAR = [(f"shards: {part}% | {part}/100",) for part in (14, 43, 86)]
OTHER = 2


def stuck() -> Looks:
    return rank(ODD, WORLD, [LOADING], syscall=SLEEP)


def with_one_that_loads(odd: Looks) -> list[Looks]:
    """Another rank is seen loading, and then in the collective with the rest."""
    lines: list[tuple[Frame, ...]] = [
        frames(f"load_shard /job/data.py:{n}", "main /job/train.py:44") for n in (19, 31)
    ]
    loads = rank(OTHER, WORLD, [*lines, in_collective()], cpu_s=1.0, switches=90)
    return [loads if n == OTHER else looks for n, looks in enumerate(job(odd))]


def by(pid: int) -> list[tuple[str, ...]]:
    return [(f"(Worker_TP{ODD} pid={pid}) {line}",) for (line,) in BAR]


def test_the_bar_of_a_rank_that_moves_excuses_nobody_who_stands_still() -> None:
    report = diagnosis(with_one_that_loads(stuck()), logs=BAR)
    assert report.verdict.kind in (Kind.HUNG, Kind.UNKNOWN)
    assert culprit_ranks(report) == {ODD}


def test_twin_where_nobody_else_moves_it_is_the_suspects() -> None:
    report = diagnosis(job(stuck()), logs=BAR)
    assert answer(report) == (Kind.SLOW, Cause.LAGGARD, {ODD})
    assert "advances a count in its log" in report.verdict.summary


def test_twin_a_suspect_that_moves_may_have_written_it() -> None:
    lines = [frames(f"load_shard /job/data.py:{n}", "main /job/train.py:44") for n in (19, 31, 19)]
    report = diagnosis(with_one_that_loads(rank(ODD, WORLD, lines, cpu_s=0.2, switches=9)), logs=BAR)
    assert report.verdict.kind is Kind.SLOW


@pytest.mark.parametrize(("pid", "kind"), [(4000 + ODD, Kind.SLOW), (4000 + OTHER, Kind.HUNG)])
def test_a_line_that_names_its_process_is_that_ones(pid: int, kind: Kind) -> None:
    report = diagnosis(job(stuck()), logs=by(pid))
    assert (report.verdict.kind, culprit_ranks(report)) == (kind, {ODD})


def test_what_the_suspect_itself_reads_says_more_than_a_count() -> None:
    files = [
        (
            OpenFile(
                9, "/models/m/model-00002-of-00004.safetensors", "file", position=p << 20, size_bytes=1 << 30
            ),
        )
        for p in (100, 200, 433)
    ]
    odd = rank(ODD, WORLD, [LOADING], syscall=SLEEP, files=files)
    report = diagnosis(job(odd), logs=BAR)
    progress = report.verdict.progress
    assert report.verdict.kind is Kind.SLOW and progress is not None
    assert progress.percent is not None and progress.eta_s is not None
