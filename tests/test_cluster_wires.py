"""A wait across hosts: who reads from a connection waits for the process that was seen at its other end.

Two hosts of namespaces, a capture of each, and one report on both; where namespaces are not allowed, two captures of
this host, whose jobs talk over the loopback address.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from hangdoctor.rendezvous import find_connected
from tests.cluster_support import NET, NET6, ROOT, Hosts, report_of, three_hosts, why_not
from tests.conftest import Stuck, stuck

QUICK = ("--snapshots", "2", "--interval", "1")
LACKING = why_not()


def needs_hosts(test: Callable[..., None]) -> Callable[..., None]:
    """Slow, and skipped aloud where there can be no namespaces."""
    is_required = "namespaces" in os.environ.get("HANGDOCTOR_REQUIRE", "")
    marked = pytest.mark.skipif(LACKING is not None and not is_required, reason=LACKING or "")(test)
    return cast(Callable[..., None], pytest.mark.slow(marked))


PORTS = count(7101)
"""On nodes of our own, where nobody else listens."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with three_hosts() as hosts:
        yield hosts


@contextmanager
def listening(hosts: Hosts, node: str, family: str, port: int, then: str) -> Iterator[Stuck]:
    with stuck("d_wire.py", "listen", family, port, then, prefix=hosts.inside(node)) as program:
        yield program


@contextmanager
def reading(hosts: Hosts, node: str, address: str, port: int) -> Iterator[Stuck]:
    with stuck("d_wire.py", "read", address, port, prefix=hosts.inside(node)) as program:
        yield program


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pid_of(program: Stuck) -> int:
    """As its own host numbers it."""
    return int(program.said[0].split()[1])


def reports_on(folder: Path, commands: Mapping[str, list[str]]) -> dict[str, Any]:
    """Captures taken at the same time by ``commands``, each under its name, and the report on all of them."""
    files = [str(folder / f"{name}.hang") for name in commands]
    started = [
        subprocess.Popen([*command, "-o", file, *QUICK], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for command, file in zip(commands.values(), files, strict=True)
    ]
    said = [popen.communicate(timeout=60)[1] for popen in started]
    assert [popen.returncode for popen in started] == [0] * len(started), said
    command = [sys.executable, "-m", "hangdoctor", "analyze", *files, "--json"]
    return report_of(subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False))


def collect(pid: int) -> list[str]:
    return [sys.executable, "-m", "hangdoctor", "collect", str(pid)]


def on_nodes(hosts: Hosts, folder: Path, programs: Mapping[str, Stuck]) -> dict[str, Any]:
    """The report on one program a node."""
    return reports_on(
        folder, {node: [*hosts.inside(node), *collect(pid_of(each))] for node, each in programs.items()}
    )


def waits_of(report: Mapping[str, Any], pid: int, host: str) -> list[dict[str, Any]]:
    return [w for w in report["waits"] if (w["from"]["pid"], w["from"]["host"]) == (pid, host)]


def place(party: Mapping[str, Any]) -> tuple[str, int]:
    return party["host"], party["pid"]


