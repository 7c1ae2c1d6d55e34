"""From any process of a job to all of it, and never beyond."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangdoctor import discover
from hangdoctor.collect import procfs
from hangdoctor.collect.procfs import Stat
from hangdoctor.collect.tree import Tree
from hangdoctor.discover import Request, find_tree
from hangdoctor.errors import TargetNotFound, WrongUsage
from hangdoctor.knowledge import Knowledge, load_knowledge
from tests.conftest import PROGRAMS, Stuck, stuck

KNOWLEDGE = load_knowledge()
NAMES = ("top", "core", "rank-0", "rank-1", "rank-2")


@contextmanager
def family(folder: Path, top: str) -> Iterator[tuple[Stuck, Mapping[str, int]]]:
    """``c_family.py`` under the name ``top``; pids by name, ``sleep`` among them."""
    shutil.copy(PROGRAMS / "c_family.py", folder / top)
    shutil.copy(PROGRAMS / "handshake.py", folder)
    with stuck(str(folder / top), lines=5) as program:
        pids = {}
        for name, pid, *child in (line.split() for line in program.said):
            pids[name] = int(pid)
            if child:
                pids["sleep"] = int(child[0])
        yield program, pids


def find(pid: int) -> Tree:
    return find_tree(Request(pid=pid), KNOWLEDGE)


@pytest.mark.parametrize("start", [*NAMES, "sleep"])
def test_every_process_leads_to_the_launcher_and_down_to_all(tmp_path: Path, start: str) -> None:
    with family(tmp_path, "torchrun") as (_, pids):
        tree = find(pids[start])
    assert tree.root == pids["top"]
    assert set(tree.pids) >= set(pids.values())
    assert len(tree.pids) == len(pids) + 1  # and the shell around rank-0
    assert tree.members[0].pid == tree.root
    assert tree.asked == f"pid {pids[start]}"
    assert tree.asked_pid == pids[start]
    assert os.getpid() not in tree.pids


def test_server_is_named_by_its_titles(tmp_path: Path) -> None:
    with family(tmp_path, "torchrun") as (_, pids):
        assert find(pids["core"]).server == "vllm"


def test_unknown_python_program_above_known_workers_is_the_root(tmp_path: Path) -> None:
    with family(tmp_path, "my_engine.py") as (_, pids):
        assert find(pids["rank-1"]).root == pids["top"]


def test_a_thread_id_means_its_process(tmp_path: Path) -> None:
    with family(tmp_path, "torchrun") as (_, pids):
        tids = procfs.list_tids(pids["rank-1"])
        other = next(tid for tid in tids if tid != pids["rank-1"])
        tree = find(other)
    assert tree.asked_pid == pids["rank-1"]
    assert tree.root == pids["top"]


def test_workers_of_a_dead_core_are_kept_by_their_session(tmp_path: Path) -> None:
    with family(tmp_path, "torchrun") as (_, pids):
        os.kill(pids["core"], signal.SIGKILL)
        wait_for_new_parent(pids["rank-1"], pids["core"])
        tree = find(pids["rank-0"])
    assert pids["rank-1"] in tree.pids
    assert pids["sleep"] in tree.pids
    # Its title says nothing, so it might be anybody's: sharing the session is not enough.
    assert pids["rank-2"] not in tree.pids


def test_an_orphaned_worker_finds_its_siblings_when_the_root_is_dead(tmp_path: Path) -> None:
    with family(tmp_path, "torchrun") as (program, pids):
        for name in ("core", "top"):
            os.kill(pids[name], signal.SIGKILL)
        program.popen.wait()
        wait_for_new_parent(pids["rank-1"], pids["core"])
        tree = find(pids["rank-1"])
    assert tree.root == pids["rank-1"]
    assert pids["sleep"] in tree.pids
    assert pids["rank-2"] not in tree.pids


def wait_for_new_parent(pid: int, old: int) -> None:
    """The kernel re-parents while the old parent exits; nothing tells when, so look until it has."""
    for _ in range(2000):
        stat = procfs.read_stat(pid)
        assert stat is not None
        if stat.ppid != old:
            return
        os.sched_yield()
    raise AssertionError(f"{pid} still belongs to {old}")


def test_name_finds_the_job_by_any_command_line_in_it(tmp_path: Path) -> None:
    with family(tmp_path, "torchrun") as (_, pids):
        tree = find_tree(Request(name=str(tmp_path)), KNOWLEDGE)
        assert tree.root == pids["top"]
        assert tree.asked == f"--name {tmp_path}"
        with pytest.raises(TargetNotFound, match="no command line fits"):
            find_tree(Request(name=f"{tmp_path}/nothing"), KNOWLEDGE)


def test_two_jobs_of_one_name_are_listed_without_their_secrets(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        family(tmp_path / "one", "torchrun") as (_, one),
        family(tmp_path / "two", "torchrun") as (_, two),
        pytest.raises(TargetNotFound, match="2 jobs fit") as caught,
    ):
        find_tree(Request(name=str(tmp_path)), KNOWLEDGE)
    assert str(one["top"]) in caught.value.message
    assert str(two["top"]) in caught.value.message
    assert "HANDSHAKE" not in caught.value.message


def test_port_means_who_listens() -> None:
    with stuck("c_listen.py") as program:
        port = int(program.said[0])
        tree = find_tree(Request(port=port), KNOWLEDGE)
    assert tree.root == program.pid
    assert tree.asked == f"--port {port}"


def test_port_of_nobody() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, so nobody else takes it, and not listening
        with pytest.raises(TargetNotFound, match="nobody listens"):
            find_tree(Request(port=free.getsockname()[1]), KNOWLEDGE)


def test_nothing_asked_finds_the_only_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with family(tmp_path, "torchrun") as (_, pids):
        only_ours(monkeypatch, pids["top"])
        tree = find_tree(Request(), KNOWLEDGE)
    assert tree.root == pids["top"]


def test_nothing_asked_and_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with stuck("c_hold.py") as program:
        only_ours(monkeypatch, program.pid)
        with pytest.raises(TargetNotFound, match="no known server"):
            find_tree(Request(), KNOWLEDGE)


def only_ours(monkeypatch: pytest.MonkeyPatch, session: int) -> None:
    """Other tests' jobs run on this machine at the same time."""
    table = {pid: stat for pid, stat in procfs.read_table().items() if stat.session == session}
    monkeypatch.setattr(procfs, "read_table", lambda: table)


