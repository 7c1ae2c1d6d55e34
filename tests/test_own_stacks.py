"""Stacks by hangdoctor's own reader: the same as py-spy's, for every interpreter that it claims to know."""

from __future__ import annotations

import dis
import itertools
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from hangdoctor.collect import (
    Plan,
    dumps,
    own_stacks,
    remote_debugging,
    schedule,
    stack_sources,
    stacks,
    take_capture,
)
from hangdoctor.collect.cpython import interpreter, traces, view
from hangdoctor.collect.cpython.chains import Trace
from hangdoctor.collect.cpython.frames import FrameReader
from hangdoctor.collect.cpython.lines import find_line
from hangdoctor.collect.cpython.traces import trace_threads
from hangdoctor.collect.deadline import Trouble
from hangdoctor.collect.own_stacks import read_stacks
from hangdoctor.collect.stacks import Dump
from hangdoctor.model import Gap, Method, Process
from tests.b_support import eventually, list_pythons
from tests.conftest import stuck
from tests.test_collect_capture import look_once, tree_of


def seen(process: Process) -> dict[int | None, tuple[str | None, tuple[tuple[str, str, int | None], ...]]]:
    """Tid to name and frames."""
    return {
        thread.tid: (
            thread.name,
            tuple((f.function, f.file, f.line) for f in thread.stack.frames) if thread.stack else (),
        )
        for thread in process.threads
    }


def without_our_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_stacks, "read_stacks", lambda pid: None)


