"""`hangdoctor check` tries things; every no comes with what to do."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from hangdoctor.collect import check as checking
from hangdoctor.collect.check import CheckResult, check
from hangdoctor.collect.deadline import Trouble, call
from hangdoctor.collect.stacks import Dump
from hangdoctor.model import Gap, Method
from tests.conftest import stuck


def by_name(results: tuple[CheckResult, ...]) -> dict[str, CheckResult]:
    assert all(result.remedy for result in results if result.ok is False)
    return {result.name: result for result in results}


def test_own_process_can_be_read() -> None:
    with stuck("c_hold.py") as target:
        found = by_name(check(target.pid))
    for name in ("open files", "system calls", "memory", "stacks", "py-spy", f"process {target.pid}"):
        assert found[name].ok, found[name]


def test_without_a_target_the_machine_is_checked() -> None:
    assert {"permission", "yama", "py-spy", "perf", "gpu", "container"} == set(by_name(check()))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_somebody_elses_process() -> None:
    with stuck("c_hold.py") as target:

        def as_nobody() -> tuple[CheckResult, ...]:
            os.setgid(65534)
            os.setuid(65534)
            return check(target.pid)

        answer = call(as_nobody, 60)
    assert not isinstance(answer, Trouble)
    found = by_name(answer)
    assert found["permission"].ok is None
    for name in ("open files", "system calls", "memory", "stacks"):
        assert found[name].ok is False
    assert "sudo" in (found["memory"].remedy or "")
    assert found["kernel stacks"].ok is None


def test_stopped_process_says_how_to_go_on() -> None:
    with stuck("c_hold.py") as target:
        os.kill(target.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, target.pid, os.WSTOPPED | os.WNOWAIT)
        assert by_name(check(target.pid))["stopped"].remedy == f"kill -CONT {target.pid}"


def test_zombie_and_missing_process() -> None:
    with stuck("c_zombie.py", 0) as target:
        zombie = int(target.said[0].split()[1])
        assert "zombie" in by_name(check(zombie))[f"process {zombie}"].detail
    assert by_name(check(target.pid))[f"process {target.pid}"].ok is False
    assert check(-1)[-1].ok is False


def test_program_that_is_no_python_is_no_failure() -> None:
    with subprocess.Popen(["sleep", "1000"]) as sleep:
        found = by_name(check(sleep.pid))
        sleep.kill()
    assert found["stacks"].ok is None


def test_missing_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Gap("py-spy", "this machine", "py-spy is not installed", "pip install py-spy")
    torn = Dump(1, (), Method.MEMORY, 0.0, 0.0, frozenset({7}))
    monkeypatch.setattr(checking, "find_py_spy", lambda: missing)
    assert by_name(check())["py-spy"] == CheckResult("py-spy", False, missing.reason, missing.remedy)
    with stuck("c_threads.py", 3, 2) as target:
        found = by_name(check(target.pid))["stacks"]
        assert (found.ok, found.remedy) == (True, None) and "4 threads" in found.detail
        monkeypatch.setattr(checking, "read_stacks", lambda pid: None)
        unknown = by_name(check(target.pid))["stacks"]
        assert (unknown.ok, unknown.remedy) == (None, missing.remedy)
        monkeypatch.setattr(checking, "read_stacks", lambda pid: torn)
        moving = by_name(check(target.pid))["stacks"]
        assert (moving.ok, moving.remedy) == (False, missing.remedy) and "1 threads run" in moving.detail
    monkeypatch.undo()
    monkeypatch.setattr(checking, "find_py_spy", lambda: missing)
    with subprocess.Popen(["sleep", "1000"]) as sleep:
        found = by_name(check(sleep.pid))["stacks"]
        sleep.kill()
    assert found.ok is None


def test_stacks_that_memory_does_not_give_are_py_spys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "read_stacks", lambda pid: None)
    with stuck("c_threads.py", 3, 2) as target:
        found = by_name(check(target.pid))["stacks"]
    assert found.ok is True and found.detail.startswith("py-spy read them")


@pytest.mark.parametrize(
    ("scope", "has_cap", "ok"), [(0, False, True), (1, False, False), (1, True, True), (3, True, False)]
)
def test_yama(scope: int, has_cap: bool, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/sys/kernel/yama/ptrace_scope": b"%d\n" % scope,
        "/proc/self/status": b"CapEff:\t%x\n" % (1 << 19 if has_cap else 0),
    }
    monkeypatch.setattr(checking, "read_bytes", lambda path: files[path])
    found = checking._check_yama()
    assert found.ok is ok
    assert str(scope) in found.detail


@pytest.mark.parametrize(("level", "ok"), [(2, True), (4, None)])
def test_perf(level: int, ok: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/sys/kernel/perf_event_paranoid": b"%d\n" % level, "/proc/self/status": b"CapEff:\t0\n"}
    monkeypatch.setattr(checking, "read_bytes", lambda path: files[path])
    assert checking._check_perf().ok is ok
