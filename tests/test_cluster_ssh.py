"""``--hosts`` over a real sshd on three hosts (namespaces), with a real six-rank gloo job across them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_support import NET, NODES, ROOT, Across, Hosts, report_of, six_ranks, three_hosts, why_not
from tests.jobs import needs_torch, no_process_left

__all__ = ["no_process_left"]
LACKING = why_not()
pytestmark = [
    *needs_torch,
    pytest.mark.slow,
    pytest.mark.skipif(
        LACKING is not None and "namespaces" not in os.environ.get("HANGDOCTOR_REQUIRE", ""),
        reason=LACKING or "",
    ),
]
ADDRESS = f"{NET}.1:29511"
CULPRIT = 3
"""On node2: neither the first nor the last rank, nor on the first or last host."""
QUICK = ("--snapshots", "2", "--interval", "3")
SKEW_S = 1.0
"""Hosts begin within 20 ms on a quiet machine; three interpreters on two busy cores may be late."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with three_hosts() as hosts:
        yield hosts


@pytest.fixture(scope="module")
def stuck_job(hosts: Hosts) -> Iterator[Across]:
    with six_ranks([hosts.inside(node) for node in NODES], ADDRESS, "eth0", NODES) as job:
        job.suffer("sleep", CULPRIT)
        yield job


def culprits(report: dict) -> list[tuple[str, int]]:
    return [(each["host"], (each["rank"] or {})["global"]) for each in report["verdict"]["culprits"]]


def gap_about(report: dict, host: str) -> dict:
    (gap,) = [gap for gap in report["gaps"] if gap["subject"] == f"host {host}"]
    return gap


@pytest.fixture(scope="module")
def whole(hosts: Hosts, stuck_job: Across) -> dict:
    """The report on all three hosts, found by the address; the captures are kept in ``kept/``."""
    done = hosts.hangdoctor(
        "attach", "--hosts", "node[1-3]", "--rendezvous", ADDRESS, *QUICK, "--json", "--bundle", "kept/"
    )
    assert done.returncode == 3, done.stderr[-2000:]
    return report_of(done)


