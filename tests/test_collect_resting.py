"""Stacks are read once of a process that does not run, and again of one that did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from hangdoctor.collect import dumps, resting, stack_sources
from hangdoctor.collect.readers import Answers, Readers
from hangdoctor.collect.schedule import RollingCapture
from hangdoctor.collect.stacks import Dump
from hangdoctor.model import Process
from tests.conftest import stuck
from tests.test_collect_capture import ONE_LOOK, tree_of


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[set[int]]]:
    """The pids whose stacks were read, look by look."""
    looks: list[set[int]] = []
    ask_memory = stack_sources.ask_memory

    def recording(
        readers: Readers, processes: Iterable[Process], *, total_s: float
    ) -> Answers[stack_sources.Asked, Dump | None]:
        asked = list(processes)
        looks.append({process.pid for process in asked})
        return ask_memory(readers, asked, total_s=total_s)

    monkeypatch.setattr(stack_sources, "ask_memory", recording)
    yield looks


def functions(process: Process) -> list[str]:
    """What the main thread is in, innermost first."""
    stack = process.threads[0].stack
    return [frame.function for frame in stack.frames] if stack else []


def two_looks(target_pid: int) -> tuple[Process, Process]:
    with closing(RollingCapture(tree_of(target_pid), ONE_LOOK, keep=2)) as rolling:
        rolling.look(ONE_LOOK)
        first, second = rolling.look(ONE_LOOK).snapshots
    return first.processes[0], second.processes[0]


def test_a_process_that_did_not_run_keeps_its_stacks(read: list[set[int]]) -> None:
    with stuck("c_threads.py", 3, 2) as target:
        before, after = two_looks(target.pid)
        assert read == [{target.pid}, set()]
    assert [thread.stack for thread in after.threads] == [thread.stack for thread in before.threads]
    assert [thread.name for thread in after.threads] == [thread.name for thread in before.threads]
    assert all(thread.stack is not None for thread in after.threads)


def test_twin_a_process_that_ran_between_the_looks_is_read_again(read: list[set[int]]) -> None:
    with (
        stuck("c_steps.py") as target,
        closing(RollingCapture(tree_of(target.pid), ONE_LOOK, keep=2)) as rolling,
    ):
        rolling.look(ONE_LOOK)
        target.release(1)
        assert target.hear() == ("moved on",)
        before, after = (look.processes[0] for look in rolling.look(ONE_LOOK).snapshots)
        assert read == [{target.pid}, {target.pid}]
    assert "first" in functions(before) and "second" in functions(after)


def test_twin_a_thread_that_runs_while_the_stacks_are_read_makes_them_old(
    read: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves on behind the reader's back: what it ran is known only at the next look, and counts then."""
    with stuck("c_steps.py") as target:
        dump_stacks = dumps.dump_stacks

        def and_then_move(*asked: object, **options: object) -> dumps.StackRun:
            found = dump_stacks(*asked, **options)  # type: ignore[arg-type]
            if len(read) == 1:
                target.release(1)
                assert target.hear() == ("moved on",)
            return found

        monkeypatch.setattr(dumps, "dump_stacks", and_then_move)
        _, after = two_looks(target.pid)
    assert "second" in functions(after)


def test_twin_many_threads_are_not_asked(read: list[set[int]]) -> None:
    with stuck("c_threads.py", resting.MOST_THREADS, 2) as target:
        two_looks(target.pid)
        assert read == [{target.pid}, {target.pid}]


def test_twin_a_kernel_without_these_clocks_says_nothing(
    read: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting, "read_bytes", lambda path: b"0 0 0\n")
    with stuck("c_hold.py") as target:
        two_looks(target.pid)
        assert read == [{target.pid}, {target.pid}]


def test_twin_a_torn_stack_is_read_again() -> None:
    with stuck("c_hold.py") as target:
        process, _ = two_looks(target.pid)
    thread = process.threads[0]
    assert resting.has_good_stacks(process) and thread.stack is not None
    torn = replace(thread, stack=replace(thread.stack, is_torn=True))
    assert not resting.has_good_stacks(replace(process, threads=(torn,)))