@pytest.mark.parametrize("python", list_pythons(), ids=lambda path: "-".join(Path(path).parts[-3:]))
def test_as_py_spy_reads_them(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with stuck("c_threads.py", 5, 40, "own", python=python) as target:
        ours, gaps = look_once(target.pid)
        without_our_reader(monkeypatch)
        theirs, _ = look_once(target.pid)
    assert {t.stack.method for t in theirs.threads if t.stack} == {Method.PY_SPY_NONBLOCKING}
    assert {t.stack.method for t in ours.threads if t.stack} == {Method.MEMORY}
    assert len(ours.threads) == 6 and seen(ours) == seen(theirs)
    assert not gaps


def test_who_has_the_gil() -> None:
    """One thread never lets go of it; the main thread rests in a read."""
    with stuck("c_spin.py", 1) as target:
        dump = eventually(
            lambda: next((d for _ in range(50) if (d := read_stacks(target.pid)) and holders(d)), None)
        )
    assert holders(dump).isdisjoint({target.pid})


def holders(dump: Dump) -> set[int | None]:
    return {thread.tid for thread in dump.threads if thread.owns_gil}


_ISOLATED = """
import sys, threading, time
try:
    import _interpreters as interpreters
    kept = [interpreters.create("isolated") for _ in range(2)]
except ImportError:
    import _xxsubinterpreters as interpreters
    kept = [interpreters.create() for _ in range(2)]
def spin():
    while True:
        pass
threading.Thread(target=spin, daemon=True).start()
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("python", list_pythons(), ids=lambda path: "-".join(Path(path).parts[-3:]))
def test_who_has_the_gil_beside_interpreters_with_one_of_their_own(python: str) -> None:
    """The newest interpreter comes first, and rests with its GIL free."""
    with subprocess.Popen([python, "-c", _ISOLATED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as target:
        assert target.stdout is not None and target.stdout.readline() == b"started\n"
        dump = eventually(
            lambda: next((d for _ in range(50) if (d := read_stacks(target.pid)) and holders(d)), None)
        )
        target.kill()
    assert len(dump.threads) == 2 and holders(dump).isdisjoint({target.pid})


_HOT_STACKS = {("spin",), ("branch", "spin"), ("leaf", "branch", "spin")}


@pytest.mark.parametrize("program", ["c_spin.py", "c_spin_c.py"])
@pytest.mark.parametrize("python", list_pythons(), ids=lambda path: "-".join(Path(path).parts[-3:]))
def test_no_stack_is_made_up_of_a_thread_that_runs_hot(python: str, program: str) -> None:
    """Three threads go up and down three calls without a rest: what is believed has been there.

    (py-spy fails for a third to four fifths of such processes, and 1 to 5 % of what it then says never was.)
    """
    believed: list[tuple[str, ...]] = []
    with stuck(program, 3, python=python) as target:
        for _ in range(60):
            dump = read_stacks(target.pid)
            assert dump is not None
            believed += [
                tuple(frame.function for frame in thread.frames)
                for thread in dump.threads
                if thread.tid != target.pid and thread.pthread not in dump.torn
            ]
    roots = ("run", "_bootstrap_inner", "_bootstrap")
    for stack in set(believed):
        assert tuple(name.rpartition(".")[2] for name in stack[-3:]) == roots
    assert {stack[:-3] for stack in believed} <= _HOT_STACKS
    assert len(believed) > 60 and len({stack[:-3] for stack in believed}) > 1


def cut(trace: Trace) -> Trace:
    return replace(trace, points=trace.points[:-1], addresses=trace.addresses[:-1], is_whole=False)


def lie_first(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ``times`` looks see every chain of frames break before its end."""
    left = itertools.count(times, -1)

    def look(*args: Any) -> list[Trace]:
        traces = trace_threads(*args)
        return [cut(trace) for trace in traces] if next(left) > 0 else traces

    monkeypatch.setattr(view, "trace_threads", look)


def test_a_broken_stack_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with stuck("c_threads.py", 3, 4, "own") as target:
        whole = read_stacks(target.pid)
        lie_first(3, monkeypatch)
        again = read_stacks(target.pid)
    assert whole is not None and again is not None
    # The main thread, the last of them, may still be on its way into its wait.
    assert again.threads[:-1] == whole.threads[:-1] and not again.torn


def test_a_stack_that_stays_broken_is_torn_however_often_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stuck("c_threads.py", 3, 4, "own") as target:
        lie_first(9, monkeypatch)
        dump = read_stacks(target.pid)
    assert dump is not None
    assert dump.torn == {thread.pthread for thread in dump.threads}


def test_frames_without_names_are_no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they would be with the offsets of another version."""
    monkeypatch.setattr(FrameReader, "name_of", lambda self, code: ("", ""))
    with stuck("c_threads.py", 3, 4, "own") as target:
        dump = read_stacks(target.pid)
    assert dump is not None and len(dump.torn) == len(dump.threads) == 4
    assert not any(thread.frames for thread in dump.threads)


def test_a_thread_made_by_c_code_may_have_any_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not end where Python's own do, but it is the same whenever one looks."""
    monkeypatch.setattr(stacks, "_ROOTS", frozenset())
    with stuck("c_threads.py", 3, 4, "own") as target:
        dump = read_stacks(target.pid)
    assert dump is not None and not dump.torn


_NAMED = """
import sys, threading
class Waiter(threading.Thread):
    def __init__(self, device, label):
        self.device, self.label = device, label
        super().__init__(daemon=True)
    def run(self):
        threading.Event().wait()
Waiter("cuda:0", "no-name").start()
threading.Thread(target=threading.Event().wait, name="t\u00e4st", daemon=True).start()
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("python", list_pythons(), ids=lambda path: "-".join(Path(path).parts[-3:]))
def test_an_attribute_of_a_subclass_is_no_name(python: str) -> None:
    """It stands where ``_name`` does in a plain thread, and is a text, too."""
    words = [python, "-X", "utf8", "-c", _NAMED]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as target:
        assert target.stdout is not None and target.stdout.readline() == "started\n"
        found = eventually(
            lambda: next(
                (
                    dump
                    for dump in [read_stacks(target.pid)]
                    if dump
                    and not dump.torn
                    and all(len(t.frames) > 2 for t in dump.threads if t.tid != target.pid)
                ),
                None,
            )
        )
        target.kill()
    assert {thread.name for thread in found.threads} == {None, "t\u00e4st", "MainThread"}


def test_a_process_has_so_many_frames_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_POINTS", 12)
    with stuck("c_threads.py", 7, 20, "own") as target:
        dump = read_stacks(target.pid)
    assert dump is not None and len(dump.threads) == 8
    whole = [thread for thread in dump.threads if thread.pthread not in dump.torn]
    assert len(whole) == own_stacks._LOOKS and len(whole[0].frames) > 20  # one a look


def test_what_is_no_python_has_none() -> None:
    with subprocess.Popen(["sleep", "1000"]) as sleep:
        assert read_stacks(sleep.pid) is None
        sleep.kill()


def test_cost_of_200_threads() -> None:
    """A budget with room for a busy machine."""
    with stuck("b_locks.py", "many") as target:
        pid = int(target.said[0].split()[0])
        costs = []
        for _ in range(3):
            start = time.process_time()
            dump = read_stacks(pid)
            costs.append(time.process_time() - start)
    assert dump is not None and len(dump.threads) == 201
    assert min(costs) < 0.1


# --- who reads whom -----------------------------------------------------------------------------------


def methods(process: Process) -> set[Method]:
    return {thread.stack.method for thread in process.threads if thread.stack}


def test_what_is_torn_is_for_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    lie_first(9, monkeypatch)
    with stuck("c_threads.py", 3, 4, "own") as target:
        process, gaps = look_once(target.pid)
    assert methods(process) == {Method.PY_SPY_NONBLOCKING} and not gaps


def test_a_process_without_its_main_thread_is_for_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_main(pid: int) -> Dump | None:
        dump = read_stacks(pid)
        return dump and replace(dump, threads=tuple(t for t in dump.threads if t.tid != pid))

    monkeypatch.setattr(own_stacks, "read_stacks", without_main)
    with stuck("c_threads.py", 3, 4, "own") as target:
        process, _ = look_once(target.pid)
    assert methods(process) == {Method.PY_SPY_NONBLOCKING} and len(process.threads) == 4


def test_of_two_readings_the_one_with_fewer_torn_stacks_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = tuple(stacks.DumpedThread(tid, tid, None, False, ()) for tid in (7, 8, 9))

    def reading(method: Method, *torn: int) -> Dump:
        return Dump(7, threads, method, 0.0, 0.0, frozenset(torn))

    ours = reading(Method.MEMORY, 8)
    monkeypatch.setattr(own_stacks, "read_stacks", lambda pid: ours)
    for others, expected in ((reading(Method.REMOTE_DEBUGGING), Method.REMOTE_DEBUGGING),
                             (reading(Method.REMOTE_DEBUGGING, 7, 8), Method.MEMORY)):  # fmt: skip
        monkeypatch.setattr(remote_debugging, "read_stacks", lambda pid, dump=others: dump)
        taken = stack_sources.read_memory(stack_sources.Asked(7, is_same_version=True))
        assert taken is not None and taken.method is expected


@pytest.mark.parametrize(("method", "main_tid"), [(Method.MEMORY, 4711), (Method.REMOTE_DEBUGGING, 7)])
def test_the_main_thread_of_a_container_is_known_by_both_of_its_numbers(
    method: Method, main_tid: int
) -> None:
    process = Process(4711, state="S", ns_pid=7)
    threads = (stacks.DumpedThread(1, main_tid, None, False, ()),)
    dump = Dump(4711, threads, method, 0.0, 0.0)
    assert stack_sources._has_main_thread(process, dump)
    other = replace(dump, threads=(replace(threads[0], tid=main_tid + 1),))
    assert not stack_sources._has_main_thread(process, other)


def test_what_neither_can_read_well_keeps_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lie_first(9, monkeypatch)
    monkeypatch.setattr(dumps, "command", lambda *args: ("/bin/sh", "-c", "echo Error: no luck >&2; exit 1"))
    with stuck("c_threads.py", 3, 4, "own") as target:
        process, gaps = look_once(target.pid)
    assert methods(process) == {Method.MEMORY}
    assert all(thread.stack is not None and thread.stack.is_torn for thread in process.threads)
    (gap,) = gaps
    assert gap.reason.startswith("no stacks by py-spy, only by our own reader: py-spy ended with 1: no luck")


def test_memory_that_may_not_be_read_is_a_gap_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(own_stacks, "read_stacks", refuse)
    without_py_spy(monkeypatch)
    with stuck("c_hold.py") as target:
        process, gaps = look_once(target.pid)
    (gap,) = gaps
    assert (gap.source, gap.subject) == ("stacks", f"pid {target.pid}")
    assert "may not be read" in gap.reason and gap.remedy
    assert not methods(process)


def test_another_version_is_a_gap_that_names_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "choose_layout", lambda *args: None)
    without_py_spy(monkeypatch)
    with stuck("c_hold.py") as target:
        process, gaps = look_once(target.pid)
    (gap,) = gaps
    assert "CPython 3.10 to 3.14" in gap.reason and "py-spy" in (gap.remedy or "")
    assert not methods(process)


def test_what_is_no_python_is_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    without_py_spy(monkeypatch)
    with subprocess.Popen(["sleep", "1000"]) as sleep:
        process, gaps = look_once(sleep.pid)
        sleep.kill()
    assert not methods(process) and not gaps


def without_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "find_py_spy", lambda: Gap("py-spy", "this machine", "not here"))


def test_a_trouble_is_told_from_a_refusal() -> None:
    process = Process(7, state="S")
    slow = stack_sources._explain(process, Trouble("did not return within 1.0 s and was abandoned", True))
    assert slow is not None and "did not return" in slow.reason and slow.remedy is None


def test_the_whole_capture_without_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Gap("py-spy", "this machine", "py-spy is not installed", "pip install py-spy")
    monkeypatch.setattr(schedule, "find_py_spy", lambda: missing)
    with stuck("c_threads.py", 3, 2) as target:
        capture = take_capture(tree_of(target.pid), Plan(snapshots=1, use_gpu=False))
    assert capture.gaps == (missing,)
    assert all(thread.stack is not None for thread in capture.snapshots[0].processes[0].threads)


# --- line tables --------------------------------------------------------------------------------------


def every_code(code: CodeType) -> list[CodeType]:
    return [code, *(c for const in code.co_consts if isinstance(const, CodeType) for c in every_code(const))]


def test_lines_are_found_as_the_interpreter_finds_them() -> None:
    """For every instruction of this module and of two large ones of the standard library."""
    is_old = sys.version_info < (3, 11)
    for module in (sys.modules[__name__], dis, os):
        source = Path(module.__file__ or "").read_text()
        for code in every_code(compile(source, "m", "exec")):
            for start, end, line in code.co_lines():
                for unit in range(start // 2, end // 2):
                    found = find_line(code.co_linetable, code.co_firstlineno, unit, is_old=is_old)
                    assert found == line


@pytest.mark.parametrize("table", [b"", b"\x00", b"\x01", b"\x05\x03\xff", bytes(range(64)), b"\xf8" * 5])
@pytest.mark.parametrize("is_old", [True, False])
def test_beyond_the_end_of_a_table_there_is_no_line(table: bytes, is_old: bool) -> None:
    """Also of one that was cut off, or never was one."""
    assert find_line(table, 7, 100_000, is_old=is_old) is None
