"""The RAS client against a real server on real sockets, and what its answers mean.

``tests/data/ras/*.txt.gz`` are ``ncclras -v`` answers of NCCL 2.28.9 under SGLang on 2×H200 (made by us, see
tests/data/ras/README.md).
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from hangdoctor.analysis.ras import RasFinding, RasKind, is_answer_of, read_ras
from hangdoctor.collect.ras import query_ras
from hangdoctor.collect.ras_answers import NotAnAnswer, read_json, read_text
from hangdoctor.model import Gap, RasAnswer

DATA = Path(__file__).parent / "data" / "ras"


def recorded(name: str) -> str:
    return gzip.decompress((DATA / f"{name}.txt.gz").read_bytes()).decode()


def rank(number: int, all_reduces: int = 640, **status: object) -> dict[str, object]:
    state = {
        "init_state": 0,
        "async_error": 0,
        "finalize_called": False,
        "destroy_flag": False,
        "abort_flag": False,
    }
    counts = {"Broadcast": 3, "Reduce": 0, "AllGather": 12, "ReduceScatter": 0, "AllReduce": all_reduces}
    place = {
        "rank": number,
        "host": "192.0.2.7",
        "pid": 4700 + number,
        "cuda_dev": number,
        "nvml_dev": number,
    }
    return {**place, "status": {**state, **status}, "collective_counts": counts}


def lost(number: int, dead: bool = False) -> dict[str, object]:
    place = {
        "rank": number,
        "host": "192.0.2.7",
        "pid": 4700 + number,
        "cuda_dev": number,
        "nvml_dev": number,
    }
    return {**place, "status": {"unresponsive": True, "considered_dead": dead}}


def status(ranks: list[dict[str, object]], missing: list[dict[str, object]], version: str = "2.30.7") -> str:
    communicator = {
        "hash": "0xae94423cfbb2ef4a",
        "secondary_hash": "0x1:0x2",
        "size": len(ranks) + len(missing),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": missing,
    }
    whole = {
        "nccl_version": version,
        "communicators_count": 1,
        "communicators": [communicator],
        "ras": {"collection_time_sec": 0.002, "timeouts_count": 2},
    }
    return json.dumps(whole, indent=2)


@dataclass
class Service:
    """What the server says. ``hold`` in the answer is where it stops until the test is over."""

    answer: str = ""
    knows_json: bool = True
    greeting: str = "SERVER PROTOCOL 2\n"
    chunk: int = 700
    heard: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                words = line.decode().strip()
                self.heard.append(words)
                if words.endswith("STATUS"):
                    self.tell(connection)
                    return
                connection.sendall(self.reply(words).encode())

    def reply(self, words: str) -> str:
        if words.startswith("CLIENT PROTOCOL"):
            return self.greeting
        if words.startswith("SET FORMAT") and not self.knows_json:
            return f"ERROR: Unknown command {words}\n"
        return "OK\n"

    def tell(self, connection: socket.socket) -> None:
        said, is_cut, _ = self.answer.partition("<hold>")
        data = said.encode()
        for start in range(0, len(data), self.chunk):
            connection.sendall(data[start : start + self.chunk])
        if is_cut:
            self.over.wait(60)


@contextmanager
def running(service: Service, host: str = "127.0.0.1") -> Iterator[str]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]

        def accept() -> None:
            while not service.over.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=service.serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        service.over.set()
        server.shutdown(socket.SHUT_RDWR)


FIVE = [rank(0), rank(1), rank(2, 639), rank(4)]


def test_a_whole_json_answer() -> None:
    with running(Service(status(FIVE, [lost(3)]))) as address:
        answer = query_ras(address)
    assert isinstance(answer, RasAnswer)
    assert (answer.nccl_version, answer.is_partial, answer.format, answer.timeouts) == (
        "2.30.7",
        False,
        "json",
        2,
    )
    (one,) = answer.communicators
    assert (one.id, one.size, one.missing_count) == ("ae94423cfbb2ef4a", 5, 1)
    assert one.problems == ("INCOMPLETE", "MISMATCH")
    assert [r.counts["AllReduce"] for r in one.ranks] == [640, 640, 639, 640]
    assert [(r.rank, r.pid, r.is_unresponsive, r.is_dead) for r in one.missing] == [(3, 4703, True, False)]


def test_it_asks_politely_and_only_once() -> None:
    service = Service(status(FIVE, []))
    with running(service) as address:
        query_ras(address)
    assert service.heard == ["CLIENT PROTOCOL 2", "TIMEOUT 4", "SET FORMAT json", "STATUS"]


@pytest.mark.parametrize("chunk", [1, 7, 100_000])
def test_however_the_answer_is_cut_into_packets(chunk: int) -> None:
    with running(Service(status(FIVE, []), chunk=chunk)) as address:
        answer = query_ras(address)
    assert isinstance(answer, RasAnswer) and len(answer.communicators[0].ranks) == 4


def test_the_comma_that_2_28_forgets_is_put_back() -> None:
    text = status(FIVE, [lost(3)], version="2.28.9")
    start = text.index('"missing_ranks":')
    broken = text[:start] + text[start:].replace('"nvml_dev": 3,', '"nvml_dev": 3')
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(broken)
    with running(Service(broken)) as address:
        answer = query_ras(address, nccl_version="2.28.9")
    assert isinstance(answer, RasAnswer) and not answer.is_partial
    assert answer.communicators[0].missing[0].rank == 3


def test_what_came_before_a_stall_is_kept() -> None:
    whole = json.loads(status(FIVE, []))
    whole["communicators"] *= 3
    text = json.dumps(whole, indent=2)
    cut = text.rindex('"hash"') + 40
    with running(Service(text[:cut] + "<hold>")) as address:
        started = time.monotonic()
        answer = query_ras(address, deadline_s=1.0)
    assert time.monotonic() - started < 5
    assert isinstance(answer, RasAnswer)
    assert answer.is_partial and answer.nccl_version == "2.30.7" and len(answer.communicators) == 2


def test_a_service_that_says_nothing_is_a_gap_in_time() -> None:
    with running(Service("<hold>")) as address:
        started = time.monotonic()
        gap = query_ras(address, deadline_s=1.0)
    assert time.monotonic() - started < 5
    assert isinstance(gap, Gap) and gap.reason == "its answer is empty"


def test_something_else_on_the_port() -> None:
    with running(Service(greeting="HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        gap = query_ras(address)
    assert isinstance(gap, Gap) and gap.reason == "something else answers there: 'HTTP/1.1 400 Bad Request'"


def test_nobody_on_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    gap = query_ras(f"127.0.0.1:{port}")
    assert (
        isinstance(gap, Gap)
        and gap.reason.startswith("nobody listens there")
        and "28028" in (gap.remedy or "")
    )


@pytest.mark.parametrize(
    "address", ["28028", "host:", ":1", "host:port", "host:99999", "no.such.host.invalid:1"]
)
def test_addresses_that_are_none(address: str) -> None:
    assert isinstance(query_ras(address, deadline_s=5), Gap)


def test_a_job_that_listens_on_ipv6_only() -> None:
    with running(Service(status(FIVE, [])), host="::1") as address:
        port = address.rpartition(":")[2]
        by_number, by_name = query_ras(address), query_ras(f"localhost:{port}")
    assert isinstance(by_number, RasAnswer)
    # "localhost" has an IPv6 address on some hosts only; where it has one, it must be tried
    if any(info[0] is socket.AF_INET6 for info in socket.getaddrinfo("localhost", 1)):
        assert isinstance(by_name, RasAnswer)


# Asking is dangerous.


@pytest.mark.parametrize(
    ("version", "flags", "number"),
    [
        ("2.27.3", {}, "#1762"),
        ("2.26.2", {}, "#1669"),
        ("2.28.9", {"is_initialising": True}, "#2346"),
        ("2.28.9", {"is_peer_silent": True}, "memory"),
    ],
)
def test_dangerous_questions_are_not_asked(version: str, flags: dict[str, bool], number: str) -> None:
    service = Service(status(FIVE, []))
    with running(service) as address:
        gap = query_ras(address, nccl_version=version, **flags)
        assert service.heard == []
        forced = query_ras(address, nccl_version=version, force=True, **flags)
    assert isinstance(gap, Gap) and number in gap.reason and "--ras-force" in (gap.remedy or "")
    assert isinstance(forced, RasAnswer)


def test_an_old_service_gives_itself_away_and_is_spared() -> None:
    service = Service(recorded("gpu_spin"), knows_json=False)
    with running(service) as address:
        gap = query_ras(address)
        assert "STATUS" not in " ".join(service.heard)
        forced = query_ras(address, force=True)
    assert isinstance(gap, Gap) and "older than 2.28.7" in gap.reason
    assert isinstance(forced, RasAnswer) and forced.format == "text"
    assert service.heard[-1] == "VERBOSE STATUS"


# Text.


def test_counts_that_differ_in_a_recorded_text() -> None:
    answer = read_text(recorded("gpu_spin"), address="x", is_partial=False)
    assert answer.nccl_version == "2.28.9"
    mismatched, other = answer.communicators
    assert (mismatched.id, mismatched.size, mismatched.status) == ("d8d9137d824c9dcf", 2, "RUNNING")
    assert {r.rank: dict(r.counts) for r in mismatched.ranks} == {
        0: {"AllGather": 10, "AllReduce": 90},
        1: {"AllGather": 9, "AllReduce": 81},
    }
    assert (other.id, other.problems, other.ranks) == ("group 1 of 1 communicator", (), ())


def test_memory_that_nccl_takes_for_ranks_is_left_out() -> None:
    text = recorded("sigstop")
    assert "Rank 1869760266" in text and "Rank -988821909" in text
    answer = read_text(text, address="x", is_partial=False)
    (one,) = answer.communicators
    assert [(r.rank, r.pid) for r in one.missing] == [(1, 4902)]
    assert [(r.pid, r.is_dead) for r in answer.lost] == [(4902, False)]
    assert any("size 0" in warning for warning in answer.warnings)


TEXT_226 = """\
NCCL version 2.26.2 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2       4-8        13        13   RUNNING  INCOMPLETE,MISMATCH
    1         2         1         4         4         8      INIT  OK

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 1009 on node 192.0.2.7 managing GPU 5

