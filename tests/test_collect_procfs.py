"""The kernel's formats, on lines that real kernels wrote and on real processes with hostile names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from hangdoctor.collect import procfs
from hangdoctor.collect.procfs import Stat, descend, parse_stat, parse_status, parse_thread_stat
from hangdoctor.collect.tree import Member, Tree, grow
from tests.conftest import stuck

ZOMBIE = (
    b"4711 (a) R 1 (\xff\n) Z 4700 4711 4711 0 -1 4227084 126 0 0 0 3 5 0 0 20 0 1 0 12345 0 0 "
    b"18446744073709551615 0 0 0 0 0 0 0 16781312 2 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 9\n"
)


def test_comm_ends_at_the_last_bracket() -> None:
    stat = parse_stat(ZOMBIE)
    assert (stat.pid, stat.comm, stat.state, stat.ppid) == (4711, "a) R 1 (\\xff\n", "Z", 4700)
    assert (stat.user_ticks, stat.system_ticks, stat.start_ticks, stat.thread_count) == (3, 5, 12345, 1)
    assert stat.wait_status == 9


def test_only_the_dead_have_a_wait_status() -> None:
    assert parse_stat(ZOMBIE.replace(b") Z ", b") S ")).wait_status is None


@pytest.mark.parametrize("line", [b"", b"1", b"1 (x)", b"1 (x) S 1 2", b"nonsense"])
def test_what_is_no_stat_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        parse_stat(line)
    with pytest.raises(ValueError):
        parse_thread_stat(line)


def test_a_thread_s_line_is_read_as_that_of_its_process() -> None:
    lines = [ZOMBIE, *(path.read_bytes() for path in Path("/proc/self/task").glob("*/stat"))]
    for line in lines:
        thread, stat = parse_thread_stat(line), parse_stat(line)
        assert thread == tuple(getattr(stat, name) for name in thread._fields)
    of_an_old_kernel = b" ".join(ZOMBIE.split(b" ")[:30])
    assert parse_thread_stat(of_an_old_kernel).cpu == parse_stat(of_an_old_kernel).cpu == 0


def test_kernel_threads_are_told_by_their_flag() -> None:
    assert not parse_stat(ZOMBIE).is_kernel_thread
    assert parse_stat(ZOMBIE.replace(b"4227084", b"2129984")).is_kernel_thread


def test_status_of_an_old_kernel_lacks_lines() -> None:
    status = parse_status(b"Name:\tx\nTgid:\t7\nUid:\t1000\t1000\t1000\t1000\n")
    assert (status.tgid, status.uid, status.tracer_pid, status.ns_pids) == (7, 1000, 0, ())
    assert status.voluntary_switches is None


def test_status_lists_one_pid_a_namespace() -> None:
    assert parse_status(b"Tgid:\t70\nNSpid:\t70\t7\nTracerPid:\t3\n").ns_pids == (70, 7)


def test_hostile_process_is_read_as_it_is() -> None:
    with stuck("c_hostile.py") as program:
        stat = procfs.read_stat(program.pid)
        command = procfs.read_command(program.pid)
    assert stat is not None
    assert stat.comm == "a) R 1 (\\xff\n\x1b"
    assert command[2:] == ("\\xff\\xfe [red]\x1b[31m\n", "", "--last")


def test_title_padding_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    title = b"VLLM::Worker_TP1" + b" " * 40 + b"\0" * 7
    monkeypatch.setattr(procfs, "read_bytes", lambda path, limit: title)
    assert procfs.read_command(1) == ("VLLM::Worker_TP1",)


def test_kernel_threads_and_zombies_have_no_command() -> None:
    with stuck("c_zombie.py", "0") as program:
        assert procfs.read_command(int(program.said[0].split()[1])) == ()


def test_a_process_that_is_gone() -> None:
    with stuck("c_hold.py") as program:
        pass
    assert procfs.read_stat(program.pid) is None
    assert procfs.read_status(program.pid) is None
    assert procfs.list_tids(program.pid) == []


def test_start_time_is_near_the_truth() -> None:
    stat = procfs.read_stat(os.getpid())
    assert stat is not None
    started = procfs.started_at(stat.start_ticks)
    assert started is not None
    assert abs(started - Path(f"/proc/{os.getpid()}").stat().st_ctime) < 3600


def row(pid: int, ppid: int, start: int | None = None, state: str = "S") -> Stat:
    return Stat(
        pid, "x", state, ppid, 1, 1, 0, 0, 0, 0, 1, pid if start is None else start, 0, False, 0, None
    )


def table(*rows: Stat) -> Mapping[int, Stat]:
    return {stat.pid: stat for stat in rows}


def test_descend_takes_parents_before_children_and_ends_on_cycles() -> None:
    # Re-parenting between two reads can make a cycle of what is none.
    rows = table(row(910, 1), row(911, 910), row(905, 911), row(913, 914), row(914, 913), row(999, 1))
    assert descend(rows, [910]) == [910, 911, 905]
    assert descend(rows, [913]) == [913, 914]


def test_tree_keeps_members_that_were_re_parented_and_takes_new_children() -> None:
    tree = Tree(910, "pid 910", (Member(910, 910), Member(911, 911), Member(912, 912)))
    now = table(row(911, 1), row(912, 1, state="Z"), row(950, 911))
    assert grow(tree, now).pids == (911, 912, 950)


def test_tree_drops_a_pid_that_was_reused() -> None:
    tree = Tree(910, "pid 910", (Member(910, 910), Member(911, 911)))
    now = table(row(910, 1), row(911, 1, start=99_999))
    assert grow(tree, now).pids == (910,)


def test_tree_never_holds_ourselves() -> None:
    tree = Tree(910, "pid 910", (Member(910, 910),))
    now = table(row(910, 1), row(os.getpid(), 910), row(912, 910))
    assert grow(tree, now).pids == (910, 912)
