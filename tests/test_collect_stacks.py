"""Which stacks are believed, and what py-spy's words mean."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoctor.collect import memory, pyspy, stacks
from hangdoctor.collect.processes import from_stat
from hangdoctor.collect.procfs import read_stat
from hangdoctor.collect.pyspy import Failure, Mode, PySpy, classify, command, explain, find_py_spy, is_python
from hangdoctor.collect.spawn import Job, Result
from hangdoctor.collect.stacks import (
    Dump,
    DumpedThread,
    FrameTable,
    find_suspicious,
    mark_torn,
    parse_threads,
)
from hangdoctor.model import Frame, Gap, Method, Process, Thread
from tests.conftest import stuck

LEAF, BODY = Frame("leaf", "/x/a.py", 3), Frame("body", "/x/a.py", 7)
ROOT, BOOT = Frame("<module>", "/x/a.py", 11), Frame("Thread._bootstrap", "/lib/threading.py", 1002)


def dumped(pthread: int, name: str | None, *frames: Frame, tid: int | None = None) -> DumpedThread:
    return DumpedThread(pthread, tid, name, False, frames)


def dump(*threads: DumpedThread) -> Dump:
    return Dump(4711, threads, Method.PY_SPY_NONBLOCKING, 100.0, 0.1)


def test_rooted_stacks_are_believed() -> None:
    assert not find_suspicious([dumped(1, "MainThread", LEAF, ROOT), dumped(2, "Thread-1", LEAF, BOOT)])


def test_stack_without_a_root_is_suspicious() -> None:
    assert find_suspicious([dumped(1, "MainThread", LEAF, ROOT), dumped(2, "Thread-1", LEAF, BODY)]) == {2}


def test_threads_from_c_may_have_any_root() -> None:
    assert not find_suspicious([dumped(1, "MainThread", LEAF, ROOT), dumped(2, None, LEAF)])


def test_when_no_thread_has_a_name_all_are_suspected() -> None:
    assert find_suspicious([dumped(1, None, LEAF, ROOT), dumped(2, None, LEAF)]) == {2}


def test_suspicious_stack_that_repeats_is_no_torn_one() -> None:
    first = dump(dumped(2, "Dummy-1", LEAF))
    assert not mark_torn(first, first).torn


def test_suspicious_stack_that_changes_is_torn() -> None:
    assert mark_torn(dump(dumped(2, "Thread-1", LEAF)), dump(dumped(2, "Thread-1", BODY))).torn == {2}
    assert mark_torn(dump(dumped(2, "Thread-1", LEAF)), None).torn == {2}


def test_second_look_replaces_a_torn_stack_by_a_whole_one() -> None:
    whole = dumped(2, "Thread-1", BODY, BOOT)
    found = mark_torn(dump(dumped(2, "Thread-1", LEAF)), dump(whole))
    assert not found.torn
    assert found.threads == (whole,)


JSON_THREAD = {
    "pid": 1,
    "thread_id": 77,
    "thread_name": None,
    "os_thread_id": 4712,
    "active": True,
    "owns_gil": True,
    "frames": [
        {
            "name": "wait",
            "filename": "/t.py",
            "line": 0,
            "module": None,
            "short_filename": "t.py",
            "locals": None,
        },
        {"name": "futex", "filename": "/libc.so", "line": 0, "module": "/libc.so"},
    ],
}


def test_json_as_py_spy_writes_it() -> None:
    (thread,) = parse_threads(json.dumps([JSON_THREAD]).encode(), FrameTable())
    assert (thread.pthread, thread.tid, thread.name, thread.owns_gil) == (77, 4712, None, True)
    assert thread.frames == (
        Frame("wait", "/t.py", None),
        Frame("futex", "/libc.so", None, "/libc.so", is_native=True),
    )


@pytest.mark.parametrize("data", [b"", b"{}x", b"[1]", b"null", b'[{"thread_id": 1}]'])
def test_other_json_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_threads(data, FrameTable())


def test_stacks_land_on_their_threads_through_the_pid_namespace() -> None:
    process = Process(4711, state="S", threads=(Thread(4711), Thread(4712), Thread(4713, comm="gloo")))
    found = dump(dumped(1, "MainThread", LEAF, ROOT, tid=1), dumped(2, "Thread-1", LEAF, BOOT, tid=9))
    merged, gaps = stacks.attach(process, found, {1: 4711, 9: 4712, 10: 4713}, frozenset((4711, 4712, 4713)))
    assert [(thread.tid, thread.name, thread.stack is None) for thread in merged.threads] == [
        (4711, "MainThread", False),
        (4712, "Thread-1", False),
        (4713, None, True),
    ]
    assert merged.taken_at == 100.0
    assert not gaps


def test_thread_that_began_after_the_kernel_was_read_is_kept() -> None:
    found = dump(dumped(2, "new", BOOT, tid=4799), dumped(3, "gone", BOOT, tid=4800))
    merged, _ = stacks.attach(Process(4711, threads=(Thread(4711),)), found, {}, frozenset((4711, 4799)))
    assert [thread.tid for thread in merged.threads] == [4711, 4799]


def test_missing_main_thread_is_said_and_a_dead_leader_is_not() -> None:
    found = dump(dumped(2, "other", LEAF, BOOT, tid=4712))
    process = Process(4711, state="S", threads=(Thread(4711), Thread(4712)))
    assert "sub-interpreter" in stacks.attach(process, found, {}, frozenset((4711, 4712)))[1][0].reason
    leaderless = Process(4711, state="Z", threads=process.threads)
    assert not stacks.attach(leaderless, found, {}, frozenset((4711, 4712)))[1]


def test_tid_is_found_at_the_offset_where_all_threads_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inner tids occur by chance elsewhere in struct pthread; only one offset gives each thread its own."""

    def block(tid: int) -> bytes:
        words = [0] * 256
        words[10], words[20], words[180] = 3, tid if tid != 7 else 3, tid
        # Every pointer into a mapping has the same upper half, and that may be the number of a thread.
        words[31:130:2] = [0x7F3C] * 50
        return struct.pack("<256i", *words)

    monkeypatch.setattr(memory, "gather", lambda pid, items: [block(1), None, block(3), block(7)])
    assert stacks.find_tids(4711, [100, 200, 300, 400], frozenset((1, 3, 5, 7, 0x7F3C))) == {
        100: 1,
        300: 3,
        400: 7,
    }


