"""Who is at the other end of real sockets and pipes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from hangdoctor.collect import holders, netlink, sockets
from hangdoctor.collect.holders import Holders
from hangdoctor.collect.sockets import read_connections, read_pipe_ends, read_shared_memory
from hangdoctor.model import Socket
from tests.b_support import eventually, words_of
from tests.conftest import stuck


@dataclass(frozen=True)
class Pair:
    words: dict[str, str]

    def __getitem__(self, name: str) -> int:
        return int(self.words[name])

    @property
    def pids(self) -> tuple[int, int, int]:
        return self["server"], self["client"], self["heir"]

    def look(self, *pids: int) -> dict[tuple[int, int], Socket]:
        """(pid, fd) to socket, as soon as the heir has closed what it does not keep."""

        def settled() -> dict[int, tuple[Socket, ...]] | None:
            seen = read_connections(pids or self.pids)
            return seen if len(seen.get(self["heir"], "1")) == 1 else None

        return {(pid, s.fd): s for pid, found in eventually(settled).items() for s in found}


@pytest.fixture(scope="module", params=["tcp", "tcp6", "own_net"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    if request.param == "own_net" and os.geteuid() != 0:
        pytest.skip("only root makes and enters network namespaces")
    with stuck("b_connected.py", request.param, tmp_path_factory.mktemp("pair"), lines=2) as program:
        yield Pair({name: value for line in program.said for name, value in words_of(line).items()})


def test_tcp_peers_are_all_heirs_of_the_other_end(pair: Pair) -> None:
    seen = pair.look()
    talker, answerer = seen[pair["client"], pair["talker"]], seen[pair["server"], pair["answerer"]]
    assert talker.peers == tuple(sorted((pair["server"], pair["heir"])))
    assert answerer.peers == (pair["client"],)
    assert talker.remote == answerer.local == f"127.0.0.1:{pair['port']}"
    assert talker.local == answerer.remote
    assert talker.state == answerer.state == "ESTABLISHED"


def test_tcp_queues_and_bytes_tell_who_does_not_read(pair: Pair) -> None:
    seen = pair.look()
    talker, answerer = seen[pair["client"], pair["talker"]], seen[pair["server"], pair["answerer"]]
    assert (answerer.receive_queue_bytes, answerer.bytes_received) == (1000, 1000)
    assert (talker.receive_queue_bytes, talker.send_queue_bytes, talker.bytes_sent) == (0, 0, 1000)


def test_a_listener_has_no_peer_and_no_queue_in_bytes(pair: Pair) -> None:
    listener = pair.look()[pair["server"], pair["listener"]]
    assert (listener.state, listener.remote, listener.peers) == ("LISTEN", None, ())
    assert listener.receive_queue_bytes is None


def test_unix_peers_by_path_and_by_pair(pair: Pair) -> None:
    seen = pair.look()
    unix, answerer = seen[pair["client"], pair["unix"]], seen[pair["server"], pair["unix_answerer"]]
    assert (unix.family, unix.peers, unix.remote) == ("unix", (pair["server"],), pair.words["path"])
    assert (answerer.peers, answerer.local) == ((pair["client"],), pair.words["path"])
    assert answerer.receive_queue_bytes == 1000
    assert seen[pair["client"], pair["pair"]].peers == (pair["server"],)
    assert seen[pair["server"], pair["pair_server"]].peers == (pair["client"],)


def test_peers_outside_the_asked_processes_are_found_too(pair: Pair) -> None:
    seen = {(pair["client"], s.fd): s for s in read_connections([pair["client"]])[pair["client"]]}
    assert pair["server"] in seen[pair["client"], pair["talker"]].peers
    assert seen[pair["client"], pair["pair"]].peers == (pair["server"],)


def test_a_peer_that_is_gone_leaves_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        answerer, _ = server.accept()
        answerer.close()
        mine = {s.fd: s for s in read_connections([os.getpid()])[os.getpid()]}
        assert (mine[client.fileno()].state, mine[client.fileno()].peers) == ("CLOSE_WAIT", ())
        client.close()


def test_without_netlink_tcp_is_still_known(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(netlink, "read_unix_sockets", refuse)
    monkeypatch.setattr(netlink, "read_tcp_bytes", refuse)
    seen = {s.fd: s for s in read_connections(pair.pids)[pair["client"]]}
    assert set(seen) == {pair["talker"]}
    assert pair["server"] in seen[pair["talker"]].peers
    assert seen[pair["talker"]].bytes_sent is None


def test_a_process_that_is_gone_or_may_not_be_seen_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_connections([2**22 - 1]) == {}
    assert read_connections([os.getpid()]).keys() == {os.getpid()}
    listdir = os.listdir

    def refuse(path: str) -> list[str]:
        if path.endswith("/fd"):
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert read_connections([os.getpid()]) == {}


def test_pipe_ends_name_the_only_writer(pair: Pair) -> None:
    pair.look()
    readers, writers = read_pipe_ends(pair.pids)[pair["pipe"]]
    assert readers == (pair["client"],)
    assert writers == (pair["server"],)


def test_a_pipe_without_a_writer_is_said_only_if_all_could_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    inode = os.fstat(read_end).st_ino
    os.close(write_end)
    assert read_pipe_ends([os.getpid()])[inode] == ((os.getpid(),), ())
    complete = holders.scan_host

    def hide_one(inodes: set[int]) -> Holders:
        return Holders(complete(inodes).held, is_complete=False)

    monkeypatch.setattr(sockets, "scan_host", hide_one)
    assert inode not in read_pipe_ends([os.getpid()])
    os.close(read_end)


def test_a_scan_that_runs_out_of_time_is_not_complete() -> None:
    assert not holders.scan_host([1], limit_s=0.0).is_complete


def test_shared_memory_lists_those_who_map_it(pair: Pair) -> None:
    pair.look()
    ours = [found for found in read_shared_memory(pair.pids) if "hd_test_" in found.path]
    assert [found.pids for found in ours] == [tuple(sorted((pair["server"], pair["client"])))]
    assert ours[0].size_bytes == 8192


def test_memory_mapped_by_one_is_not_shared(pair: Pair) -> None:
    assert not [f for f in read_shared_memory([pair["server"]]) if "hd_test_" in f.path]
