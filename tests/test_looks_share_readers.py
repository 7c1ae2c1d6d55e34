"""The processes that read for one look stay for the next: they are the same, and see what is so now."""

from __future__ import annotations

import gc
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoctor.collect import Interrupted, deadline, schedule, take_capture
from hangdoctor.collect.deadline import helper_pids, helpers_cpu_s
from hangdoctor.collect.mappings import LARGE_BYTES
from hangdoctor.collect.schedule import RollingCapture
from hangdoctor.model import Capture
from hangdoctor.watching.cost import Meter
from tests.conftest import stuck
from tests.test_collect_capture import ONE_LOOK, tree_of


def test_all_looks_are_read_by_the_same_and_nobody_stays_behind() -> None:
    with stuck("c_threads.py", 4, 2) as target:
        with closing(RollingCapture(tree_of(target.pid), ONE_LOOK, keep=2)) as rolling:
            looks = []
            for _ in range(3):
                rolling.look(ONE_LOOK)
                looks.append(helper_pids())
        assert looks[0] and looks[0] == looks[1] == looks[2]
        assert not helper_pids()


def test_a_capture_takes_them_along_and_leaves_nobody_behind() -> None:
    looks: list[frozenset[int]] = []

    def remember(capture: Capture) -> None:
        looks.append(helper_pids())

    with stuck("c_hold.py") as target:
        take_capture(
            tree_of(target.pid), replace(ONE_LOOK, snapshots=3, interval_s=0.01), on_snapshot=remember
        )
    assert looks[0] and looks[0] == looks[1]
    assert not looks[2], "after the last look nobody is needed"


def test_what_has_changed_is_seen(tmp_path: Path) -> None:
    """Each look begins anew, whatever its readers have kept of the last one."""
    large = tmp_path / "model.safetensors"
    with large.open("wb") as file:
        file.truncate(LARGE_BYTES)
    plan = replace(ONE_LOOK, is_env_allowed=lambda name: name == "NCCL_DEBUG")
    with (
        stuck("b_changes.py", large) as target,
        closing(RollingCapture(tree_of(target.pid), plan, keep=3)) as rolling,
    ):
        rolling.look(plan)
        target.release(1)
        assert target.hear() == ("after",)
        before, after = (look.processes[0] for look in rolling.look(plan).snapshots)
        again = rolling.look(plan).snapshots[-1].processes[0]
    assert not before.mapped and not before.environ and len(before.threads) == 1
    for process in (after, again):
        assert [(mapped.path, mapped.size_bytes) for mapped in process.mapped] == [(str(large), LARGE_BYTES)]
        assert process.environ == {"NCCL_DEBUG": "INFO"}
        assert str(large) in [opened.target for opened in process.files]
        main, later = process.threads
        assert main.stack != before.threads[0].stack, "it has come to another line"
        assert (later.name, later.stack is not None, later.lock is not None) == ("later", True, True)


def test_a_capture_that_is_forgotten_takes_its_readers_along() -> None:
    with stuck("c_hold.py") as target:
        rolling = RollingCapture(tree_of(target.pid), ONE_LOOK, keep=1)
        rolling.look(ONE_LOOK)
        assert helper_pids()
        del rolling
        gc.collect()
        assert not helper_pids()


def test_each_look_keeps_the_variables_that_its_own_plan_allows() -> None:
    everything = replace(ONE_LOOK, is_env_allowed=lambda name: True)
    nothing = replace(ONE_LOOK, is_env_allowed=lambda name: False)
    with (
        stuck("c_hold.py") as target,
        closing(RollingCapture(tree_of(target.pid), everything, keep=3)) as rolling,
    ):
        for plan in (everything, nothing, everything):
            capture = rolling.look(plan)
    assert [bool(look.processes[0].environ) for look in capture.snapshots] == [True, False, True]


def test_an_interruption_while_readers_are_ended_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    end = schedule._Run.end

    def end_and_interrupt(run: schedule._Run) -> None:
        end(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(schedule._Run, "end", end_and_interrupt)
    with stuck("c_hold.py") as target, pytest.raises(Interrupted) as caught:
        take_capture(tree_of(target.pid), replace(ONE_LOOK, snapshots=2, interval_s=0.01))
    assert len(caught.value.capture.snapshots) == 2


def test_what_readers_use_is_known_while_they_live() -> None:
    with (
        stuck("c_threads.py", 60, 20) as target,
        closing(RollingCapture(tree_of(target.pid), ONE_LOOK, keep=1)) as rolling,
    ):
        meter = Meter()
        for _ in range(3):
            rolling.look(ONE_LOOK)
        meter.add(1.0, None)
        used_s = helpers_cpu_s()
        assert used_s > 0
        living = meter.read().cpu_share
        rolling.close()
        ended = meter.read().cpu_share
    assert helpers_cpu_s() == 0
    assert living is not None and ended is not None and living > 0.5 * ended


def test_a_reader_that_dies_between_looks_costs_nothing() -> None:
    with (
        stuck("c_threads.py", 4, 2) as target,
        closing(RollingCapture(tree_of(target.pid), ONE_LOOK, keep=2)) as rolling,
    ):
        first = rolling.look(ONE_LOOK).snapshots[-1]
        for pid in helper_pids():
            deadline.kill(pid)
        second = rolling.look(ONE_LOOK).snapshots[-1]
    assert second.gaps == first.gaps
    assert [thread.tid for thread in second.processes[0].threads] == [
        thread.tid for thread in first.processes[0].threads
    ]