def test_a_program_of_its_own_is_a_tree_of_one() -> None:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as sleep:
        try:
            tree = find(sleep.pid)
        finally:
            sleep.kill()
    assert tree.pids == (sleep.pid,)
    assert tree.server is None


def test_dead_pid_is_not_found() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    with pytest.raises(TargetNotFound, match=f"no process {ended.pid}") as caught:
        find(ended.pid)
    assert caught.value.hint


@pytest.mark.parametrize("pid", [0, -1, 1 << 40])
def test_impossible_pids_are_not_found(pid: int) -> None:
    with pytest.raises(TargetNotFound):
        find(pid)


def test_zombie_says_how_it_ended_and_who_should_reap_it() -> None:
    with stuck("c_zombie.py", "7", python=sys.executable) as program:
        zombie = int(program.said[0].split()[1])
        stat = procfs.read_stat(zombie)
        assert stat is not None and stat.state == "Z"
        # Its parent is a Python program of the same job, so the zombie leads to that job.
        tree = find(zombie)
    assert tree.root == program.pid
    assert zombie in tree.pids


def test_zombie_without_a_job_is_explained() -> None:
    with subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(TargetNotFound, match=r"zombie: it has ended \(exit code 7\)") as caught:
            find(ended.pid)
    assert str(os.getpid()) in caught.value.message


@pytest.mark.skipif(not Path("/proc/2/stat").exists(), reason="a PID namespace shows no kernel threads")
def test_kernel_thread_is_explained() -> None:
    with pytest.raises(TargetNotFound, match="kernel thread"):
        find(2)


def test_ourselves_are_refused() -> None:
    with pytest.raises(WrongUsage):
        find(os.getpid())


def test_two_questions_at_once_are_refused() -> None:
    with pytest.raises(WrongUsage, match="only one"):
        find_tree(Request(pid=1, name="x"), KNOWLEDGE)


def test_bad_pattern_is_wrong_usage() -> None:
    with pytest.raises(WrongUsage, match="regular expression"):
        find_tree(Request(name="("), KNOWLEDGE)


# --- shapes of process trees that a test machine does not have ------------------------------------------


def host(knowledge: Knowledge, *rows: tuple[int, int, int, int, str, str]) -> discover._Host:
    """Rows of (pid, parent, group, session, comm, command line)."""
    table = {
        pid: Stat(pid, comm, "S", ppid, group, session, 0, 0, 0, 0, 1, pid, 0, False, 0, None)
        for pid, ppid, group, session, comm, _ in rows
    }
    return discover._Host(table, knowledge, {row[0]: tuple(row[5].split()) for row in rows})


SSH_SESSION = (
    (900_001, 0, 900_001, 900_001, "systemd", "/sbin/init"),
    (900_002, 900_001, 900_002, 900_002, "sshd", "sshd: me"),
    (900_003, 900_002, 900_003, 900_003, "bash", "-bash"),
)


