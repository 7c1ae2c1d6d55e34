"""Stacks by hangdoctor's own reader: the same as py-spy's, for every interpreter that it claims to know."""

from __future__ import annotations

import dis
import os
import subprocess
import sys
import time
from pathlib import Path
from types import CodeType

import pytest

from hangdoctor.collect import Plan, own_stacks, schedule, take_capture
from hangdoctor.collect.cpython.lines import find_line
from hangdoctor.collect.deadline import Trouble
from hangdoctor.collect.own_stacks import amend, read_stacks, read_stacks_of
from hangdoctor.collect.stacks import Dump, DumpedThread
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


@pytest.mark.parametrize("python", list_pythons(), ids=lambda path: "-".join(Path(path).parts[-3:]))
def test_as_py_spy_reads_them(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with stuck("c_threads.py", 5, 40, "own", python=python) as target:
        theirs, _ = look_once(target.pid)
        monkeypatch.setattr(schedule, "find_py_spy", lambda: Gap("py-spy", "this machine", "not here"))
        ours, gaps = look_once(target.pid)
    assert {t.stack.method for t in theirs.threads if t.stack} == {Method.PY_SPY_NONBLOCKING}
    assert {t.stack.method for t in ours.threads if t.stack} == {Method.MEMORY}
    assert len(ours.threads) == 6 and seen(ours) == seen(theirs)
    assert [gap for gap in gaps if gap.source == "stacks"] == []


def test_who_has_the_gil() -> None:
    """One thread never lets go of it; the main thread rests in a read."""
    with stuck("c_spin.py", 1) as target:
        dump = eventually(
            lambda: next((d for _ in range(50) if (d := read_stacks(target.pid)) and holders(d)), None)
        )
    assert holders(dump).isdisjoint({target.pid})


def holders(dump: Dump) -> set[int | None]:
    return {thread.tid for thread in dump.threads if thread.owns_gil}


def test_a_stack_that_moves_is_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the threads that rest beside it are not."""
    with stuck("c_spin.py", 1) as target:
        dump = read_stacks(target.pid)
        assert dump is not None
        resting = next(thread for thread in dump.threads if thread.tid == target.pid)
        assert resting.pthread not in dump.torn
        first = iter([True])
        read_all = own_stacks._read_all

        def changed(*args: object) -> list[DumpedThread]:
            """Every second look sees nothing of what the first saw."""
            threads = read_all(*args)  # type: ignore[arg-type]
            return threads if next(first, False) else []

        monkeypatch.setattr(own_stacks, "_read_all", changed)
        again = read_stacks(target.pid)
        assert again is not None and resting.pthread in again.torn


def test_what_is_no_python_has_none() -> None:
    with subprocess.Popen(["sleep", "1000"]) as sleep:
        assert read_stacks(sleep.pid) is None
        sleep.kill()


def test_memory_that_may_not_be_read_is_a_gap_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(own_stacks, "read_stacks", refuse)
    with stuck("c_hold.py") as target:
        process, _ = look_once(target.pid)
        run = read_stacks_of([process], total_s=10.0)
    (gap,) = run.gaps
    assert (gap.source, gap.subject) == ("stacks", f"pid {target.pid}")
    assert "may not be read" in gap.reason and gap.remedy
    assert not run.dumps


def test_py_spys_gap_says_what_is_left_to_miss() -> None:
    own = own_stacks.StackRun(dumps={7: None})  # type: ignore[dict-item]
    gaps = [Gap("py-spy", "pid 7", "no stacks: x", "y"), Gap("py-spy", "pid 8", "no stacks: x", "y")]
    assert [gap.reason for gap in amend(gaps, own)] == [
        "no stacks by py-spy, only by our own reader: x",
        "no stacks: x",
    ]


def test_a_trouble_is_told_from_a_refusal() -> None:
    slow = own_stacks._explain(7, Trouble("did not return within 1.0 s and was abandoned", True))
    assert "did not return" in slow.reason and slow.remedy is None


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
    assert min(costs) < 0.2


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


def test_the_whole_capture_without_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Gap("py-spy", "this machine", "py-spy is not installed", "pip install py-spy")
    monkeypatch.setattr(schedule, "find_py_spy", lambda: missing)
    with stuck("c_threads.py", 3, 2) as target:
        capture = take_capture(tree_of(target.pid), Plan(snapshots=1, use_gpu=False))
    assert capture.gaps == (missing,)
    assert all(thread.stack is not None for thread in capture.snapshots[0].processes[0].threads)
