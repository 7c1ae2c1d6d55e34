"""Who talks to whom: connections, pipes and shared memory of processes, with the processes at the other end.

Only this host is seen: a connection without a peer here goes to another one. A descriptor inherited through
fork makes every heir a possible peer; all of them are reported.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from hangdoctor.collect.holders import Held, Holders, find_holders, scan_host
from hangdoctor.collect.memory import read_regions
from hangdoctor.collect.netlink import Diagnostics, TcpBytes, UnixSocket, read_diagnostics
from hangdoctor.model import Socket

MAX_TABLE_BYTES = 32 << 20
"""About 200,000 connections a network namespace."""
MAX_SOCKETS = 4096
"""Reported a process; a gateway may have more."""
_LISTEN = 10
_STATES = {
    1: "ESTABLISHED",
    2: "SYN_SENT",
    3: "SYN_RECV",
    4: "FIN_WAIT1",
    5: "FIN_WAIT2",
    6: "TIME_WAIT",
    7: "CLOSE",
    8: "CLOSE_WAIT",
    9: "LAST_ACK",
    10: "LISTEN",
    11: "CLOSING",
}
MAPPED_V4 = "0000000000000000FFFF0000"
"""Before an IPv4 address in tables of IPv6."""


class PipeEnds(NamedTuple):
    """Pids, ascending, that hold each end of a pipe."""

    readers: tuple[int, ...]
    writers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """A shared mapping (``/dev/shm/…``, a memfd, System V) and who maps it."""

    path: str
    device: str
    inode: int
    size_bytes: int
    pids: tuple[int, ...]


# --- connections --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TcpRow:
    family: str
    local: str
    remote: str
    """As the kernel prints them: hex words in host order."""
    state: int
    send_queue: int
    receive_queue: int
    inode: int


def read_connections(pids: Collection[int]) -> dict[int, tuple[Socket, ...]]:
    """TCP and UNIX sockets of each process by fd. A process that may not be looked at is left out. Never raises.

    ``peers`` are found among ``pids`` first; the rest of the host is searched only for ends that are missing
    there, for at most half a second. In another network namespace (a container's), UNIX sockets and the byte
    counters of TCP are seen by root only. A listening socket has no queues: the kernel counts connections there.
    """
    holders = find_holders(pids)
    # A table costs 4 ms however few connections there are: the kernel walks all of its hash buckets.
    namespaces = {pid: _namespace(pid) for pid in {held.pid for held in holders.held if held.is_socket}}
    tables, kernel = _read_tables(namespaces), _ask_kernel(namespaces)
    peer_of: dict[int, int] = {}
    found: dict[int, list[tuple[Held, Socket]]] = {pid: [] for pid in pids if _may_look(pid)}
    for held in holders.held:
        if not held.is_socket or len(found.get(held.pid, ())) >= MAX_SOCKETS:
            continue
        namespace = namespaces[held.pid]
        row, asked = tables[namespace].by_inode.get(held.inode), kernel[namespace]
        if row is not None:
            known = _describe_tcp(held, row, asked.tcp_bytes.get(held.inode))
            peer = _find_tcp_peer(row, namespace, tables)
        elif held.inode in asked.unix:
            known, peer = _describe_unix(held, asked.unix), asked.unix[held.inode].peer
        else:
            continue
        if peer is not None:
            peer_of[held.inode] = peer
        found.setdefault(held.pid, []).append((held, known))
    outside = _scan_for(set(peer_of.values()).difference(holders.by_inode))

    def name_peers(held: Held, known: Socket) -> Socket:
        peer = peer_of.get(held.inode)
        if peer is None:
            return known
        return replace(known, peers=holders.pids(peer) or (outside.pids(peer) if outside else ()))

    return {
        pid: tuple(sorted((name_peers(*item) for item in items), key=lambda known: known.fd))
        for pid, items in found.items()
    }


def _scan_for(inodes: Collection[int]) -> Holders | None:
    return scan_host(inodes) if inodes else None


def _may_look(pid: int) -> bool:
    try:
        os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    return True


def _ask_kernel(namespaces: Mapping[int, str]) -> dict[str, Diagnostics]:
    """What netlink says about each network namespace."""
    ours = _namespace("self")
    found: dict[str, Diagnostics] = {}
    for pid, namespace in namespaces.items():
        if namespace not in found:
            found[namespace] = read_diagnostics(None if namespace == ours else pid)
    return found


def _namespace(pid: int | str) -> str:
    """The network namespace; a name of its own when it may not be seen, so that nothing is mixed up."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return f"of pid {pid}"


@dataclass(frozen=True, slots=True)
class _Table:
    """The TCP sockets of one network namespace."""

    by_inode: Mapping[int, _TcpRow]
    by_ends: Mapping[tuple[str, str], int]
    """(local, remote) of everything but listeners to its inode."""


def _read_tables(namespaces: Mapping[int, str]) -> dict[str, _Table]:
    """One table is read for each namespace, through any process in it."""
    tables: dict[str, _Table] = {}
    for pid, namespace in namespaces.items():
        if namespace in tables:
            continue
        rows = [row for family in ("tcp", "tcp6") for row in _parse_table(_read_table(pid, family), family)]
        tables[namespace] = _Table(
            {row.inode: row for row in rows},
            {(_unmap(row.local), _unmap(row.remote)): row.inode for row in rows if row.state != _LISTEN},
        )
    return tables


def _read_table(pid: int, family: str) -> str:
    try:
        with open(f"/proc/{pid}/net/{family}", "rb") as file:
            return file.read(MAX_TABLE_BYTES).decode("ascii", "replace")
    except OSError:
        return ""


def _parse_table(text: str, family: str) -> Iterable[_TcpRow]:
    for line in text.splitlines()[1:]:
        fields = line.split(None, 10)
        # An orphan (inode 0: closed by its process, or TIME_WAIT) belongs to nobody.
        if len(fields) < 10 or fields[9] == "0":
            continue
        send, _, receive = fields[4].partition(":")
        yield _TcpRow(
            family,
            fields[1],
            fields[2],
            int(fields[3], 16),
            int(send, 16),
            int(receive, 16),
            int(fields[9]),
        )


def _find_tcp_peer(row: _TcpRow, namespace: str, tables: Mapping[str, _Table]) -> int | None:
    """Inode of the row with our two ends swapped: in our own namespace, else in one connected to it."""
    if row.state == _LISTEN:
        return None
    swapped = _unmap(row.remote), _unmap(row.local)
    own = tables[namespace].by_ends.get(swapped)
    if own is not None or _decode_end(row.remote).startswith(("127.", "[::1]")):
        return own
    return next((table.by_ends[swapped] for table in tables.values() if swapped in table.by_ends), None)


def _describe_tcp(held: Held, row: _TcpRow, counted: TcpBytes | None) -> Socket:
    is_listening = row.state == _LISTEN
    return Socket(
        fd=held.fd,
        family=row.family,
        state=_STATES.get(row.state),
        local=_decode_end(row.local),
        remote=None if is_listening else _decode_end(row.remote),
        receive_queue_bytes=None if is_listening else row.receive_queue,
        send_queue_bytes=None if is_listening else row.send_queue,
        inode=held.inode,
        bytes_received=counted.received if counted else None,
        bytes_sent=counted.sent if counted else None,
    )


def _describe_unix(held: Held, unix: Mapping[int, UnixSocket]) -> Socket:
    own = unix[held.inode]
    other = unix.get(own.peer) if own.peer is not None else None
    is_listening = own.state == _LISTEN
    return Socket(
        fd=held.fd,
        family="unix",
        state=_STATES.get(own.state),
        local=own.name,
        remote=other.name if other else None,
        receive_queue_bytes=None if is_listening else own.receive_queue,
        send_queue_bytes=None if is_listening else own.send_queue,
        inode=held.inode,
    )


def _unmap(end: str) -> str:
    """An IPv4 peer of a dual-stack socket stands in tcp6 as ::ffff:a.b.c.d and in tcp as a.b.c.d."""
    return end[len(MAPPED_V4) :] if end.startswith(MAPPED_V4) else end


def _decode_end(end: str) -> str:
    """``0100007F:1F90`` as ``127.0.0.1:8080``, IPv6 in brackets."""
    words, _, port = _unmap(end).partition(":")
    raw = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"


# --- pipes and shared memory --------------------------------------------------------------------------


def read_pipe_ends(pids: Collection[int]) -> dict[int, PipeEnds]:
    """For every pipe that one of ``pids`` holds an end of: who on this host can read from it and write to it.

    A pipe whose readers or writers seem to be nobody is left out unless every process of the host could be
    looked at: an end may be held where we may not look. Never raises. Cost: 7-28 ms for a host of 150 processes.
    """
    inodes = {held.inode for held in find_holders(pids).held if not held.is_socket}
    if not inodes:
        return {}
    seen = scan_host(inodes)
    ends = {}
    for inode, holding in seen.by_inode.items():
        pipe = PipeEnds(
            tuple(sorted({held.pid for held in holding if held.can_read})),
            tuple(sorted({held.pid for held in holding if held.can_write})),
        )
        if seen.is_complete or (pipe.readers and pipe.writers):
            ends[inode] = pipe
    return ends


def read_shared_memory(pids: Collection[int]) -> tuple[SharedMemory, ...]:
    """Shared mappings that at least two of ``pids`` have in common, by path.

    Reads ``maps``, so call it behind a deadline. A process that may not be looked at is passed over.
    """
    found: dict[tuple[str, int], SharedMemory] = {}
    for pid in pids:
        try:
            regions = read_regions(pid)
        except OSError:
            continue
        for region in regions:
            if "s" not in region.permissions or not region.path.startswith(("/dev/shm/", "/memfd:", "/SYSV")):
                continue
            key = (region.device, region.inode)
            size = region.offset + region.end - region.start
            known = found.get(key) or SharedMemory(region.path, *key, size_bytes=0, pids=())
            found[key] = replace(
                known,
                size_bytes=max(known.size_bytes, size),
                pids=tuple(sorted({*known.pids, pid})),
            )
    shared = (memory for memory in found.values() if len(memory.pids) > 1)
    return tuple(sorted(shared, key=lambda memory: (memory.path, memory.inode)))