def result(stderr: str, code: int | None = 1, attempt: int = 1) -> Result[int]:
    return Result(Job(4711, ("py-spy",), 3, attempt), code, b"", stderr, 0.0, 3.0)


@pytest.mark.parametrize(
    ("words", "failure"),
    [
        ("Error: Failed to find a python interpreter in the .data section", Failure.MOVING),
        (
            "Error: Failed to call get_stack_trace for thread 1\n    Caused by: Bad address (os error 14)",
            Failure.MOVING,
        ),
        ("Error: Failed to find python version from target process", Failure.NOT_PYTHON),
        ("Permission Denied: Try running again with elevated permissions by going 'sudo'", Failure.DENIED),
        ("Error: Failed to suspend process\nCaused by: EPERM: Operation not permitted", Failure.DENIED),
        (
            "Error: Failed to get process executable name.\nCaused by: Permission denied (os error 13)",
            Failure.DENIED,
        ),
        (
            "Error: Failed to get process executable name.\nNo such file or directory (os error 2)",
            Failure.NO_FILE,
        ),
        ("Error: No such process (os error 3)", Failure.NO_FILE),
        ("thread 'main' panicked at config.rs", Failure.OTHER),
    ],
)
def test_words_of_py_spy(words: str, failure: Failure) -> None:
    assert classify(result(words)) is failure


def test_good_and_killed_runs() -> None:
    assert classify(result("", 0)) is None
    assert classify(result("", None)) is Failure.TIMEOUT


