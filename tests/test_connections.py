"""Waits for another host: named by address and service, and no wait for it where nobody waits."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hangdoctor.analysis import diagnose
from hangdoctor.model import (
    Capture,
    Frame,
    Method,
    Process,
    Snapshot,
    Socket,
    Stack,
    Syscall,
    Target,
    Thread,
    Tool,
)
from hangdoctor.report import Cause, Kind, Report
from tests.knowledge_support import built_in

SETTING = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500", "WORLD_SIZE": "5"}


def rank(number: int, socket: Socket | None, call: Syscall, environ: Mapping[str, str]) -> Process:
    stack = Stack(
        (Frame("fetch_shards", "job.py", 41), Frame("<module>", "job.py", 90)), Method.PY_SPY_NONBLOCKING
    )
    thread = Thread(
        100 + number, name="MainThread", state="S", stack=stack, syscall=call, run_ns=5, voluntary_switches=3
    )
    return Process(
        100 + number,
        7 + number,
        ppid=50,
        state="S",
        comm="python",
        command=("python", "job.py"),
        exe="/usr/bin/python3",
        threads=(thread,),
        thread_count=1,
        rss_bytes=1 << 20,
        environ={**environ, "RANK": str(number)},
        sockets=() if socket is None else (socket,),
    )


def receive(fd: int) -> Syscall:
    return Syscall("recvfrom", (fd, 0, 0, 0, 0, 0), fd=fd, fds=(fd,), target="TCP", is_timed=None)


def tcp(remote: str, *, peers: tuple[int, ...] = (), state: str = "ESTABLISHED") -> Socket:
    return Socket(9, "tcp", state, local="10.0.0.3:40001", remote=remote, peers=peers)


def report(*processes: Process) -> Report:
    looks = tuple(Snapshot(taken_at=1000.0 + 4 * n, processes=processes) for n in range(3))
    return diagnose(Capture(Tool("0"), Target("x", pid=101), (), looks), built_in())


@pytest.mark.parametrize(
    ("remote", "words"),
    [
        ("10.0.0.7:29500", "10.0.0.7:29500 (the job's master: torch's store), which is not on this host"),
        ("10.0.0.9:51234", "10.0.0.9:51234, which is not on this host"),
    ],
)
def test_a_connection_to_another_host_is_named(remote: str, words: str) -> None:
    """One rank reads from elsewhere, the other reads from that rank."""
    first = rank(1, tcp(remote), receive(9), SETTING)
    second = rank(2, tcp("10.0.0.3:7", peers=(101,)), receive(9), SETTING)
    said = report(first, second)
    assert (said.verdict.kind, said.verdict.cause) == (Kind.HUNG, Cause.MISSING_PEER), said.verdict.summary
    assert [culprit.pid for culprit in said.verdict.culprits] == [101]
    assert words in said.verdict.summary
    edge = next(wait for wait in said.waits if wait.holder is None)
    assert (edge.waiter.pid, edge.object) == (101, words)


@pytest.mark.parametrize(
    "socket",
    [
        tcp("127.0.0.1:29500"),
        tcp("[::1]:29500"),
        tcp("10.0.0.3:29500"),
        tcp("10.0.0.9:29500", peers=(777,)),
        tcp("10.0.0.9:29500", state="TIME_WAIT"),
        Socket(9, "unix", "ESTABLISHED", local="/run/x"),
        Socket(8, "tcp", "ESTABLISHED", local="10.0.0.3:4", remote="10.0.0.9:29500"),
    ],
    ids=["loopback", "loopback6", "own address", "found here", "over", "unix", "another descriptor"],
)
def test_what_is_on_this_host_is_not_said_to_be_elsewhere(socket: Socket) -> None:
    said = report(rank(1, socket, receive(9), SETTING), rank(2, None, receive(9), SETTING))
    assert "not on this host" not in said.verdict.summary
    assert not [wait for wait in said.waits if wait.holder is None and "host" in (wait.object or "")]


def test_a_connect_without_an_answer_names_where_to() -> None:
    call = Syscall("connect", (9, 0, 16, 0, 0, 0), fd=9, fds=(9,), target="10.0.0.7:29500")
    said = report(rank(1, None, call, SETTING), rank(2, tcp("10.0.0.3:7", peers=(101,)), receive(9), SETTING))
    assert "10.0.0.7:29500 (the job's master: torch's store)" in said.verdict.summary
