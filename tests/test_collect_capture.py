"""Whole captures of real processes: what is seen, in which order, and that the target does not notice."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoctor.collect import (
    Interrupted,
    Member,
    Plan,
    Tree,
    dumps,
    inside,
    own_stacks,
    procfs,
    schedclock,
    schedule,
    take_capture,
)
from hangdoctor.collect.deadline import Trouble, call, helper_pids
from hangdoctor.collect.pyspy import PySpy, find_py_spy
from hangdoctor.errors import TargetNotFound
from hangdoctor.model import Capture, Gap, Method, Process, Thread
from tests.conftest import stuck

ONE_LOOK = Plan(snapshots=1, use_gpu=False)
PYENV = Path.home() / ".pyenv" / "versions"


def tree_of(*pids: int) -> Tree:
    members = []
    for pid in pids:
        stat = procfs.read_stat(pid)
        assert stat is not None
        members.append(Member(pid, stat.start_ticks))
    return Tree(pids[0], f"pid {pids[0]}", tuple(members), None, pids[0])


def look_once(pid: int, plan: Plan = ONE_LOOK) -> tuple[Process, tuple[Gap, ...]]:
    snapshot = take_capture(tree_of(pid), plan).snapshots[0]
    return next(process for process in snapshot.processes if process.pid == pid), snapshot.gaps


def functions(thread: Thread) -> list[str]:
    assert thread.stack is not None
    return [frame.function for frame in thread.stack.frames]


def program() -> PySpy:
    found = find_py_spy()
    assert isinstance(found, PySpy)
    return found


def test_all_threads_with_both_views() -> None:
    with stuck("c_threads.py", 7, 5, "own") as target:
        process, gaps = look_once(target.pid)
    assert not [gap for gap in gaps if gap.source != "log"]
    assert [thread.name for thread in process.threads] == ["MainThread", *(f"rest-{n}" for n in range(7))]
    for thread in process.threads[1:]:
        assert thread.comm == thread.name
        assert functions(thread)[:6] == ["rest", *["descend"] * 5]
        assert functions(thread)[-1].endswith("_bootstrap")
        assert thread.stack is not None and thread.stack.method is Method.MEMORY
        assert thread.syscall is not None and thread.syscall.name == "futex"
        assert thread.owns_gil is False and not thread.stack.is_torn
    assert functions(process.threads[0]) == ["hold", "<module>"]
    assert process.taken_at is not None and abs(process.taken_at - time.time()) < 60


@pytest.mark.parametrize("version", ["3.8.18", "3.9.18", "3.10.13", "3.12.1", "3.13.0"])
def test_other_interpreters_also_those_that_record_no_thread_ids(version: str) -> None:
    python = PYENV / version / "bin" / "python3"
    if not python.exists():
        pytest.skip(f"no Python {version} here")
    with stuck("c_threads.py", 5, 3, "own", python=str(python)) as target:
        process, _ = look_once(target.pid)
    assert len(process.threads) == 6
    for thread in process.threads[1:]:
        assert thread.comm == thread.name
        assert functions(thread)[:4] == ["rest", *["descend"] * 3]


def test_names_that_are_not_utf_8_cost_names_not_stacks() -> None:
    with stuck("c_threads.py", 3, 2, "ff28295220") as target:
        process, _ = look_once(target.pid)
    assert [thread.comm for thread in process.threads[1:]] == ["\\xff()R "] * 3
    assert all(thread.stack for thread in process.threads)


def test_hostile_names_pass_through() -> None:
    with stuck("c_hostile.py") as target:
        process, _ = look_once(target.pid)
    assert process.comm == "a) R 1 (\\xff\n\x1b"
    assert {thread.name for thread in process.threads} == {"MainThread", "[/bold]\x1b[2J"}


def test_non_python_process_has_no_stacks_and_no_gap() -> None:
    with subprocess.Popen(["sleep", "1000"]) as sleep:
        process, gaps = look_once(sleep.pid)
        sleep.kill()
    assert process.command == ("sleep", "1000")
    assert process.threads[0].stack is None and process.threads[0].syscall is not None
    assert not [gap for gap in gaps if gap.source == "py-spy"]


def test_stopped_process_is_read_and_stays_stopped() -> None:
    with stuck("c_threads.py", 3, 2) as target:
        os.kill(target.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, target.pid, os.WSTOPPED | os.WNOWAIT)
        process, _ = look_once(target.pid, replace(ONE_LOOK, allow_pause=True))
        stat = procfs.read_stat(target.pid)
    assert process.state == "T" and stat is not None and stat.state == "T"
    assert all(thread.stack for thread in process.threads)


def test_zombie_leader_is_read_through_a_living_thread() -> None:
    with stuck("c_zombie_leader.py") as target:
        process, gaps = look_once(target.pid)
    assert process.state == "Z"
    survivor = next(thread for thread in process.threads if thread.name == "survivor")
    assert "survive" in functions(survivor)
    assert not [gap for gap in gaps if gap.source == "py-spy"]


def test_zombie_child_is_listed_with_its_exit_code() -> None:
    with stuck("c_zombie.py", 7) as target:
        zombie = int(target.said[0].split()[1])
        snapshot = take_capture(tree_of(target.pid), ONE_LOOK).snapshots[0]
    dead = next(process for process in snapshot.processes if process.pid == zombie)
    assert (dead.state, dead.exit_code, dead.threads) == ("Z", 7, ())
    assert not [gap for gap in snapshot.gaps if str(zombie) in gap.subject]


def test_runaway_recursion_is_told_from_moving_stacks() -> None:
    with stuck("c_deep.py", 10_000) as target:
        process, gaps = look_once(target.pid)
    (gap,) = [gap for gap in gaps if gap.source == "py-spy"]
    assert "4,096 calls" in gap.reason and gap.remedy is not None
    assert all(thread.syscall for thread in process.threads)


def test_deep_but_readable() -> None:
    with stuck("c_deep.py", 4000) as target:
        process, gaps = look_once(target.pid)
    assert len(functions(next(thread for thread in process.threads if thread.name == "deep"))) > 4000
    assert not [gap for gap in gaps if gap.source == "py-spy"]


def test_hot_threads_are_read_or_said_to_run() -> None:
    with stuck("c_spin.py", 3) as target:
        process, gaps = look_once(target.pid)
    spinning = [thread for thread in process.threads if thread.tid != target.pid]
    whole = [thread for thread in spinning if thread.stack and not thread.stack.is_torn]
    assert all(functions(thread)[-1].endswith("_bootstrap") for thread in whole)
    if not any(thread.stack for thread in spinning):
        assert "this process runs" in next(gap.reason for gap in gaps if gap.source == "py-spy")


def test_pausing_reads_what_moves_and_leaves_nothing_stopped() -> None:
    with stuck("c_spin.py", 3) as target:
        run = dumps.StackRun()
        process, _ = look_once(target.pid)
        dump = dumps._dump_stopped(program(), process, dumps.Mode.BLOCKING, run)
        states = dumps.thread_states(target.pid)
    assert dump is not None, run.gaps
    assert dump.method is Method.PY_SPY_BLOCKING
    assert 0 < run.paused_s < 10
    assert not set(states.values()) & {"T", "t"}


@pytest.mark.parametrize(("may_pause", "words"), [(True, ("c_threads.py", 2, 2)), (False, ("c_spin.py", 1))])
def test_stacks_that_always_move_are_tried_five_times_then_stopped_if_allowed(
    may_pause: bool, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = dumps.command
    tries = tmp_path / "tries"
    fails = f"echo x >> {tries}; echo 'Error: Failed to copy PyCodeObject\n  Bad address (os error 14)' >&2; exit 1"

    def always_moving(program: PySpy, pid: int, mode: dumps.Mode) -> tuple[str, ...]:
        return ("/bin/sh", "-c", fails) if mode is dumps.Mode.NONBLOCKING else real(program, pid, mode)

    monkeypatch.setattr(dumps, "command", always_moving)
    monkeypatch.setattr(own_stacks, "read_stacks", lambda pid: None)
    with stuck(*words) as target:
        (snapshot,) = take_capture(tree_of(target.pid), replace(ONE_LOOK, allow_pause=may_pause)).snapshots
        states = dumps.thread_states(target.pid)
    assert len(tries.read_text().split()) == 5
    assert not set(states.values()) & {"T", "t"}
    gaps = [gap for gap in snapshot.gaps if gap.source.startswith("py-spy")]
    stacks = [thread.stack for process in snapshot.processes for thread in process.threads if thread.stack]
    if may_pause:
        assert not gaps and {stack.method for stack in stacks} == {Method.PY_SPY_BLOCKING}
        assert snapshot.paused_s is not None and snapshot.paused_s > 0
    else:
        assert not stacks and snapshot.paused_s == 0.0
        assert "5 tries" in gaps[0].reason and "--allow-pause" in (gaps[0].remedy or "")


@pytest.mark.parametrize("mode", [dumps.Mode.BLOCKING, dumps.Mode.NATIVE])
def test_stopped_processes_are_never_stopped_again(mode: dumps.Mode) -> None:
    with stuck("c_hold.py") as target:
        os.kill(target.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, target.pid, os.WSTOPPED | os.WNOWAIT)
        run = dumps.StackRun()
        assert dumps._dump_stopped(program(), Process(target.pid), mode, run) is None
    assert "state T" in run.gaps[0].reason
    assert run.paused_s == 0.0


def test_native_frames_replace_the_last_look_only() -> None:
    with stuck("c_hold.py") as target:
        plan = Plan(snapshots=2, interval_s=0.1, native=True, use_gpu=False)
        capture = take_capture(tree_of(target.pid), plan)
    methods = [
        thread.stack.method
        for snapshot in capture.snapshots
        for process in snapshot.processes
        for thread in process.threads
        if thread.stack
    ]
    assert methods == [Method.MEMORY, Method.PY_SPY_NATIVE]
    assert [snapshot.paused_s == 0.0 for snapshot in capture.snapshots] == [True, False]
    assert any(frame.is_native for frame in capture.snapshots[1].processes[0].threads[0].stack.frames)  # type: ignore[union-attr]


def test_tids_of_another_pid_namespace_are_ours() -> None:
    command = ["unshare", "--fork", "--pid", "--kill-child"]
    if subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip("may not make a PID namespace here")
    with stuck("c_threads.py", 3, 2, "own", prefix=command) as target:
        inner = next(pid for pid, stat in procfs.read_table().items() if stat.ppid == target.pid)
        process, _ = look_once(inner)
    assert process.ns_pid == 1
    assert process.threads[0].tid == inner and process.threads[0].name == "MainThread"
    assert all(thread.comm == thread.name and thread.stack for thread in process.threads[1:])
    assert len(process.threads) == 4


# --- the target does not notice -------------------------------------------------------------------------


def test_default_tier_never_traces_nor_interrupts() -> None:
    with stuck("c_epoll.py") as target:
        with TracerWatch(target.pid) as watch:
            capture = take_capture(tree_of(target.pid), Plan(snapshots=3, interval_s=0.1, use_gpu=False))
        stat = procfs.read_stat(target.pid)
        assert stat is not None and stat.state == "S"
        assert watch.looks > 20 and not watch.tracers
        assert all(snapshot.paused_s == 0.0 for snapshot in capture.snapshots)
        # The twin: a blocking dump is noticed, in epoll_wait and by the watch, so silence above means something.
        with TracerWatch(target.pid) as watch:
            dumps._dump_stopped(program(), Process(target.pid), dumps.Mode.NATIVE, dumps.StackRun())
        assert target.hear() == ("EINTR",)
        assert watch.tracers


class TracerWatch:
    """Looks at TracerPid of all threads, again and again, while something else happens."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.tracers: set[int] = set()
        self.looks = 0

    def _watch(self) -> None:
        tasks = [f"/proc/{self._pid}/task/{tid}/status" for tid in procfs.list_tids(self._pid)]
        while not self._is_over.wait(0.0005):
            self.looks += 1
            for path in tasks:
                self.tracers.add(procfs.parse_status(procfs.read_bytes(path)).tracer_pid)
            self.tracers.discard(0)

    def __enter__(self) -> TracerWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        self._thread.join()


