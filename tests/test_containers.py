"""Targets in namespaces of their own, and a hangdoctor that was given less: what is still told, and what to type."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from hangdoctor.collect import denials, thread_steps
from hangdoctor.collect.denials import explain_denial
from hangdoctor.collect.threads import ThreadTable
from hangdoctor.model import Thread
from tests.conftest import stuck
from tests.lacking import Said, has_privileges, look
from tests.test_collect_capture import look_once

needs_root = pytest.mark.skipif(
    not has_privileges() or shutil.which("unshare") is None or shutil.which("setpriv") is None,
    reason="only root makes namespaces and gives capabilities away",
)
ONE_LOOK = ("--snapshots", "1")


def gaps_of(said: Said, source: str) -> list[dict[str, str]]:
    return [gap for gap in said.report["gaps"] if gap["source"] == source]


# --- namespaces ---------------------------------------------------------------------------------------


@needs_root
def test_a_file_that_only_the_targets_mount_namespace_has(tmp_path: Path) -> None:
    """Its size comes through /proc/PID/root, and the host's file of the same name is not asked."""
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model-00001-of-00002.safetensors").write_bytes(b"host" * 1000)
    inside = tmp_path / "python-in-mounts"
    inside.write_text(
        "#!/bin/sh\n"
        f'exec unshare --mount sh -c \'mount -t tmpfs none {weights} && exec {sys.executable} "$@"\' sh "$@"\n'
    )
    inside.chmod(0o755)
    with stuck("b_reader.py", weights, python=str(inside)) as target:
        process, _ = look_once(target.pid)
    opened = next(file for file in process.files if file.target.endswith(".safetensors"))
    assert (opened.size_bytes, opened.position) == (7 << 20, 3 << 20)
    assert opened.target == str(weights / "model-00001-of-00002.safetensors")


@needs_root
def test_a_target_in_another_pid_namespace_is_named_by_the_hosts_numbers(tmp_path: Path) -> None:
    inside = tmp_path / "python-in-pids"
    inside.write_text(f'#!/bin/sh\nexec unshare --pid --fork --mount-proc {sys.executable} "$@"\n')
    inside.chmod(0o755)
    with stuck("b_locks.py", "held_with", python=str(inside)) as target:
        inner = int(target.said[0].split()[0])
        child = int(Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().split()[0])
        said = look(child, "everything", ONE_LOOK)
    row = next(row for row in said.report["processes"] if row["pid"] == child)
    assert inner != child and len(row["threads"]) == 3
    assert all(thread["tid"] >= child for thread in row["threads"])
    assert {frame["function"] for thread in row["threads"] for frame in thread["stack"]} >= {"hold_with"}
    (wait,) = [w for w in said.report["waits"] if w["from"]["pid"] == child and w["to"]]
    assert wait["to"]["pid"] == child and wait["to"]["tid"] in {t["tid"] for t in row["threads"]}


# --- a hangdoctor with less ---------------------------------------------------------------------------


@needs_root
def test_root_without_the_capability_is_told_of_it() -> None:
    """As in a container that was started without SYS_PTRACE, looking at a process that has more."""
    setpriv = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    with stuck("b_locks.py", "held_with") as target:
        said = look(target.pid, "everything", ONE_LOOK, prefix=setpriv)
    assert said.kind != "hung" and said.report["processes"][0]["threads"]
    refused = [gap for gap in said.report["gaps"] if "CAP_SYS_PTRACE" in gap["reason"]]
    assert {gap["source"] for gap in refused} >= {"proc", "py-spy"}
    assert all("--cap-add SYS_PTRACE" in gap["remedy"] for gap in refused)


def test_a_seccomp_filter_alone_costs_nothing() -> None:
    """A profile forbids process_vm_readv and not the file, so memory is read all the same, by py-spy and by us."""
    with stuck("b_locks.py", "held_with") as target:
        whole, filtered = (look(target.pid, tier, ONE_LOOK) for tier in ("everything", "seccomp"))
    assert filtered.agrees_with(whole)
    for said in (whole, filtered):
        stacks = [t["stack"] for row in said.report["processes"] for t in row["threads"]]
        assert len(stacks) == 3 and all(stacks)
        assert [wait["strength"] for wait in said.report["waits"] if wait["to"]] == ["likely"]
        assert not gaps_of(said, "py-spy") and not gaps_of(said, "locks")


def test_without_attach_every_missing_field_is_a_gap_with_one_line_to_type() -> None:
    with stuck("b_locks.py", "held_with") as target:
        said = look(target.pid, "no attach", ONE_LOOK)
    reasons = " | ".join(f"{gap['source']}: {gap['reason']}" for gap in said.report["gaps"])
    assert "proc: not readable: its system calls and the owners of its locks" in reasons
    assert "stacks: no stacks: its memory may not be read" in reasons
    assert all(
        gap["remedy"] and "\n" not in gap["remedy"]
        for gap in said.report["gaps"]
        if gap["source"] in ("proc", "stacks", "py-spy", "environ", "locks")
    )
    row = said.report["processes"][0]
    assert len(row["threads"]) == 3 and all(thread["state"] == "S" for thread in row["threads"])
    assert said.kind in ("unknown", "ready")


