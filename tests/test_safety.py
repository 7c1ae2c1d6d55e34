"""The promises to the patient: not stopped, not traced, not filled up, whatever becomes of it or of us.

By default in numbers that take a minute. The numbers of the promise, which take an hour:
``HANGDOCTOR_KILLS=100 HANGDOCTOR_COLLECTIONS=10000``.
"""

from __future__ import annotations

import ctypes
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoctor import bundle
from hangdoctor.collect import RollingCapture, dumps, look, own_stacks, procfs, take_capture
from hangdoctor.collect.deadline import helper_pids
from hangdoctor.model import Capture, Method
from tests.conftest import stuck
from tests.jobs import marked
from tests.test_collect_capture import ONE_LOOK, tree_of

KILLS = int(os.environ.get("HANGDOCTOR_KILLS", "7"))
COLLECTIONS = int(os.environ.get("HANGDOCTOR_COLLECTIONS", "40"))
ROOT = Path(__file__).parent.parent
MARK = "HANGDOCTOR_TEST_JOB"
PTRACE_SEIZE = 0x4206


def hangdoctor(*words: object, folder: Path, mark: str = "") -> subprocess.Popen[bytes]:
    """The command, which finds its temporary files in ``folder/tmp``."""
    (folder / "tmp").mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT), MARK: mark}
    command = [sys.executable, "-m", "hangdoctor", *map(str, words)]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def assert_untouched(pid: int) -> None:
    assert set(dumps.thread_states(pid).values()) <= {"R", "S", "D"}
    status = procfs.read_status(pid)
    assert status is not None and status.tracer_pid == 0


def one_look(pid: int, *, allow_pause: bool = False) -> Capture:
    return take_capture(tree_of(pid), replace(ONE_LOOK, allow_pause=allow_pause))


# --- what becomes of us -----------------------------------------------------------------------------------


@pytest.mark.timeout(180 + 10 * KILLS)
@pytest.mark.parametrize(
    "options",
    [(), ("--allow-pause",), ("--allow-pause", "--native")],
    ids=["default", "allow-pause", "stopping"],
)
def test_killed_at_any_moment(options: tuple[str, ...], tmp_path: Path) -> None:
    """SIGKILL, at random moments from before the first look to after the last; ``--native`` stops the target."""
    moment = random.Random(7)
    with stuck("c_busy.py", 5) as target:
        for number in range(KILLS):
            folder = tmp_path / str(number)
            folder.mkdir()
            mark = f"safety-{os.getpid()}-{number}"
            words = (
                "attach",
                target.pid,
                "--snapshots",
                2,
                "--interval",
                0.1,
                "--bundle",
                "kept.hang",
                *options,
            )
            with hangdoctor(*words, folder=folder, mark=mark) as doctor:
                time.sleep(moment.uniform(0.1, 1.6 if "--native" not in options else 3.0))
                doctor.kill()
            assert_all_gone(mark)
            assert_untouched(target.pid)
            kept = folder / "kept.hang"
            if kept.exists():
                assert bundle.read(kept).snapshots is not None
            # One folder at most, and what a bundle that was being written leaves beside it.
            left = [entry.name for entry in (folder / "tmp").iterdir()]
            beside = {entry.name for entry in folder.iterdir()} - {"tmp", "kept.hang"}
            assert len(left) + len(beside) <= 1, (left, beside)


def assert_all_gone(mark: str) -> None:
    """Helpers die with us; py-spy, which reads and does not wait, ends by itself."""
    end = time.monotonic() + 10
    while left := marked(mark):
        assert time.monotonic() < end, f"left behind: {left}"
        time.sleep(0.01)


