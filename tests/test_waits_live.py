"""Processes that really wait for each other: the edge names who must act, and nobody else; and the verdict on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hangdoctor.analysis import diagnose
from hangdoctor.collect import Plan, take_capture
from hangdoctor.discover import Request, find_tree
from hangdoctor.model import Capture
from hangdoctor.report import Cause, Kind, Report, Strength, Wait
from tests.b_support import build, eventually, words_of
from tests.conftest import stuck
from tests.knowledge_support import built_in

ONE_LOOK = Plan(snapshots=1, use_gpu=False, use_spin=False)
TWO_LOOKS = Plan(snapshots=2, interval_s=0.7, use_gpu=False, use_spin=False)


@dataclass(frozen=True)
class Scene:
    """Running processes by name."""

    pid: int
    pids: dict[str, int]

    def capture(self, plan: Plan = ONE_LOOK) -> Capture:
        return take_capture(find_tree(Request(self.pid), built_in()), plan)

    def report(self, plan: Plan = ONE_LOOK) -> Report:
        return diagnose(self.capture(plan), built_in())

    def name(self, pid: int | None) -> str | None:
        return next((name for name, own in self.pids.items() if own == pid), None)

    def edges(self, report: Report) -> dict[tuple[str, str], Wait]:
        """Between the named processes; waits of the launcher for its children are left out."""
        named = {}
        for wait in report.waits:
            waiter = self.name(wait.waiter.pid)
            holder = self.name(wait.holder.pid) if wait.holder is not None else None
            if waiter is not None and holder is not None and waiter != holder:
                named[waiter, holder] = wait
        return named

    def wait_for(self, *wanted: tuple[str, str]) -> dict[tuple[str, str], Wait]:
        """The edges, as soon as all that are ``wanted`` are there: a process says its name before it blocks."""

        def look() -> dict[tuple[str, str], Wait] | None:
            found = self.edges(self.report())
            return found if set(wanted) <= set(found) else None

        return eventually(look)


@contextmanager
def scene(name: str, folder: Path, count: int = 3) -> Iterator[Scene]:
    with stuck("b_peers.py", name, folder, lines=count) as program:
        yield Scene(program.pid, {line.split()[0]: int(line.split()[1]) for line in program.said})


# --- between processes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pair", "strength"),
    [
        ("pipe_chain", ("a", "b"), Strength.LIKELY),
        ("unix_chain", ("a", "b"), Strength.LIKELY),
        ("tcp_chain", ("a", "b"), Strength.LIKELY),
        ("tcp_deaf", ("a", "b"), Strength.LIKELY),
        ("mp_pipe", ("a", "b"), Strength.LIKELY),
        ("mp_lock", ("waiter", "holder"), Strength.CERTAIN),
        ("mp_queue", ("waiter", "holder"), Strength.CERTAIN),
        ("flock", ("waiter", "holder"), Strength.CERTAIN),
        ("posix_lock", ("waiter", "holder"), Strength.CERTAIN),
    ],
)
def test_the_only_one_who_can_act_is_named(
    name: str, pair: tuple[str, str], strength: Strength, tmp_path: Path
) -> None:
    with scene(name, tmp_path) as seen:
        edges = seen.wait_for(pair)
    assert edges[pair].strength is strength
    assert {waiter for waiter, _ in edges} == {pair[0]} or name == "mp_queue"
    assert "bystander" not in {holder for _, holder in edges} or name == "mp_queue"


@pytest.mark.parametrize("name", ["zmq_ipc", "zmq_tcp"])
def test_behind_zeromq_stands_the_process_that_has_the_request(name: str, tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    with scene(name, tmp_path) as seen:
        edges = seen.wait_for(("waiter", "holder"))
    assert set(edges) == {("waiter", "holder")}
    assert edges["waiter", "holder"].strength is Strength.POSSIBLE
    assert "ZeroMQ" in edges["waiter", "holder"].reason


def test_two_that_listen_to_each_other_through_zeromq_accuse_nobody(tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    with scene("zmq_both_listen", tmp_path) as seen:
        waiter = seen.pids["waiter"]

        def both_wait() -> bool:
            calls = {
                process.pid: process.threads[0].syscall for process in seen.capture().snapshots[0].processes
            }
            return all(
                (call := calls.get(seen.pids[name])) is not None and call.name in ("poll", "ppoll")
                for name in ("waiter", "holder")
            )

        assert waiter and eventually(both_wait)
        assert seen.edges(seen.report()) == {}


def test_who_empties_a_full_queue_is_not_recorded_and_not_guessed(tmp_path: Path) -> None:
    with scene("mp_queue_full", tmp_path, count=2) as seen:

        def waits() -> str | None:
            threads = {p.pid: p.threads[0] for p in seen.capture().snapshots[0].processes}
            lock = threads[seen.pids["waiter"]].lock
            return None if lock is None else f"{lock.kind} {lock.owner_pid}"

        assert eventually(waits) == "mp.Semaphore None"
        assert seen.edges(seen.report()) == {}


def test_a_lock_file_that_is_polled_for_has_the_one_holder_there_is(tmp_path: Path) -> None:
    pytest.importorskip("filelock")
    with scene("filelock", tmp_path) as seen:
        edges = seen.wait_for(("waiter", "holder"))
    assert edges["waiter", "holder"].strength is Strength.LIKELY
    assert edges["waiter", "holder"].object == str(tmp_path / "build.lock")


# --- verdicts ---------------------------------------------------------------------------------------


def test_two_processes_that_read_each_others_pipe_are_both_to_blame(tmp_path: Path) -> None:
    with scene("pipe_ring", tmp_path) as seen:
        seen.wait_for(("a", "b"), ("b", "a"))
        verdict = seen.report(TWO_LOOKS).verdict
    assert (verdict.kind, verdict.cause) == (Kind.HUNG, Cause.LOCK_CYCLE), verdict.summary
    assert {seen.name(culprit.pid) for culprit in verdict.culprits} == {"a", "b"}


def test_of_a_chain_only_the_end_is_to_blame(tmp_path: Path) -> None:
    """Twin: the same pipes, but the second process sleeps."""
    with scene("pipe_chain", tmp_path) as seen:
        seen.wait_for(("a", "b"))
        report = seen.report(TWO_LOOKS)
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.LAGGARD), report.verdict.summary
    assert {seen.name(culprit.pid) for culprit in report.verdict.culprits} == {"b"}
    chain = next(entry.text for entry in report.evidence if entry.source == "wait-for graph")
    assert "in read on pipe:[" in chain and chain.index("in read") < chain.index("sleeps in stay")


def test_a_ring_of_threads_is_named_and_its_twin_is_not(tmp_path: Path) -> None:
    with scene("threads_in_a_ring", tmp_path, count=1) as seen:
        verdict = seen.report(TWO_LOOKS).verdict
    assert (verdict.kind, verdict.cause) == (Kind.HUNG, Cause.LOCK_CYCLE), verdict.summary
    assert {culprit.thread for culprit in verdict.culprits} == {"worker-0", "worker-1"}
    with scene("threads_in_order", tmp_path, count=1) as seen:
        verdict = seen.report(TWO_LOOKS).verdict
    assert verdict.cause is not Cause.LOCK_CYCLE, verdict.summary


@pytest.mark.parametrize("program", [("acquire_ring",), ("fork_lock",)])
def test_a_lock_that_nobody_is_left_to_release_is_proven(program: tuple[str, ...]) -> None:
    """No holder is known, and none is needed: the process has no thread that will run again."""
    with stuck("b_locks.py", *program) as running:
        pid = int(running.said[0].split()[0])
        target = pid if program[0] == "fork_lock" else running.pid
        tree = find_tree(Request(target), built_in())
        verdict = diagnose(take_capture(tree, TWO_LOOKS), built_in()).verdict
    assert (verdict.kind, verdict.cause) == (Kind.HUNG, Cause.LOCK_HELD), verdict.summary
    assert verdict.confidence.value == "certain", verdict.summary
    assert {culprit.pid for culprit in verdict.culprits} == {pid}


def test_a_fork_outside_of_the_lock_is_no_hang() -> None:
    """Twin: the child takes the lock, leaves it and waits for an event."""
    with stuck("b_locks.py", "fork_lock", "free") as running:
        pid = int(running.said[0].split()[0])
        tree = find_tree(Request(pid), built_in())
        verdict = diagnose(take_capture(tree, TWO_LOOKS), built_in()).verdict
    assert verdict.cause is not Cause.LOCK_HELD, verdict.summary
    assert not (verdict.kind is Kind.HUNG and verdict.confidence.value == "certain")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("b_native.cpp", tmp_path_factory.mktemp("native") / "libnative.so", "-shared", "-fPIC")


@pytest.mark.parametrize(
    ("name", "threads"), [("gil", {"gil_holder", "mutex_holder"}), ("standard3", {"t0", "t1", "t2"})]
)
def test_rings_that_python_knows_nothing_of(name: str, threads: set[str], library: Path) -> None:
    """The GIL against a C++ mutex, and three std::mutex: certain, because every owner is recorded."""
    with stuck("b_native.py", library, name) as running:
        pid, *_ = running.said[0].split()
        tids = {int(tid): thread for thread, tid in words_of(running.said[0]).items()}
        verdict = diagnose(
            take_capture(find_tree(Request(int(pid)), built_in()), TWO_LOOKS), built_in()
        ).verdict
    assert (verdict.kind, verdict.cause) == (Kind.HUNG, Cause.LOCK_CYCLE), verdict.summary
    assert verdict.confidence.value == "certain"
    assert {tids.get(culprit.tid or 0) for culprit in verdict.culprits} == threads


def test_mutexes_in_a_queue_are_no_ring(library: Path) -> None:
    """Twin: the same mutexes in one order; the first thread sleeps with both."""
    with stuck("b_native.py", library, "ordered3") as running:
        pid, *_ = running.said[0].split()
        verdict = diagnose(
            take_capture(find_tree(Request(int(pid)), built_in()), TWO_LOOKS), built_in()
        ).verdict
    assert verdict.cause is not Cause.LOCK_CYCLE, verdict.summary
