"""Recorded servers with some kind of evidence taken away: the answer may become "unknown", never the opposite.

A capture without privileges, a foreign dump or a wedged driver lacks exactly these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from hangdoctor import bundle
from hangdoctor.analysis import diagnose
from hangdoctor.knowledge import Knowledge, load_knowledge
from hangdoctor.model import Capture, Process, Snapshot, Thread
from hangdoctor.report import Kind
from tests import expectations
from tests.expectations import BUNDLES, RECORDED


@cache
def knowledge() -> Knowledge:
    return load_knowledge()


@cache
def capture(name: str) -> Capture:
    return bundle.read(BUNDLES / name / "capture.hang")


def each_snapshot(change: Callable[[Snapshot], Snapshot]) -> Callable[[Capture], Capture]:
    return lambda old: replace(old, snapshots=tuple(map(change, old.snapshots)))


def each_process(change: Callable[[Process], Process]) -> Callable[[Capture], Capture]:
    return each_snapshot(lambda old: replace(old, processes=tuple(map(change, old.processes))))


def each_thread(change: Callable[[Thread], Thread]) -> Callable[[Capture], Capture]:
    return each_process(lambda old: replace(old, threads=tuple(map(change, old.threads))))


def without_counters(old: Capture) -> Capture:
    of_threads = each_thread(
        lambda thread: replace(
            thread,
            user_ticks=None,
            system_ticks=None,
            run_ns=None,
            voluntary_switches=None,
            involuntary_switches=None,
            minor_faults=None,
            major_faults=None,
        )
    )
    of_processes = each_process(
        lambda process: replace(
            process,
            user_ticks=None,
            system_ticks=None,
            io=None,
            rss_bytes=None,
            minor_faults=None,
            major_faults=None,
        )
    )
    return of_processes(of_threads(old))


LESS = {
    "logs": each_snapshot(lambda old: replace(old, logs=())),
    "gpus": each_snapshot(lambda old: replace(old, gpus=())),
    "lock files": each_snapshot(lambda old: replace(old, file_locks=())),
    "descriptors": each_process(lambda old: replace(old, files=(), sockets=(), mapped=())),
    "environment": each_process(lambda old: replace(old, environ=None, environ_source=None)),
    "the kernel's view": each_thread(lambda old: replace(old, wchan=None, syscall=None, kernel_stack=())),
    "the GIL": each_thread(lambda old: replace(old, owns_gil=None)),
    "counters": without_counters,
    "helper threads": each_process(
        lambda old: replace(old, threads=tuple(t for t in old.threads if t.tid == old.pid))
    ),
}
OPPOSITES = {
    Kind.HUNG: (Kind.READY, Kind.SLOW),
    Kind.SLOW: (Kind.HUNG, Kind.READY),
    Kind.READY: (Kind.HUNG, Kind.SLOW),
    Kind.UNKNOWN: (),
}


@pytest.mark.parametrize("what", LESS)
@pytest.mark.parametrize("name", RECORDED)
def test_without(name, what):
    expected = expectations.load(name)
    kind = diagnose(LESS[what](capture(name)), knowledge()).verdict.kind
    if kind not in expected.kinds:
        assert kind not in OPPOSITES[expected.kinds[0]], expected.truth


@pytest.mark.parametrize("look", [0, -1])
@pytest.mark.parametrize("name", RECORDED)
def test_a_single_look_is_not_enough_to_call_what_moves_hung(name, look):
    expected = expectations.load(name)
    whole = capture(name)
    alone = replace(whole, snapshots=(whole.snapshots[look],))
    kind = diagnose(alone, knowledge()).verdict.kind
    if Kind.HUNG not in expected.kinds:
        assert kind is not Kind.HUNG, expected.truth


@pytest.mark.parametrize("name", ["h7-idle", "h9-idle-after-serving", "h10-two-nodes-idle"])
def test_an_idle_server_in_which_nothing_at_all_moves_is_not_hung(name):
    """vLLM's loops wait without time-outs or with long ones: a quiet window can be truly silent."""
    first = capture(name).snapshots[0]
    later = replace(first, taken_at=first.taken_at + 4.0)
    later = replace(later, processes=tuple(replace(p, taken_at=p.taken_at + 4.0) for p in first.processes))
    frozen = replace(capture(name), snapshots=(first, later))
    assert diagnose(frozen, knowledge()).verdict.kind is Kind.READY
