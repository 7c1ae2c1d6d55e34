"""Connections between hosts: which process holds the other end of a TCP connection, and whose address is whose.

A connection has the same two ends on both hosts, the other way round; where both were looked at, that names the
process, across namespaces and whatever the service is (torch's store, gloo's pairs, NCCL's bootstrap, ZeroMQ). The
loopback address is another place on every host and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangdoctor.knowledge.catalogue import RoleKind
from hangdoctor.model import Process, Socket

if TYPE_CHECKING:
    from hangdoctor.case import Member

_HERE = re.compile(r"^(127\.|0\.0\.0\.0|\[::1?\]|\[::ffff:127\.)")
_TALKING = ("ESTABLISHED", "SYN_SENT", "CLOSE_WAIT")
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Wires:
    """All ends of connections that were seen."""

    ends: Mapping[tuple[str, str], tuple[Member, ...]]
    """(own address, other's address) to those who hold that end; several where a fork handed it on."""
    listeners: Mapping[str, tuple[Member, ...]]
    """Port to those who listen on it, for a connection that its other end has not accepted yet."""
    hosts: Mapping[str, str | None]
    """Address to the host it belongs to, of all hosts that were looked at."""

    def holders(self, socket: Socket) -> tuple[Member, ...]:
        """Who was seen to hold the other end of a connection; also who should accept it."""
        if socket.local is None or socket.remote is None or not is_far(socket):
            return ()
        found = self.ends.get((socket.remote, socket.local), ())
        if found:
            return found
        host = self.hosts.get(_address(socket.remote), "")
        port = socket.remote.rpartition(":")[2]
        return tuple(m for m in self.listeners.get(port, ()) if host and m.key.host == host)

    def host_of(self, remote: str) -> str | None:
        """The host that was looked at and has this address; ``None`` for one that was not."""
        return self.hosts.get(_address(remote))

    def unseen_addresses(self, member: Member) -> tuple[str, ...]:
        """Addresses on hosts that were not looked at, to which a process is connected."""
        found = {
            _address(socket.remote)
            for socket in member.last.sockets
            if socket.remote and is_far(socket) and _address(socket.remote) not in self.hosts
        }
        return tuple(sorted(found))


def lay_out(members: Sequence[Member]) -> Wires:
    """The connections of all members at their last look."""
    ends: dict[tuple[str, str], list[Member]] = {}
    listeners: dict[str, list[Member]] = {}
    hosts: dict[str, str | None] = {}
    for member in members:
        for socket in _tcp(member.last):
            if socket.local is None:
                continue
            address, _, port = socket.local.rpartition(":")
            if socket.remote is None or socket.state == "LISTEN":
                listeners.setdefault(port, []).append(member)
            if not _HERE.match(socket.local):
                hosts[address] = member.key.host
                if socket.remote is not None:
                    ends.setdefault((socket.local, socket.remote), []).append(member)
    return Wires(
        {key: tuple(found) for key, found in ends.items()},
        {port: tuple(found) for port, found in listeners.items()},
        hosts,
    )


def is_far(socket: Socket) -> bool:
    """Whether its other end has an address that another host could have."""
    remote = socket.remote or ""
    if not socket.family.startswith("tcp") or socket.state not in _TALKING or _HERE.match(remote):
        return False
    return _address(remote) != _address(socket.local or "")


def name_unseen(wires: Wires, member: Member) -> str:
    """``; it has connections to 10.0.0.3, which was not looked at``, or nothing."""
    addresses = wires.unseen_addresses(member) if member.kind is RoleKind.RANK else ()
    if not addresses:
        return ""
    more = f" and {len(addresses) - _MOST_NAMED} more" if len(addresses) > _MOST_NAMED else ""
    return f"; connected to {', '.join(addresses[:_MOST_NAMED])}{more}, not looked at"


def _tcp(process: Process) -> Iterator[Socket]:
    return (socket for socket in process.sockets if socket.family.startswith("tcp"))


def _address(end: str) -> str:
    return end.rpartition(":")[0]