def test_the_tiers_take_away_what_they_say() -> None:
    """So that the tests above cannot pass because nothing was taken."""
    with stuck("b_locks.py", "held_with") as target:
        said = {tier: look(target.pid, tier, ONE_LOOK) for tier in ("everything", "no py-spy", "no attach")}
    assert not gaps_of(said["everything"], "py-spy")
    assert [gap["subject"] for gap in gaps_of(said["no py-spy"], "py-spy")] == ["this machine"]
    threads = said["no attach"].report["processes"][0]["threads"]
    assert [thread["waits_on"] for thread in threads] == [None] * 3
    assert any("a seccomp filter" in gap["reason"] for gap in said["no attach"].report["gaps"])


@pytest.mark.parametrize(("state", "expected"), [("D", 1), ("S", 0)])
def test_kernel_stacks_are_missed_where_a_thread_is_held_up_in_the_kernel(state: str, expected: int) -> None:
    table = ThreadTable((Thread(7, state="S"), Thread(11, state=state)), has_kernel_stacks=False)
    gaps = thread_steps._missing_of(7, table)
    assert len(gaps) == expected
    assert [gap.remedy for gap in gaps] == ["sudo cat /proc/7/task/11/stack"] * expected


# --- causes -------------------------------------------------------------------------------------------


def make_proc(
    folder: Path,
    *,
    scope: int | None,
    own: tuple[int, int, int] = (1000, 0, 0),
    target: tuple[int, int, int] = (1000, 0, 0),
) -> str:
    """A /proc with ourselves and process 7; each is (uid, effective capabilities, seccomp mode)."""
    for name, (uid, capabilities, seccomp) in (("self", own), ("7", target)):
        (folder / name).mkdir(parents=True)
        text = (
            f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{capabilities:016x}\nSeccomp:\t{seccomp}\n"
        )
        (folder / name / "status").write_text(text)
    if scope is not None:
        yama = folder / "sys/kernel/yama"
        yama.mkdir(parents=True)
        (yama / "ptrace_scope").write_text(f"{scope}\n")
    return str(folder)


PTRACE = 1 << 19


@pytest.mark.parametrize(
    ("scope", "own", "target", "cause", "remedy"),
    [
        (
            1,
            (1000, 0, 0),
            (1000, 0, 0),
            "Yama: kernel.yama.ptrace_scope is 1",
            "sysctl kernel.yama.ptrace_scope=0",
        ),
        (2, (1000, 0, 0), (1000, 0, 0), "Yama: kernel.yama.ptrace_scope is 2", "sudo"),
        (3, (0, PTRACE, 0), (0, 0, 0), "Yama: kernel.yama.ptrace_scope is 3", "reboot"),
        (0, (1000, 0, 0), (1001, 0, 0), "another user (uid 1001)", "sudo"),
        (1, (1000, 0, 0), (1001, 0, 0), "another user (uid 1001)", "sudo"),
        (None, (0, 0, 0), (0, PTRACE, 0), "root without CAP_SYS_PTRACE", "--cap-add SYS_PTRACE"),
        (None, (1000, 0, 0), (1000, 1 << 21, 0), "capabilities that we lack", "sudo"),
        (None, (0, PTRACE, 2), (0, 0, 2), "a seccomp filter", "seccomp=unconfined"),
        (None, (0, PTRACE, 0), (0, 0, 0), "a security module", "apparmor=unconfined"),
    ],
)
def test_the_cause_of_a_refusal(
    scope: int | None,
    own: tuple[int, int, int],
    target: tuple[int, int, int],
    cause: str,
    remedy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(denials, "_owner", lambda path: target[0])
    proc = make_proc(tmp_path, scope=scope, own=own, target=target)
    denial = explain_denial(7, is_attach=True, proc=proc)
    assert cause in denial.cause and remedy in denial.remedy
    assert "\n" not in denial.remedy


@pytest.mark.parametrize("scope", [1, 2, 3])
def test_yama_is_never_blamed_for_what_it_does_not_refuse(
    scope: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, counters and descriptors are of the reading class."""
    monkeypatch.setattr(denials, "_owner", lambda path: 1000)
    denial = explain_denial(7, is_attach=False, proc=make_proc(tmp_path, scope=scope))
    assert "Yama" not in denial.cause


@pytest.mark.parametrize("scope", [1, 2])
def test_the_capability_passes_yama(scope: int, tmp_path: Path) -> None:
    proc = make_proc(tmp_path, scope=scope, own=(0, PTRACE, 0))
    assert "Yama" not in explain_denial(7, is_attach=True, proc=proc).cause


def test_what_is_not_dumpable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files belong to root although it does not."""
    monkeypatch.setattr(denials, "_owner", lambda path: 0)
    denial = explain_denial(7, is_attach=False, proc=make_proc(tmp_path, scope=None))
    assert "not dumpable" in denial.cause and "sudo" in denial.remedy


def test_a_proc_that_says_nothing_still_gives_something_to_type(tmp_path: Path) -> None:
    denial = explain_denial(os.getpid(), is_attach=True, proc=str(tmp_path))
    assert denial.cause and "sudo" in denial.remedy
