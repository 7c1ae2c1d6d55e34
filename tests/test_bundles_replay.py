"""Recorded servers, replayed: the answer to each must be what an expert would say from the same looks."""

from __future__ import annotations

import gzip
import re
from functools import cache

import pytest

from hangdoctor import bundle
from hangdoctor.analysis import diagnose
from hangdoctor.knowledge import Knowledge, load_knowledge
from hangdoctor.model import Capture
from hangdoctor.report import Kind, Report
from tests import expectations
from tests.expectations import BUNDLES, RECORDED


@cache
def knowledge() -> Knowledge:
    return load_knowledge()


@cache
def capture(name: str) -> Capture:
    return bundle.read(BUNDLES / name / "capture.hang")


@cache
def report(name: str) -> Report:
    return diagnose(capture(name), knowledge())


def test_all_stages_are_there():
    assert len(RECORDED) >= 65
    assert {path.name for path in BUNDLES.iterdir() if path.is_dir()} - set(RECORDED) == {"format-1.0"}


@pytest.mark.parametrize("name", RECORDED)
def test_the_answer_is_what_an_expert_would_say(name):
    expected = expectations.load(name)
    complaints = expectations.compare(report(name), expected).complaints
    assert not complaints, f"{'; '.join(complaints)}. Truth: {expected.truth}. {expected.note}"


def test_nothing_that_moves_or_works_is_called_hung():
    fine = [name for name in RECORDED if Kind.HUNG not in expectations.load(name).kinds]
    assert len(fine) > 20
    assert [name for name in fine if report(name).verdict.kind is Kind.HUNG] == []


def test_nothing_that_is_stuck_is_called_fine():
    stuck = [name for name in RECORDED if Kind.HUNG in expectations.load(name).kinds]
    assert len(stuck) > 20
    fine = (Kind.READY, Kind.SLOW)
    assert [name for name in stuck if report(name).verdict.kind in fine] == []


@pytest.mark.parametrize("name", RECORDED)
def test_a_bundle_is_intact_small_and_does_not_tell_the_answer(name):
    path = BUNDLES / name / "capture.hang"
    assert path.stat().st_size <= 300_000
    read = capture(name)
    assert [gap for gap in read.gaps if gap.source == "bundle"] == []
    assert 2 <= len(read.snapshots) <= 3
    content = gzip.decompress(path.read_bytes()).decode("ascii")
    telling = re.findall(
        r"\b(?:f\d[a-i]?|h\d+|sg\d)-[a-z]+|truth|HD_FAULT|sigstop|gpu_spin|slow_dequant|healthy_\w+", content
    )
    assert telling == []


@pytest.mark.parametrize("name", RECORDED)
def test_the_looks_are_rich_enough_to_mean_something(name):
    for snapshot in capture(name).snapshots:
        assert snapshot.taken_at is not None
        assert snapshot.processes
        for process in snapshot.processes:
            assert process.start_ticks
            if process.state == "Z":
                continue  # killed, and not reaped yet: nothing of it is left to be read
            assert process.threads, process.pid
            assert process.threads[0].tid == process.pid
            assert process.threads[0].state
    times = [snapshot.taken_at for snapshot in capture(name).snapshots]
    assert times == sorted(times)


def test_the_whole_collection_stays_small():
    assert sum(path.stat().st_size for path in BUNDLES.rglob("*")) < 12_000_000