# --- the schedule ---------------------------------------------------------------------------------------


def test_looks_are_as_far_apart_as_planned_and_reported_one_by_one() -> None:
    seen: list[int] = []
    with stuck("c_hold.py") as target:
        plan = Plan(snapshots=3, offsets_s=(0.0, 0.4, 0.9), use_gpu=False)
        capture = take_capture(tree_of(target.pid), plan, on_snapshot=lambda c: seen.append(len(c.snapshots)))
    assert seen == [1, 2, 3]
    moments = [snapshot.taken_at or 0.0 for snapshot in capture.snapshots]
    assert [round(later - moments[0], 1) >= due for later, due in zip(moments, (0.0, 0.4, 0.9), strict=True)]
    assert moments[2] - moments[0] < 4
    assert (capture.tool.py_spy, capture.target.root_pid) == (program().version, target.pid)
    assert capture.hosts[0].ticks_per_s == procfs.TICKS_PER_S


def test_enough_is_enough() -> None:
    with stuck("c_hold.py") as target:
        plan = Plan(snapshots=5, interval_s=0.1, use_gpu=False)
        capture = take_capture(tree_of(target.pid), plan, is_enough=lambda c: len(c.snapshots) == 2)
    assert len(capture.snapshots) == 2


@pytest.mark.parametrize(
    ("plan", "due"),
    [
        (Plan(), [0, 3, 10, 17, 24]),
        (Plan(interval_s=5), [0, 5, 10, 15, 20]),
        (Plan(offsets_s=(0.0,)), [0, 3, 6, 9, 12]),
    ],
)
def test_when_looks_are_due(plan: Plan, due: Sequence[float]) -> None:
    assert [plan.offset_s(index) for index in range(5)] == due


