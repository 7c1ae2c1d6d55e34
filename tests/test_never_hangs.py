"""Whatever state the target is in and whichever collector blocks: the run ends, says so, and stops nobody."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoctor.collect import (
    Plan,
    dumps,
    filelocks,
    inside,
    logs,
    own_stacks,
    processes,
    procfs,
    surroundings,
    take_capture,
    thread_reader,
    thread_steps,
)
from hangdoctor.collect.deadline import helper_pids
from hangdoctor.collect.processes import Part, Step, Wanted
from hangdoctor.model import Capture, Method
from tests.conftest import stuck
from tests.test_collect_capture import ONE_LOOK, program, tree_of

LIMIT_S = 25.0
"""Deadlines add up to less on an idle machine; this one is shared."""


@pytest.fixture
def block(tmp_path: Path) -> Callable[..., object]:
    """A call that never returns: the kernel waits for somebody to open the other end."""
    fifo = tmp_path / "nobody-writes-here"
    os.mkfifo(fifo)

    def wait(*args: object, **kwargs: object) -> object:
        return os.open(fifo, os.O_RDONLY)

    return wait


def timed(pid: int, plan: Plan = ONE_LOOK) -> Capture:
    began = time.monotonic()
    capture = take_capture(tree_of(pid), plan)
    assert time.monotonic() - began < LIMIT_S
    assert not helper_pids(), "a helper was left behind"
    return capture


def test_uninterruptible_main_thread(tmp_path: Path) -> None:
    """Where a blocking dump would hang and freeze the other threads for as long."""
    os.mkfifo(tmp_path / "fifo")
    with stuck("c_vfork.py", tmp_path / "fifo") as target:
        wait_for_state(target.pid, "D")
        (snapshot,) = take_capture(tree_of(target.pid), replace(ONE_LOOK, allow_pause=True)).snapshots
        process, child = snapshot.processes
        run = dumps.StackRun()
        assert dumps._dump_stopped(program(), process, dumps.Mode.NATIVE, run) is None
        assert set(dumps.thread_states(target.pid).values()) <= {"D", "S"}
    main = process.threads[0]
    assert main.state == "D" and main.stack is not None
    assert main.stack.frames[-1].function == "<module>"
    assert "state D" in run.gaps[0].reason
    # The child of the vfork runs in its parent's memory, but those are not its threads.
    (gap,) = [gap for gap in snapshot.gaps if gap.source == "py-spy"]
    assert gap.subject == f"pid {child.pid}" and "vfork" in gap.reason
    assert [thread.tid for thread in child.threads] == [child.pid]


def wait_for_state(pid: int, state: str) -> None:
    """A thread cannot say that it is in a wait from which it cannot say anything."""
    for _ in range(20_000):
        stat = procfs.read_stat(pid)
        assert stat is not None
        if stat.state == state:
            return
        os.sched_yield()
    raise AssertionError(f"never in state {state}")


@pytest.mark.parametrize("step", list(Step))
def test_any_step_of_a_process_may_block(
    step: Step, monkeypatch: pytest.MonkeyPatch, block: Callable[[Wanted], Part]
) -> None:
    monkeypatch.setattr(processes, "_READERS", {**processes._READERS, step: block})
    monkeypatch.setattr(processes, "STEP_S", 0.3)
    with stuck("c_hold.py") as target:
        (snapshot,) = timed(target.pid).snapshots
    assert any(step.value in gap.reason and "did not return" in gap.reason for gap in snapshot.gaps)
    assert snapshot.processes[0].threads[0].syscall is not None


@pytest.mark.parametrize(
    ("where", "name", "source"),
    [
        (surroundings, "read_connections", "sockets"),
        (surroundings, "read_pipe_ends", "pipes"),
        (thread_reader, "read_threads", "proc"),
        (surroundings, "read_gpus", "gpu"),
        (filelocks, "read_file_locks", "locks"),
        (filelocks, "find_existence_locks", "locks"),
        (logs, "read_tail", "log"),
        (inside, "find_lock_waits", "locks"),
        (inside, "read_flight", "flight-recorder"),
    ],
)
def test_any_collector_may_block(
    where: object, name: str, source: str, monkeypatch: pytest.MonkeyPatch, block: Callable[..., object]
) -> None:
    monkeypatch.setattr(where, name, block)
    monkeypatch.setattr(thread_steps, "THREADS_S", 0.3)
    for limit in ("SOCKETS_S", "LOGS_S", "LOCKS_S", "GPU_S", "GPU_GRACE_S"):
        monkeypatch.setattr(surroundings, limit, 0.3)
    monkeypatch.setattr(inside, "LOCKS_S", 0.3)
    monkeypatch.setattr(inside, "FLIGHT_S", 0.3)
    of_a_group = b"pt_gloo_runloop".hex()  # a flight recorder is searched for only beside such threads
    with stuck("c_threads.py", 2, 2, of_a_group) as target:
        (snapshot,) = timed(target.pid, replace(ONE_LOOK, use_gpu=True)).snapshots
    (process,) = snapshot.processes
    assert any(gap.source == source and gap.remedy for gap in snapshot.gaps), snapshot.gaps
    assert process.command and (process.threads or name == "read_threads")


def test_a_rank_that_spins_in_sched_yield_does_not_hold_up_a_look() -> None:
    """A reader that goes to such a CPU may stay there for as long as the rank spins (Linux 6.18)."""
    with stuck("c_yield.py", min(os.sched_getaffinity(0))) as target:
        capture = timed(target.pid, replace(ONE_LOOK, snapshots=3, interval_s=0.1))
    assert not [gap for snapshot in capture.snapshots for gap in snapshot.gaps if "return" in gap.reason]
    assert max(snapshot.duration_s or 0.0 for snapshot in capture.snapshots) < 2.0


def test_one_process_that_blocks_does_not_cost_the_others_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    read_threads = thread_reader.read_threads
    monkeypatch.setattr(thread_steps, "THREADS_S", 0.3)
    with stuck("c_hold.py") as sick, stuck("c_hold.py") as well:

        def read(pid: int, *args: object, **kwargs: object) -> object:
            return time.sleep(3600) if pid == sick.pid else read_threads(pid, *args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(thread_reader, "read_threads", read)
        (snapshot,) = take_capture(tree_of(sick.pid, well.pid), ONE_LOOK).snapshots
    by_pid = {process.pid: process for process in snapshot.processes}
    assert by_pid[well.pid].threads[0].syscall is not None
    # The memory of the sick one still answers: its stacks are there without the kernel's view.
    (thread,) = by_pid[sick.pid].threads
    assert thread.tid == sick.pid and thread.stack is not None and thread.syscall is None


def test_memory_that_does_not_answer_leaves_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = thread_reader.decode_syscall

    def stuck_in_memory(pid: int, line: str, *, can_read_memory: bool, **kwargs: object) -> object:
        if can_read_memory:
            time.sleep(3600)
        return decode(pid, line, can_read_memory=False)

    monkeypatch.setattr(thread_reader, "decode_syscall", stuck_in_memory)
    monkeypatch.setattr(thread_steps, "THREADS_S", 0.3)
    with stuck("c_hold.py") as target:
        (snapshot,) = timed(target.pid).snapshots
    (thread,) = snapshot.processes[0].threads
    assert thread.syscall is not None and thread.syscall.name == "read"
    assert any("threads" in gap.reason for gap in snapshot.gaps)


def test_stacks_that_do_not_come_from_memory_are_left_to_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_stacks, "read_stacks", lambda pid: time.sleep(3600))
    monkeypatch.setattr(own_stacks, "PROCESS_S", 0.3)
    with stuck("c_hold.py") as target:
        (snapshot,) = timed(target.pid).snapshots
    (thread,) = snapshot.processes[0].threads
    assert thread.syscall is not None and thread.syscall.name == "read"
    assert thread.stack is not None and thread.stack.method is Method.PY_SPY_NONBLOCKING
    (gap,) = snapshot.gaps
    assert gap.reason.endswith("its memory does not answer")


def test_py_spy_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "command", lambda program, pid, mode: ("/bin/sleep", "3600"))
    monkeypatch.setattr(dumps, "NONBLOCKING_S", 0.3)
    monkeypatch.setattr(own_stacks, "read_stacks", lambda pid: None)
    with stuck("c_hold.py") as target:
        (snapshot,) = timed(target.pid).snapshots
    assert any("py-spy was killed" in gap.reason for gap in snapshot.gaps)
    assert snapshot.processes[0].threads[0].syscall is not None


def test_a_look_ends_within_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "command", lambda program, pid, mode: ("/bin/sleep", "3600"))
    monkeypatch.setattr(dumps, "NONBLOCKING_S", 3600.0)
    monkeypatch.setattr(own_stacks, "read_stacks", lambda pid: None)
    with stuck("c_hold.py") as target:
        timed(target.pid, replace(ONE_LOOK, look_s=1.0))


def test_five_hundred_threads() -> None:
    with stuck("c_threads.py", 500, 3) as target:
        (snapshot,) = timed(target.pid).snapshots
    (process,) = snapshot.processes
    assert len(process.threads) == process.thread_count == 501
    assert all(thread.stack and thread.syscall and thread.wchan for thread in process.threads)


def test_signal_to_stop_during_a_look_leaves_nobody_stopped() -> None:
    with stuck("c_spin.py", 3) as target:
        os.kill(target.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, target.pid, os.WSTOPPED | os.WNOWAIT)
        timed(target.pid, replace(ONE_LOOK, allow_pause=True, native=True))
        os.kill(target.pid, signal.SIGCONT)
        os.waitid(os.P_PID, target.pid, os.WCONTINUED)
        assert "T" not in dumps.thread_states(target.pid).values()


def test_host_without_room_for_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with stuck("c_hold.py") as target:
        tree = tree_of(target.pid)
        with monkeypatch.context() as full:
            full.setattr(os, "fork", refuse)
            full.setattr(os, "posix_spawn", refuse)
            capture = take_capture(tree, ONE_LOOK)
    (process,) = capture.snapshots[0].processes
    assert process.state == "S" and process.rss_bytes
    assert any("limit on processes" in gap.reason for gap in capture.snapshots[0].gaps)