def test_one_stuck_rank_of_six_is_named_with_its_host(whole: dict, stuck_job: Across) -> None:
    verdict = whole["verdict"]
    assert (verdict["kind"], verdict["cause"]) == ("hung", "laggard"), verdict
    assert culprits(whole) == [("node2", CULPRIT)]
    (culprit,) = verdict["culprits"]
    assert culprit["pid"] == stuck_job.pids[CULPRIT]
    assert culprit["frame"]["function"] == "load_tokenizer"
    victims = {(each["host"], each["rank"]["global"]) for each in verdict["victims"]}
    assert victims == {(NODES[rank // 2], rank) for rank in range(6) if rank != CULPRIT}
    assert [gap for gap in whole["gaps"] if gap["source"] in ("cluster", "world")] == []


def test_the_same_pid_on_several_hosts_is_several_processes(whole: dict, stuck_job: Across) -> None:
    assert len(set(stuck_job.pids)) < 6, "the PID namespaces gave no pid twice; this test shows nothing"
    assert len(whole["processes"]) == 6
    edges = {(w["from"]["host"], w["from"]["pid"], w["to"]["host"], w["to"]["pid"]) for w in whole["waits"]}
    assert {edge[2:] for edge in edges} == {("node2", stuck_job.pids[CULPRIT])}
    assert len(edges) == 5


def test_hosts_begin_together_and_their_clocks_are_compared(whole: dict) -> None:
    timings = whole["timings"]
    assert set(timings["clocks"]) == set(NODES)
    assert all(abs(offset) < 0.5 for offset in timings["clocks"].values())  # one kernel: one clock
    assert 0 <= timings["start_skew_s"] < SKEW_S
    assert timings["skew_s"] < 2 * SKEW_S


def test_captures_carried_by_hand_give_the_same_answer(hosts: Hosts, whole: dict) -> None:
    files = sorted((hosts.folder / "kept").iterdir())
    assert [path.name for path in files] == [f"{node}.hang" for node in NODES]
    command = [sys.executable, "-m", "hangdoctor", "analyze", *map(str, files), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 3, done.stderr
    by_hand = json.loads(done.stdout)
    for part in ("verdict", "waits", "processes", "groups", "evidence"):
        assert by_hand[part] == whole[part], part


def test_a_pid_on_one_host_leads_to_the_whole_job(hosts: Hosts, stuck_job: Across) -> None:
    """The rest is found by the address at which that process meets its peers, on its own host, too."""
    pid = str(stuck_job.pids[2])
    done = hosts.hangdoctor("attach", pid, "--hosts", "node2,node1,node3", *QUICK, "--json", "--no-bundle")
    report = report_of(done)
    assert culprits(report) == [("node2", CULPRIT)], done.stderr
    assert len(report["processes"]) == 6


def test_hosts_that_fail_are_gaps_and_the_rest_is_diagnosed(hosts: Hosts, stuck_job: Across) -> None:
    """Unreachable, refused, silent, and one whose user may not read the target: each with its remedy, in time."""
    began = time.monotonic()
    done = hosts.hangdoctor(
        "attach", "--hosts", "node2,nobody3,gone,closed,silent", "--name", "d_gloo_rank", "--connect-timeout", "4",
        *QUICK, "--json", "--no-bundle", python=None,
    )  # fmt: skip
    assert time.monotonic() - began < 60
    report = report_of(done)
    assert (report["verdict"]["kind"], culprits(report)) == ("hung", [("node2", CULPRIT)]), done.stderr
    for host, word in (("gone", "reached"), ("closed", "listens"), ("silent", "reached|answer")):
        gap = gap_about(report, host)
        assert any(each in gap["reason"] for each in word.split("|")), gap
        assert host in gap["remedy"]
    denied = [gap for gap in report["gaps"] if "node3" in gap["subject"] and gap["remedy"]]
    assert denied, report["gaps"]
    assert any(
        "not seen" in gap["reason"] or "expected" in gap["reason"]
        for gap in report["gaps"]
        if gap["source"] == "world"
    )


def test_a_healthy_round_says_nothing_of_failures(whole: dict) -> None:
    """Twin: no host failed, so no gap speaks of one."""
    assert [gap for gap in whole["gaps"] if gap["subject"].startswith("host ")] == []


def test_nobody_answers(hosts: Hosts, stuck_job: Across) -> None:
    done = hosts.hangdoctor(
        "attach", "--hosts", "gone,closed", "--port", "1", "--connect-timeout", "4", "--no-bundle"
    )
    assert done.returncode == 5
    assert "host gone:" in done.stderr and "host closed:" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_left_behind(hosts: Hosts, stuck_job: Across) -> None:
    """The system's Python has no hangdoctor: all of it is sent, and gone afterwards, with and without a target."""
    for name, code in (("d_gloo_rank", 3), ("no-such-thing", 5)):
        done = hosts.hangdoctor(
            "attach", "--hosts", "node[1-3]", "--name", name, *QUICK, "--no-bundle", python=None
        )
        assert done.returncode == code, done.stderr
        assert _left(hosts) == ([], [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_an_interruption_leaves_nothing_behind(hosts: Hosts, stuck_job: Across, number: int) -> None:
    command = hosts.command("attach", "--hosts", "node[1-3]", "--name", "d_gloo_rank", "--interval", "60",
                            "--no-bundle", "--via", hosts.via)  # fmt: skip
    popen = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=hosts.folder, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip
    try:
        assert popen.stderr is not None
        assert any("begin together" in line for line in popen.stderr)
        assert _left(hosts)[0], "nothing was unpacked, so its removal shows nothing"
        os.killpg(popen.pid, number)
        popen.wait(20)
        deadline = time.monotonic() + 20
        while _left(hosts) != ([], []) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert _left(hosts) == ([], [])
    finally:
        if popen.poll() is None:
            os.killpg(popen.pid, signal.SIGKILL)
        popen.communicate()


def _left(hosts: Hosts) -> tuple[list[str], list[str]]:
    """Folders of ours, and processes of ours on the nodes (/tmp is shared by all of them)."""
    folders = [
        str(path) for path in Path("/tmp").glob("hangdoctor-????????") if (path / "__main__.py").exists()
    ]
    processes = [line for node in NODES for line in hosts.run(node, "ps", "-eo", "args").splitlines()
                 if "/tmp/hangdoctor-" in line]  # fmt: skip
    return folders, processes


def test_three_hosts_take_little_longer_than_one(hosts: Hosts, stuck_job: Across) -> None:
    """In one run, by turns, so that a busy machine slows both; the best of three each."""
    walls: dict[str, list[float]] = {"node2": [], "node[1-3]": []}
    for _ in range(3):
        for names, found in walls.items():
            began = time.monotonic()
            done = hosts.hangdoctor(
                "attach", "--hosts", names, "--rendezvous", ADDRESS, "--json", "--no-bundle"
            )
            found.append(time.monotonic() - began)
            assert done.returncode == 3, done.stderr
        print(f"seconds: {walls}")
        if min(walls["node[1-3]"]) <= 1.5 * min(walls["node2"]):
            return
    pytest.fail(f"{walls}")


def test_check_asks_every_host(hosts: Hosts) -> None:
    done = hosts.hangdoctor("check", "--hosts", "node[1-2],gone", "--json", "--connect-timeout", "4")
    rows = json.loads(done.stdout)
    assert done.returncode == 5 and list(rows) == ["gone", "node1", "node2"], done.stderr
    assert rows["gone"][0]["ok"] is False and rows["gone"][0]["remedy"]
    names = [row["name"] for row in rows["node1"]]
    assert names[0] == "clock" and {"permission", "py-spy"} <= set(names)


@pytest.mark.skipif(shutil.which("python3") is None, reason="no Python for gateways")
def test_a_tree_of_gateways_passes_everything_on(hosts: Hosts, stuck_job: Across) -> None:
    """ClusterShell's own tree mode: node1 stands between us and the others."""
    here = subprocess.run(
        ["ip", "netns", "exec", f"{hosts.prefix}s", "hostname", "-s"], capture_output=True, text=True
    )
    folder = hosts.folder / "tree"
    folder.mkdir(exist_ok=True)
    (folder / "topology.conf").write_text(f"[routes]\n{here.stdout.strip()}: node1\nnode1: node[2-3]\n")
    done = subprocess.run(
        hosts.command("attach", "--hosts", "node[2-3]", "--rendezvous", ADDRESS, *QUICK, "--json", "--no-bundle",
                      "--via", hosts.via, "--remote-python", sys.executable),
        capture_output=True, text=True, timeout=120, cwd=hosts.folder, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CLUSTERSHELL_CFGDIR": str(folder),
             "CLUSTERSHELL_GW_PYTHON_EXECUTABLE": sys.executable},
    )  # fmt: skip
    assert culprits(report_of(done)) == [("node2", CULPRIT)], done.stderr