def test_processes_that_appear_between_looks_are_included() -> None:
    children: list[int] = []

    def start_one(capture: Capture) -> None:
        target.release(times=1)
        children[:] = map(int, target.hear()[0].split())

    with stuck("c_offspring.py") as target:
        plan = Plan(snapshots=3, interval_s=0.1, use_gpu=False)
        capture = take_capture(tree_of(target.pid), plan, on_snapshot=start_one)
    counts = [len(snapshot.processes) for snapshot in capture.snapshots]
    assert counts == [1, 2, 3]
    assert {process.pid for process in capture.snapshots[2].processes} == {target.pid, *children[:2]}


def test_process_that_ends_between_looks_is_absent() -> None:
    with stuck("c_hold.py") as staying, stuck("c_hold.py") as leaving:

        def end(capture: Capture) -> None:
            leaving.popen.kill()
            leaving.popen.wait()

        plan = Plan(snapshots=2, interval_s=0.1, use_gpu=False)
        capture = take_capture(tree_of(staying.pid, leaving.pid), plan, on_snapshot=end)
    assert [len(snapshot.processes) for snapshot in capture.snapshots] == [2, 1]
    assert not [gap for gap in capture.snapshots[1].gaps if str(leaving.pid) in gap.subject]


def test_end_of_everything_ends_the_capture() -> None:
    with stuck("c_hold.py") as target:
        tree = tree_of(target.pid)

        def end(capture: Capture) -> None:
            target.popen.kill()
            target.popen.wait()

        capture = take_capture(tree, Plan(snapshots=9, interval_s=0.1, use_gpu=False), on_snapshot=end)
    assert [len(snapshot.processes) for snapshot in capture.snapshots] == [1, 0]
    with pytest.raises(TargetNotFound, match="ended before"):
        take_capture(tree, ONE_LOOK)