#0-0 (fa93daea854b060b) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 9 -- GPU 5 managed by process 1009 on node 192.0.2.7

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllReduce operation counts
  10 ranks have launched up to operation 639
  2 ranks have launched up to operation 640
  Rank 3 -- GPU 3 managed by process 1003 on node 192.0.2.7
  Rank 4 -- GPU 4 managed by process 1004 on node 192.0.2.7

  Communicator ranks have different Broadcast operation counts
  11 ranks have launched up to operation 7
  Rank 5 has not launched any operations -- GPU 5 (NVML 6) managed by process 1005 on node 192.0.2.7

"""


def test_text_with_every_section() -> None:
    answer = read_text(TEXT_226, address="x", is_partial=False)
    big, small = answer.communicators
    assert (big.size, big.missing_count, big.problems) == (13, 1, ("INCOMPLETE", "MISMATCH"))
    assert [(c.operation, c.launched, c.rank_count, c.ranks) for c in big.counts] == [
        ("AllReduce", 639, 10, ()),
        ("AllReduce", 640, 2, (3, 4)),
        ("Broadcast", 7, 11, ()),
        ("Broadcast", 0, 1, (5,)),
    ]
    assert (answer.dead_count, answer.timeouts, answer.lost[0].is_dead) == (1, 2, True)
    assert (small.id, small.status) == ("group 1 of 2 communicators", "INIT")


def test_text_before_2_26_does_not_name_the_collective() -> None:
    text = TEXT_226.replace("2.26.2", "2.24.3").replace("different AllReduce", "different collective")
    assert read_text(text, address="x", is_partial=False).communicators[0].counts[0].operation == "collective"


@pytest.mark.parametrize("read", [read_json, read_text])
@pytest.mark.parametrize("text", ["", "[]", "ERROR: Unknown command", '{"a": 1}', "\0\0"])
def test_what_is_no_answer(read: Callable[..., RasAnswer], text: str) -> None:
    with pytest.raises(NotAnAnswer):
        read(text, address="x", is_partial=False)


# What it means.


def json_answer(ranks: list[dict[str, object]], missing: list[dict[str, object]] | None = None) -> RasAnswer:
    return read_json(status(ranks, missing or []), address="x", is_partial=False)


def of_kind(findings: tuple[RasFinding, ...], kind: RasKind) -> list[RasFinding]:
    return [finding for finding in findings if finding.kind is kind]


def test_the_rank_behind_is_named_by_its_count() -> None:
    (finding,) = read_ras([json_answer(FIVE)] * 2)
    assert (finding.kind, finding.ranks, finding.pids, finding.lag) == (RasKind.BEHIND, (2,), (4702,), 1)
    assert finding.is_still is True
    assert finding.text == "rank 2 has launched 639 AllReduce, others 640, unchanged between two looks"


def test_a_majority_behind_is_behind_although_only_the_leaders_are_listed() -> None:
    behind, broadcast = of_kind(
        read_ras([read_text(TEXT_226, address="x", is_partial=False)]), RasKind.BEHIND
    )
    assert (behind.count, behind.ranks) == (10, ())
    assert behind.text == "10 ranks (not named) have launched 639 AllReduce, others 640"
    assert (broadcast.ranks, broadcast.pids) == ((5,), (1005,))


def test_a_busy_job_moves_between_two_looks() -> None:
    first = read_text(recorded("healthy_busy"), address="x", is_partial=False)
    later = read_text(recorded("healthy_busy").replace("10256", "10301"), address="x", is_partial=False)
    (finding,) = read_ras([first, later])
    assert finding.is_still is False and finding.text.endswith("and counts are moving")
    (alone,) = read_ras([first])
    assert alone.is_still is None


def test_equal_counts_say_nothing() -> None:
    assert read_ras([json_answer([rank(0), rank(1), rank(2)])] * 2) == ()
    assert read_ras([read_text(recorded("healthy_idle"), address="x", is_partial=False)]) == ()
    assert read_ras([]) == ()


def test_missing_and_dead_ranks() -> None:
    findings = read_ras([json_answer([rank(0), rank(2)], [lost(1), lost(3, dead=True), lost(4)])])
    (missing,), (dead,) = of_kind(findings, RasKind.MISSING), of_kind(findings, RasKind.DEAD)
    assert (missing.ranks, missing.pids) == ((1, 4), (4701, 4704))
    assert (dead.ranks, dead.text) == ((3,), "rank 3 is given up as dead")


def test_ranks_still_initialising_or_failed() -> None:
    findings = read_ras([json_answer([rank(0), rank(1, init_state=7), rank(2, async_error=3)])])
    assert [(f.kind, f.ranks) for f in findings] == [(RasKind.INITIALISING, (1,)), (RasKind.FAILED, (2,))]


def test_whose_answer_it_is() -> None:
    answer = json_answer(FIVE)
    assert is_answer_of(answer, {4702, 1}) is True
    assert is_answer_of(answer, {1, 2}) is False
    assert is_answer_of(replace(answer, communicators=()), {4702}) is None