def test_login_shell_bounds_the_job() -> None:
    found = host(
        KNOWLEDGE,
        *SSH_SESSION,
        (900_010, 900_003, 900_010, 900_003, "bash", "bash run.sh"),
        (900_011, 900_010, 900_010, 900_003, "timeout", "timeout 600 python train.py"),
        (900_012, 900_011, 900_010, 900_003, "python", "python train.py"),
        (
            900_013,
            900_012,
            900_010,
            900_003,
            "python",
            "python -c from multiprocessing.spawn import spawn_main",
        ),
        (900_020, 900_003, 900_020, 900_003, "python", "python other.py"),
    )
    assert found.ancestors(900_013) == [900_013, 900_012, 900_011, 900_010]
    assert found.find_root(900_013) == 900_012
    assert found.grow_tree((900_012,), "x", None).pids == (900_012, 900_013)
    assert found.grow_tree((900_012,), "x", None).server is None


def test_entry_point_wins_over_the_program_that_started_it() -> None:
    found = host(
        KNOWLEDGE,
        *SSH_SESSION,
        (900_010, 900_003, 900_010, 900_003, "python", "python deploy_everything.py"),
        (900_011, 900_010, 900_010, 900_003, "vllm", "vllm serve some/model --tensor-parallel-size 2"),
        (900_012, 900_011, 900_010, 900_003, "VLLM::EngineCor", "VLLM::EngineCore"),
        (900_013, 900_012, 900_010, 900_003, "VLLM::Worker_TP", "VLLM::Worker_TP1"),
        (900_021, 900_010, 900_010, 900_003, "vllm", "vllm serve another/model"),
    )
    assert found.find_root(900_013) == 900_011
    assert found.find_servers() == [900_011, 900_021]


def test_outermost_launcher_wins() -> None:
    found = host(
        KNOWLEDGE,
        (900_001, 0, 900_001, 900_001, "tini", "/usr/bin/tini -- torchrun --nproc-per-node 3 train.py"),
        (
            900_002,
            900_001,
            900_002,
            900_002,
            "torchrun",
            "python /opt/bin/torchrun --nproc-per-node 3 train.py",
        ),
        (900_003, 900_002, 900_003, 900_003, "pt_main_thread", "python -u train.py"),
        (900_004, 900_003, 900_003, 900_003, "ninja", "ninja -v"),
        (900_005, 900_004, 900_005, 900_003, "sh", "sh -c nvcc kernel.cu"),
        (900_006, 900_005, 900_005, 900_003, "cicc", "cicc kernel.ii"),
    )
    assert found.find_root(900_006) == 900_002


def test_notebook_kernel_is_the_root_not_the_notebook_server() -> None:
    found = host(
        KNOWLEDGE,
        (900_001, 0, 900_001, 900_001, "jupyter-lab", "python /opt/bin/jupyter-lab"),
        (900_002, 900_001, 900_002, 900_002, "python", "python -m ipykernel_launcher -f kernel.json"),
        (900_003, 900_002, 900_002, 900_002, "VLLM::EngineCor", "VLLM::EngineCore"),
    )
    assert found.find_root(900_003) == 900_002


def test_test_runner_is_no_part_of_what_it_tests() -> None:
    found = host(
        KNOWLEDGE,
        (900_001, 0, 900_001, 900_001, "python", "python -m pytest tests"),
        (900_002, 900_001, 900_001, 900_001, "python", "python server.py"),
    )
    assert found.find_root(900_002) == 900_002


def test_leftovers_of_an_earlier_run_in_the_same_terminal_are_not_adopted() -> None:
    found = host(
        KNOWLEDGE,
        *SSH_SESSION,
        (900_004, 1, 900_004, 900_003, "VLLM::Worker_TP", "VLLM::Worker_TP0"),
        (900_011, 900_003, 900_011, 900_003, "vllm", "vllm serve m"),
        (900_012, 1, 900_011, 900_003, "VLLM::Worker_TP", "VLLM::Worker_TP1"),
    )
    assert found.grow_tree((900_011,), "x", None).pids == (900_011, 900_012)


def test_spawned_children_alone_name_no_server() -> None:
    spawn = "python -c from multiprocessing.spawn import spawn_main; spawn_main()"
    found = host(
        KNOWLEDGE,
        *SSH_SESSION,
        (900_011, 900_003, 900_011, 900_003, "python", "python my_own.py"),
        (900_012, 900_011, 900_011, 900_003, "python", spawn),
    )
    assert found.find_servers() == []
    assert found.grow_tree((900_011,), "x", None).server is None


def test_all_ranks_of_a_slurm_step_are_one_job() -> None:
    found = host(
        KNOWLEDGE,
        (900_001, 1, 900_001, 900_001, "slurmstepd", "slurmstepd: [123.0]"),
        (900_002, 900_001, 900_002, 900_001, "python", "python train.py"),
        (900_003, 900_001, 900_003, 900_001, "python", "python train.py"),
    )
    assert found.find_root(900_003) == 900_001