def culprits(report: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [place(each) for each in report["verdict"]["culprits"]]


# -- hosts of namespaces ----------------------------------------------------------------------------


@needs_hosts
@pytest.mark.parametrize(
    ("address", "family", "then", "cause"),
    [
        (f"{NET}.2", "4", "sleep", "laggard"),
        (f"{NET}.2", "46", "lock", "lock-held"),
        (f"{NET6}::2", "46", "sleep", "laggard"),
    ],
    ids=["IPv4", "IPv4 in IPv6", "IPv6"],
)
def test_a_reader_waits_for_the_process_on_the_other_host(
    address: str, family: str, then: str, cause: str, hosts: Hosts, tmp_path: Path
) -> None:
    port = next(PORTS)
    with (
        listening(hosts, "node2", family, port, then) as there,
        reading(hosts, "node1", address, port) as here,
    ):
        there.hear()
        report = on_nodes(hosts, tmp_path, {"node1": here, "node2": there})
    (wait,) = waits_of(report, pid_of(here), "node1")
    assert place(wait["to"]) == ("node2", pid_of(there))
    assert wait["strength"] == "likely" and f":{port}" in wait["object"], wait
    verdict = report["verdict"]
    assert (verdict["kind"], verdict["cause"]) == ("hung", cause), verdict
    assert culprits(report) == [("node2", pid_of(there))]
    assert [place(each) for each in verdict["victims"]] == [("node1", pid_of(here))]


@needs_hosts
@pytest.mark.parametrize(("family", "then"), [("46", "deaf"), ("4", "full")])
def test_who_does_not_accept_is_waited_for(family: str, then: str, hosts: Hosts, tmp_path: Path) -> None:
    """It holds no connection at all: its host's address is known from the host."""
    port = next(PORTS)
    with (
        listening(hosts, "node2", family, port, then) as there,
        reading(hosts, "node1", f"{NET}.2", port) as here,
    ):
        report = on_nodes(hosts, tmp_path, {"node1": here, "node2": there})
    (wait,) = waits_of(report, pid_of(here), "node1")
    assert place(wait["to"]) == ("node2", pid_of(there))
    assert wait["object"].endswith("which it has not accepted"), wait
    assert wait["reason"] == ("in connect" if then == "full" else "in recvfrom")
    assert culprits(report) == [("node2", pid_of(there))]


@needs_hosts
def test_a_reader_to_whom_bytes_come_is_not_hung(hosts: Hosts, tmp_path: Path) -> None:
    """Twin: the same two, and the other one sends."""
    port = next(PORTS)
    with (
        listening(hosts, "node2", "4", port, "send") as there,
        reading(hosts, "node1", f"{NET}.2", port) as here,
    ):
        there.hear()
        report = on_nodes(hosts, tmp_path, {"node1": here, "node2": there})
    assert report["verdict"]["kind"] != "hung", report["verdict"]


@needs_hosts
@pytest.mark.parametrize(
    ("node", "words"),
    [("node3", "on a host that was not looked at"), ("node2", "on node2, by nobody of the job")],
)
def test_a_peer_that_was_not_looked_at_is_told_by_its_address(
    node: str, words: str, hosts: Hosts, tmp_path: Path
) -> None:
    """Another process on node2, which listens and sleeps, too, is looked at instead; nobody waits for that one."""
    port, other = next(PORTS), next(PORTS)
    address = f"{NET}.{node[-1]}"
    with (
        listening(hosts, node, "46", port, "sleep") as unseen,
        reading(hosts, "node1", address, port) as here,
        listening(hosts, "node2", "46", other, "deaf") as bystander,
    ):
        unseen.hear()
        report = on_nodes(hosts, tmp_path, {"node1": here, "node2": bystander})
    (wait,) = waits_of(report, pid_of(here), "node1")
    assert wait["to"] is None
    assert wait["object"] == f"{address}:{port}, {words}"


@needs_hosts
def test_one_capture_says_that_the_peer_is_not_on_its_host(hosts: Hosts, tmp_path: Path) -> None:
    port = next(PORTS)
    with (
        listening(hosts, "node2", "4", port, "sleep") as there,
        reading(hosts, "node1", f"{NET}.2", port) as here,
    ):
        there.hear()
        report = on_nodes(hosts, tmp_path, {"node1": here})
    (wait,) = report["waits"]
    assert (wait["to"], wait["object"]) == (None, f"{NET}.2:{port}, which is not on this host")


@needs_hosts
def test_all_hosts_asked_at_once_say_the_same(hosts: Hosts) -> None:
    port = next(PORTS)
    with (
        listening(hosts, "node3", "46", port, "lock") as there,
        reading(hosts, "node1", f"{NET}.3", port) as here,
    ):
        there.hear()
        done = hosts.hangdoctor(
            "attach", "--hosts", "node[1,3]", "--name", f"d_wire.*{port}", *QUICK, "--json", "--no-bundle"
        )
        report = report_of(done)
    (wait,) = waits_of(report, pid_of(here), "node1")
    assert place(wait["to"]) == ("node3", pid_of(there))
    assert culprits(report) == [("node3", pid_of(there))]


# -- this host alone --------------------------------------------------------------------------------


def test_two_captures_of_one_host_are_joined_by_a_connection(tmp_path: Path) -> None:
    """The reader's own capture knows only the pid at the other end; the other capture knows what it does."""
    port = free_port()
    with (
        stuck("d_wire.py", "listen", "46", port, "lock") as there,
        stuck("d_wire.py", "read", "127.0.0.2", port) as here,
    ):
        there.hear()
        both = reports_on(tmp_path, {"reader": collect(pid_of(here)), "listener": collect(pid_of(there))})
    (wait,) = [wait for wait in both["waits"] if wait["from"]["pid"] == pid_of(here)]
    assert wait["to"]["pid"] == pid_of(there)
    verdict = both["verdict"]
    assert (verdict["kind"], verdict["cause"]) == ("hung", "lock-held"), verdict
    assert [each["pid"] for each in verdict["culprits"]] == [pid_of(there)]


def test_the_captures_of_two_jobs_on_one_host_stay_apart(tmp_path: Path) -> None:
    """Twin: the listener that was looked at is another one than the reader's."""
    port, other = free_port(), free_port()
    with (
        stuck("d_wire.py", "listen", "46", port, "lock") as unseen,
        stuck("d_wire.py", "read", "127.0.0.2", port) as here,
        stuck("d_wire.py", "listen", "46", other, "deaf") as there,
    ):
        unseen.hear()
        both = reports_on(tmp_path, {"reader": collect(pid_of(here)), "listener": collect(pid_of(there))})
    assert [wait for wait in both["waits"] if wait["from"]["pid"] == pid_of(here)] == []


@pytest.mark.parametrize("family", ["4", "46"])
def test_a_job_is_found_by_the_connection_to_where_it_meets(family: str) -> None:
    """torch's store talks through sockets of IPv6 to addresses of IPv4; they stand in a table of their own."""
    port = free_port()
    with (
        stuck("d_wire.py", "listen", family, port, "lock") as there,
        stuck("d_wire.py", "read" if family == "4" else "read-mapped", "127.0.0.1", port) as here,
    ):
        there.hear()
        pids = [here.pid, there.pid]
        assert find_connected(port, frozenset(["127.0.0.1"]), pids) == [here.pid]
        assert find_connected(port, frozenset(["127.0.0.9"]), pids) == []
        assert find_connected(port + 1, frozenset(["127.0.0.1"]), pids) == []