def test_two_at_once_say_the_same(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    with stuck("c_threads.py", 7, 5) as target:
        doctors = []
        for folder in folders:
            folder.mkdir()
            words = ("attach", target.pid, "--snapshots", 2, "--interval", 1, "--json", "--no-bundle", "-q")
            doctors.append(hangdoctor(*words, folder=folder))
        answers = [doctor.communicate(timeout=120) for doctor in doctors]
        assert_untouched(target.pid)
    kinds = {out.partition(b'"kind": "')[2].partition(b'"')[0] for out, _ in answers}
    assert len(kinds) == 1 and kinds != {b""}, answers
    assert {doctor.returncode for doctor in doctors} <= {0, 3, 4}


def test_full_disk_costs_the_bundle_and_not_the_diagnosis(tmp_path: Path) -> None:
    words = f"ulimit -f 0; exec {sys.executable} -m hangdoctor"
    with stuck("c_hold.py") as target:
        for command, code in (("attach --json", {0, 3, 4}), ("collect -o kept.hang", {5})):
            line = f"{words} {command} {target.pid} --snapshots 1"
            done = subprocess.run(
                ["/bin/bash", "-c", line],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode in code, done.stderr
            assert "Traceback" not in done.stderr
            assert done.stdout.startswith("{") is (command != "collect -o kept.hang")
        assert_untouched(target.pid)
    assert not [path for path in tmp_path.glob("*.hang") if path.stat().st_size]


# --- what becomes of the patient --------------------------------------------------------------------------


def stop_for_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where neither our reader nor py-spy can read a target that runs: --allow-pause then stops it."""
    monkeypatch.setattr(own_stacks, "read_stacks", lambda pid: None)
    monkeypatch.setattr(dumps._Round, "again", lambda self, result: None)
    monkeypatch.setattr(dumps._Round, "finish", lambda self, result: None)
    monkeypatch.setattr(dumps, "classify", lambda result: dumps.Failure.MOVING)


@pytest.mark.timeout(180 + 2 * COLLECTIONS)
@pytest.mark.parametrize("how", ["default", "allow-pause", "stopping"])
def test_many_collections_leave_a_busy_target_as_it_was(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the target nor we grow, however often it is looked at, and whether it may be stopped for it or not."""
    if how == "stopping":
        stop_for_every_look(monkeypatch)
    allow_pause = how != "default"
    with stuck("c_busy.py", 5) as target:
        one_look(target.pid, allow_pause=allow_pause)
        before, ours = _resources(target.pid), _resources(os.getpid())
        for _ in range(COLLECTIONS):
            (snapshot,) = one_look(target.pid, allow_pause=allow_pause).snapshots
            (process,) = snapshot.processes
            assert bool(snapshot.paused_s) is (how == "stopping")
            resting = {
                thread.name: thread for thread in process.threads if (thread.name or "").startswith("rest-")
            }
            # A main thread that always runs may defeat a look now and then; what is seen is the truth.
            if any(thread.stack for thread in process.threads):
                assert sorted(resting) == [f"rest-{number}" for number in range(5)]
                assert {thread.stack.frames[0].function for thread in resting.values() if thread.stack} == {
                    "rest"
                }
            assert {thread.syscall.name for thread in process.threads[1:] if thread.syscall} == {"futex"}
        after, ours_after = _resources(target.pid), _resources(os.getpid())
        assert_untouched(target.pid)
    print(f"{COLLECTIONS} collections, {how}: target {before} to {after}, hangdoctor {ours} to {ours_after}")
    assert after[0] == before[0], "descriptors"
    assert ours_after[0] <= ours[0], "our descriptors"
    assert ours_after[1] - ours[1] < (16 << 20) + 1024 * COLLECTIONS, "our resident bytes"
    assert after[1] - before[1] < 4 << 20, "resident bytes"
    assert not helper_pids()


@pytest.mark.timeout(180 + 2 * COLLECTIONS)
def test_many_looks_by_the_same_readers_leave_everybody_as_they_were() -> None:
    """A watch of days: neither the target grows, nor we, nor the readers that stay from look to look."""
    with (
        stuck("c_busy.py", 5) as target,
        closing(RollingCapture(tree_of(target.pid), ONE_LOOK, keep=2)) as rolling,
    ):
        for _ in range(10):
            rolling.look(ONE_LOOK)
        readers = helper_pids()
        assert readers
        everybody = {pid: _resources(pid) for pid in (target.pid, os.getpid(), *readers)}
        for _ in range(COLLECTIONS):
            snapshot = rolling.look(ONE_LOOK).snapshots[-1]
            assert len(snapshot.processes[0].threads) == 6
        assert helper_pids() == readers
        for pid, (descriptors, resident) in everybody.items():
            descriptors_after, resident_after = _resources(pid)
            assert descriptors_after <= descriptors, pid
            assert resident_after - resident < (4 << 20) + 200 * COLLECTIONS, pid
        assert_untouched(target.pid)
    assert not helper_pids()


def _resources(pid: int) -> tuple[int, int]:
    """Open descriptors and resident bytes."""
    stat = procfs.read_stat(pid)
    assert stat is not None
    return len(os.listdir(f"/proc/{pid}/fd")), stat.rss_bytes


@contextmanager
def traced(pid: int) -> Iterator[int]:
    """Another process is the tracer of ``pid``, as strace or gdb would be."""
    said, say = os.pipe()
    tracer = os.fork()
    if tracer == 0:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            done = libc.ptrace(PTRACE_SEIZE, pid, 0, 0)
            os.write(say, b"." if done == 0 else b"x")
            signal.pause()
        finally:
            os._exit(1)
    try:
        if os.read(said, 1) != b".":
            pytest.skip("ptrace is not permitted here")
        yield tracer
    finally:
        os.kill(tracer, signal.SIGKILL)
        os.waitpid(tracer, 0)
        os.close(said)
        os.close(say)


@pytest.mark.parametrize("allow_pause", [False, True])
def test_target_that_a_debugger_holds(allow_pause: bool) -> None:
    """Its stacks are read all the same, and the debugger keeps it."""
    with stuck("c_threads.py", 5, 3) as target, traced(target.pid) as tracer:
        (snapshot,) = take_capture(tree_of(target.pid), replace(ONE_LOOK, allow_pause=allow_pause)).snapshots
        status = procfs.read_status(target.pid)
        assert status is not None and status.tracer_pid == tracer
    (process,) = snapshot.processes
    assert process.tracer_pid == tracer
    assert all(thread.stack for thread in process.threads)
    assert {thread.stack.method for thread in process.threads if thread.stack} == {Method.MEMORY}


@pytest.mark.parametrize("allow_pause", [False, True])
def test_target_that_a_debugger_holds_by_py_spy(allow_pause: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_stacks, "read_stacks", lambda pid: None)
    with stuck("c_threads.py", 5, 3) as target, traced(target.pid):
        (snapshot,) = take_capture(tree_of(target.pid), replace(ONE_LOOK, allow_pause=allow_pause)).snapshots
    (process,) = snapshot.processes
    assert {thread.stack and thread.stack.method for thread in process.threads} == {Method.PY_SPY_NONBLOCKING}


def test_target_at_its_limits() -> None:
    with stuck("c_limits.py") as target:
        (snapshot,) = one_look(target.pid).snapshots
        assert_untouched(target.pid)
    (process,) = snapshot.processes
    assert len(process.threads) == 4 and all(thread.stack and thread.syscall for thread in process.threads)
    assert len(process.files) and process.environ is not None


def test_a_thousand_threads() -> None:
    with stuck("c_threads.py", 1000, 3) as target:
        (snapshot,) = one_look(target.pid).snapshots
        assert_untouched(target.pid)
    (process,) = snapshot.processes
    assert len(process.threads) == 1001
    assert all(thread.stack and thread.syscall for thread in process.threads)


def test_three_hundred_processes() -> None:
    with stuck("c_many.py", 300) as target:
        pids = [int(word) for word in target.said[0].split()]
        assert len(pids) == 300
        (snapshot,) = one_look(target.pid).snapshots
        for pid in pids[::37]:
            assert_untouched(pid)
    seen = {process.pid: process for process in snapshot.processes}
    assert set(pids) <= seen.keys()
    assert all(seen[pid].threads for pid in pids)


def test_number_that_is_given_to_another_process_during_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of either: what was read may be of one or the other."""
    read_stat = procfs.read_stat
    with stuck("c_threads.py", 3, 2) as target, stuck("c_threads.py", 3, 2) as other:
        tree = tree_of(target.pid, other.pid)

        def reused(pid: int) -> procfs.Stat | None:
            stat = read_stat(pid)
            is_new = stat is not None and pid == target.pid
            return replace(stat, start_ticks=stat.start_ticks + 100) if stat and is_new else stat

        monkeypatch.setattr(look, "read_stat", reused)
        (snapshot,) = take_capture(tree, ONE_LOOK).snapshots
    assert [process.pid for process in snapshot.processes] == [other.pid]
    assert all(thread.stack for thread in snapshot.processes[0].threads)


def test_target_that_forks_and_becomes_another_program_all_the_time() -> None:
    with stuck("c_busy.py", 3, "exec") as target:
        stat = procfs.read_stat(target.pid)
        for _ in range(7):
            (snapshot,) = one_look(target.pid).snapshots
            process = next(process for process in snapshot.processes if process.pid == target.pid)
            assert stat is not None and process.start_ticks == stat.start_ticks
            names = {thread.name for thread in process.threads if thread.stack}
            assert names <= {"MainThread", "rest-0", "rest-1", "rest-2", None}
        assert_untouched(target.pid)
        assert select.select([target.said_fd], [], [], 0)[0] == []


# --- what it says ------------------------------------------------------------------------------------------


def test_hostile_log_is_cut_and_cannot_reach_the_terminal(tmp_path: Path) -> None:
    """A line of 1 MB, escapes, markup, bytes that are no UTF-8."""
    log = tmp_path / "server.log"
    with stuck("c_hold.py") as target:
        first, last = b"[bold]x[/bold] \x1b[2J\x1b]0;title\x07 \xff\xfe\r\n", b"\nlast \x1b[31m\n"
        log.write_bytes(first + b"A" * (1 << 20) + last)
        words = ("attach", target.pid, "--snapshots", 1, "--no-bundle", "--log", log, "--detail")
        with hangdoctor(*words, folder=tmp_path) as doctor:
            out, err = doctor.communicate(timeout=60)
    assert doctor.returncode in (0, 3, 4), err
    assert b"\x1b" not in out and b"\x07" not in out and b"\x1b" not in err
    assert len(out) < 200_000
