"""Outside programs: several at once, again when asked, never longer than allowed."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangdoctor.collect.deadline import helper_pids
from hangdoctor.collect.spawn import Job, Result, guarded, run, run_all
from tests.conftest import stuck


def never(result: Result[int]) -> float | None:
    del result
    return None


def test_output_error_and_code_are_kept() -> None:
    result = run(("/bin/sh", "-c", "echo out; echo err >&2; exit 7"), 20)
    assert (result.returncode, result.stdout, result.stderr) == (7, b"out\n", "err\n")


def test_output_larger_than_any_pipe() -> None:
    result = run(("/bin/sh", "-c", "head -c 5000000 /dev/zero"), 20)
    assert len(result.stdout) == 5_000_000


def test_program_that_cannot_be_started_is_a_result() -> None:
    result = run(("/no/such/program",), 1)
    assert result.returncode is None
    assert result.stderr == "/no/such/program could not be started: No such file or directory"


def test_late_program_is_killed() -> None:
    began = time.monotonic()
    result = run(("/bin/sleep", "1000"), 0.2)
    assert result.returncode is None
    assert time.monotonic() - began < 5
    assert not helper_pids()


def test_width_is_never_exceeded(tmp_path: Path) -> None:
    """Each job holds a lock of which there are two; a third at once would fail."""
    script = (
        'for n in 1 2; do mkdir "$0/$n" 2>/dev/null && { sleep 0.05; rmdir "$0/$n"; exit 0; }; done; exit 9'
    )
    jobs = [Job(number, ("/bin/sh", "-c", script, str(tmp_path)), 20) for number in range(7)]
    results = list(run_all(jobs, width=2, total_s=60, again=never))
    assert sorted(result.job.key for result in results) == list(range(7))
    assert {result.returncode for result in results} == {0}


def test_again_repeats_one_job_and_counts() -> None:
    jobs = [Job(key, ("/bin/sh", "-c", f"exit {key}"), 20) for key in (0, 1, 2)]

    def again(result: Result[int]) -> float | None:
        return 0.01 if result.returncode == 1 and result.job.attempt < 5 else None

    attempts = {
        result.job.key: result.job.attempt for result in run_all(jobs, width=2, total_s=60, again=again)
    }
    assert attempts == {0: 1, 1: 5, 2: 1}


def test_total_time_ends_what_runs_and_reports_what_never_ran() -> None:
    jobs = [Job(key, ("/bin/sleep", "1000"), 1000) for key in range(5)]
    began = time.monotonic()
    results = list(run_all(jobs, width=2, total_s=0.3, again=never))
    assert len(results) == 5
    assert all(result.returncode is None for result in results)
    assert time.monotonic() - began < 5
    assert not helper_pids()


def test_leaving_early_kills_what_runs() -> None:
    jobs = [Job(0, ("/bin/true",), 20), Job(1, ("/bin/sleep", "1000"), 1000)]
    results = run_all(jobs, width=2, total_s=1000, again=never)
    assert next(results).job.key == 0
    results.close()
    assert not helper_pids()


def test_guarded_program_ends_without_us() -> None:
    """What stops a target must end at its time even when nobody is left to kill it."""
    done = subprocess.run(guarded(("/bin/sleep", "1000"), 0.0), timeout=60)
    assert done.returncode == -14


def test_guarded_program_dies_with_us() -> None:
    code = """
import os, sys
from hangdoctor.collect.spawn import guarded
command = guarded(("/bin/sleep", "1000"), 900)
pid = os.posix_spawn(command[0], command, os.environ)
print(pid, flush=True)
os.read(0, 1)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as us:
        assert us.stdout is not None
        watch = os.pidfd_open(int(us.stdout.readline()))
        us.kill()
    assert select.select([watch], [], [], 20)[0]
    os.close(watch)


def test_rust_backtraces_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUST_BACKTRACE", "full")
    monkeypatch.setenv("KEPT", "yes")
    assert run(("/bin/sh", "-c", "echo $RUST_BACKTRACE$KEPT"), 20).stdout == b"yes\n"


_FIRST_READER = """
fork = os.fork
def note():
    say()
    os.fork = fork
    return fork()
os.fork = note
"""
_FIRST_PY_SPY = """
from hangdoctor.collect import own_stacks
own_stacks.read_stacks = lambda pid: None
spawn = os.posix_spawn
def note(path, *args, **kwargs):
    if "dump" in args[0]:
        say()
        os.posix_spawn = spawn
    return spawn(path, *args, **kwargs)
os.posix_spawn = note
"""


@pytest.mark.parametrize("first", [_FIRST_READER, _FIRST_PY_SPY], ids=["memory", "py-spy"])
def test_stacks_are_read_before_what_is_slow_is_imported(first: str) -> None:
    """On a terminal, too, where a spinner is shown: rich alone costs as much as the stacks of three ranks."""
    code = f"""
import os, sys
def say():
    heavy = sorted({{"rich", "psutil", "pynvml", "jinja2"}} & sys.modules.keys())
    print("read after", *heavy, file=sys.__stdout__, flush=True)
{first}
from hangdoctor.cli import run
run(["attach", sys.argv[1], "--snapshots", "2", "--interval", "0.05", "--json", "--no-bundle"])
"""
    terminal, stderr = pty.openpty()
    try:
        with stuck("c_hold.py") as target:
            done = subprocess.run(
                [sys.executable, "-c", code, str(target.pid)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "TERM": "xterm"},
                text=True,
                timeout=60,
                check=False,
            )
        shown = os.read(terminal, 1 << 16).decode()
    finally:
        os.close(stderr)
        os.close(terminal)
    assert done.stdout.splitlines()[:1] == ["read after"], shown
    assert "look 1 of 2" in shown