def test_failure_of_a_process_that_is_gone_is_no_gap() -> None:
    """A dying process makes py-spy say "permission denied" as well."""
    with stuck("c_hold.py") as program:
        stat = read_stat(program.pid)
        assert stat is not None
        process = from_stat(stat)
        assert explain(process, Failure.DENIED, result("os error 13"), is_resting=False) is not None
    assert explain(process, Failure.DENIED, result("os error 13"), is_resting=False) is None


def test_every_explanation_has_a_remedy() -> None:
    with stuck("c_hold.py") as program:
        stat = read_stat(program.pid)
        assert stat is not None
        process = replace(from_stat(stat), versions={"python": "3.11"})
        for failure in Failure:
            for is_resting in (False, True):
                gap = explain(process, failure, result("Error: x"), is_resting=is_resting)
                assert gap is not None and gap.reason.startswith("no stacks") and gap.remedy


def test_what_is_asked_for_stacks() -> None:
    assert is_python(Process(1, versions={"python": "3.11"}, exe="/opt/engine"))
    assert is_python(Process(1, exe="/usr/bin/python3.12"))
    assert is_python(Process(1, command=("VLLM::Worker",), thread_count=3))  # nothing may be seen of it
    assert not is_python(Process(1, exe="/usr/bin/ninja", command=("ninja",), thread_count=1))


def test_command_never_uses_subprocesses_and_stops_only_when_told() -> None:
    program = PySpy("/x/py-spy", "0.4.3")
    assert command(program, 7, Mode.NONBLOCKING)[-1] == "--nonblocking"
    assert not {"--nonblocking", "--native"} & set(command(program, 7, Mode.BLOCKING))
    assert all("--subprocesses" not in command(program, 7, mode) for mode in Mode)


def test_py_spy_is_found_beside_the_interpreter() -> None:
    found = find_py_spy()
    assert isinstance(found, PySpy)
    assert not found.is_old
    assert Path(found.path).is_absolute()


@pytest.mark.parametrize(
    ("version", "is_old"), [("0.3.14", True), ("0.4.0", True), ("0.4.1", False), ("1.0.0", False)]
)
def test_old_versions(version: str, is_old: bool) -> None:
    assert PySpy("/x", version).is_old is is_old


@pytest.fixture
def no_py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which it is not installed; files made in the folder returned are found instead."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_missing_py_spy_is_a_gap_with_the_command_to_install_it(no_py_spy: Path) -> None:
    found = find_py_spy()
    assert isinstance(found, Gap) and found.remedy is not None and "pip install" in found.remedy


@pytest.mark.parametrize("content", ["#!/bin/sh\necho no version\n", "not a program"])
def test_broken_py_spy_is_a_gap(no_py_spy: Path, content: str) -> None:
    program = no_py_spy / "py-spy"
    program.write_text(content)
    program.chmod(0o755)
    assert isinstance(find_py_spy(), Gap)


def test_py_spy_that_never_answers_is_a_gap(no_py_spy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = no_py_spy / "py-spy"
    program.write_text(f"#!/bin/sh\nexec {shutil.which('sleep', path='/bin:/usr/bin')} 1000\n")
    program.chmod(0o755)
    run = pyspy.run
    monkeypatch.setattr(pyspy, "run", lambda command, deadline_s: run(command, 0.2))
    assert isinstance(find_py_spy(), Gap)


def test_py_spy_has_not_changed_its_words() -> None:
    """The table above is only as good as the program that is installed."""
    found = find_py_spy()
    assert isinstance(found, PySpy)
    with stuck("c_deep.py", 10_000) as program:
        deep = subprocess.run(command(found, program.pid, Mode.NONBLOCKING), capture_output=True, text=True)
    assert classify(result(deep.stderr, deep.returncode)) is Failure.MOVING
    with subprocess.Popen(["sleep", "1000"]) as sleep:
        other = subprocess.run(command(found, sleep.pid, Mode.NONBLOCKING), capture_output=True, text=True)
        sleep.kill()
    assert classify(result(other.stderr, other.returncode)) is Failure.NOT_PYTHON
