"""The processes that read for one look stay for the next: they are the same, and see what is so now."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from hangdoctor.collect import deadline, take_capture
from hangdoctor.collect.deadline import helper_pids
from hangdoctor.collect.mappings import LARGE_BYTES
from hangdoctor.collect.schedule import RollingCapture
from hangdoctor.model import Capture
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