def test_process_that_ends_during_a_look_leaves_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    dump_stacks = dumps.dump_stacks

    with stuck("c_hold.py") as target:

        def end_first(*args: object, **kwargs: object) -> dumps.StackRun:
            target.popen.kill()
            target.popen.wait()
            return dump_stacks(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(dumps, "dump_stacks", end_first)
        monkeypatch.setattr(own_stacks, "read_stacks", lambda pid: None)
        # With the permission to pause, threads are read before the stacks and not at the same time.
        process, gaps = look_once(target.pid, replace(ONE_LOOK, allow_pause=True))
    assert process.threads[0].syscall is not None and process.threads[0].stack is None
    assert not [gap for gap in gaps if str(target.pid) in gap.subject]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_keeps_the_looks_that_were_complete(number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stuck("c_hold.py") as target, pytest.raises(Interrupted) as caught:
        take_capture(
            tree_of(target.pid),
            Plan(snapshots=2, interval_s=1000, use_gpu=False),
            on_snapshot=lambda capture: os.kill(os.getpid(), number),
        )
    assert len(caught.value.capture.snapshots) == 1
    assert isinstance(caught.value, KeyboardInterrupt)
    assert signal.getsignal(signal.SIGTERM) is before
    assert not helper_pids()


def test_interruption_of_the_first_look_keeps_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **kwargs: object) -> dumps.StackRun:
        raise KeyboardInterrupt

    monkeypatch.setattr(dumps, "dump_stacks", interrupt)
    with stuck("c_hold.py") as target, pytest.raises(Interrupted) as caught:
        take_capture(tree_of(target.pid), ONE_LOOK)
    (snapshot,) = caught.value.capture.snapshots
    assert snapshot.processes[0].threads[0].syscall is not None
    assert any("interrupted" in gap.reason for gap in caught.value.capture.gaps)


# --- permissions ----------------------------------------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_somebody_elses_process_gives_what_the_kernel_shows_and_says_what_would_help() -> None:
    with stuck("c_threads.py", 3, 2) as target:
        tree = tree_of(target.pid)

        def as_nobody() -> Capture:
            schedclock._IDLE_SHARE = 0.0  # the CPUs of a machine that runs tests are not idle
            os.setgid(65534)
            os.setuid(65534)
            return take_capture(tree, ONE_LOOK)

        capture = call(as_nobody, 60)
    assert not isinstance(capture, Trouble), capture
    process = capture.snapshots[0].processes[0]
    assert len(process.threads) == 4
    assert process.command and process.exe is None and process.environ is None
    assert all(thread.state == "S" and thread.last_ran_s is not None for thread in process.threads)
    assert all(thread.syscall is None and thread.stack is None for thread in process.threads)
    assert capture.hosts[0].access_tier == "none-attach"
    sources = {gap.source for gap in capture.snapshots[0].gaps}
    assert {"proc", "py-spy"} <= sources
    assert all(
        "sudo" in (gap.remedy or "") for gap in capture.snapshots[0].gaps if gap.source in ("proc", "py-spy")
    )


def test_without_py_spy_the_kernels_view_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Gap("py-spy", "this machine", "py-spy is not installed", "pip install py-spy")
    monkeypatch.setattr(schedule, "find_py_spy", lambda: missing)
    with stuck("c_hold.py") as target:
        capture = take_capture(tree_of(target.pid), ONE_LOOK)
    assert missing in capture.gaps
    assert capture.tool.py_spy is None
    assert capture.snapshots[0].processes[0].threads[0].syscall is not None


# --- logs -----------------------------------------------------------------------------------------------


def test_log_behind_a_tee_is_found(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    tee = subprocess.Popen(["tee", str(log)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert tee.stdin is not None
    with tee, stuck("c_log.py", 7, output=Path(f"/proc/self/fd/{tee.stdin.fileno()}")) as target:
        tails = take_capture(tree_of(target.pid), ONE_LOOK).snapshots[0].logs
        tee.kill()
    assert [tail.path for tail in tails] == [str(log)]
    assert tails[0].pids == (target.pid,)


def test_log_given_by_the_user_that_is_missing_is_a_gap(tmp_path: Path) -> None:
    with stuck("c_hold.py") as target:
        plan = replace(ONE_LOOK, logs=(str(tmp_path / "none.log"),))
        snapshot = take_capture(tree_of(target.pid), plan).snapshots[0]
    (gap,) = [gap for gap in snapshot.gaps if gap.source == "log"]
    assert gap.subject.endswith("none.log") and "No such file" in gap.reason


def test_lock_owner_is_on_the_thread_that_waits() -> None:
    with stuck("c_threads.py", 2, 2) as target:
        process, _ = look_once(target.pid)
    kinds = {thread.lock.kind for thread in process.threads if thread.lock is not None}
    assert kinds == {"threading.Lock"}
    with stuck("c_threads.py", 2, 2) as target:
        process, _ = look_once(target.pid, replace(ONE_LOOK, use_locks=False))
    assert all(thread.lock is None for thread in process.threads)


def test_pause_between_looks_tells_a_spin_from_a_rest() -> None:
    with stuck("c_tight.py") as target:
        capture = take_capture(tree_of(target.pid), Plan(snapshots=2, interval_s=2.0, use_gpu=False))
        probe = inside.sample_spin([target.pid], 0.5)
    if not probe:
        pytest.skip("perf events are not permitted here")
    first, last = (snapshot.processes[0].threads for snapshot in capture.snapshots)
    assert all(thread.spin is None for thread in first)
    spins = {thread.tid: thread.spin for thread in last}
    assert spins[target.pid] is not None and spins[target.pid].recurrence > 0.4  # type: ignore[union-attr]
    assert [spin for tid, spin in spins.items() if tid != target.pid] == [None]
