"""Which process is at the other end of a TCP connection, and whose address is whose.

A connection has the same two ends on both hosts, the other way round; where both were looked at, that names the
process, across namespaces and whatever the service is (torch's store, gloo's pairs, NCCL's bootstrap, ZeroMQ). A
connection that was not accepted yet has no process at its other end: who listens there must accept it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangdoctor.knowledge.catalogue import RoleKind
from hangdoctor.model import Host, Process, Socket

if TYPE_CHECKING:
    from hangdoctor.case import Member

_HERE = re.compile(r"^(127\.|0\.0\.0\.0|\[::1?\]|\[::ffff:127\.)")
_EVERYWHERE = ("0.0.0.0", "[::]")
"""The address of a listener that takes connections to any address of its host."""
_TALKING = ("ESTABLISHED", "SYN_SENT", "CLOSE_WAIT")
_TO_BE_ACCEPTED = ("ESTABLISHED", "SYN_SENT")
"""The kernel shakes hands for a listener as long as there is room in its queue, and then lets connect wait."""
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Wires:
    """All ends of connections that were seen."""

    ends: Mapping[tuple[str, str], tuple[Member, ...]]
    """(own address, other's address) to those who hold that end; several where a fork handed it on."""
    listeners: Mapping[tuple[str | None, str], tuple[tuple[str, Member], ...]]
    """(host, port) to those who listen there, each with the address it listens on."""
    owners: Mapping[str, frozenset[str | None]]
    """Address to the hosts that have it, of all that were looked at. Every host has a bridge for its containers, and
    the bridges of several have the same address."""

    def holders(self, socket: Socket) -> tuple[Member, ...]:
        """Who was seen, on whatever host, to hold the other end of a connection that leaves its own."""
        if socket.local is None or socket.remote is None or not is_far(socket):
            return ()
        return self.ends.get((socket.remote, socket.local), ())

    def acceptors(self, member: Member, socket: Socket) -> tuple[Member, ...]:
        """Who should accept the connection of ``member``, if nobody holds its other end."""
        remote = socket.remote
        if remote is None or socket.peers or not _is_tcp(socket) or socket.state not in _TO_BE_ACCEPTED:
            return ()
        hosts = self.hosts_of(remote, member) if is_far(socket) else (member.key.host,)
        if len(hosts) != 1:
            return ()
        address, _, port = remote.rpartition(":")
        found = self.listeners.get((*hosts, port), ())
        return tuple(m for own, m in found if own in (*_EVERYWHERE, address) and m is not member)

    def hosts_of(self, remote: str, member: Member) -> tuple[str | None, ...]:
        """The hosts that were looked at and have the address that ``member`` talks to: its own alone, if it has it."""
        owners = self.owners.get(_address(remote), frozenset())
        if member.key.host in owners:
            return (member.key.host,)
        return tuple(sorted(owners, key=str))

    def unseen_addresses(self, member: Member) -> tuple[str, ...]:
        """Addresses on hosts that were not looked at, to which a process is connected."""
        found = {
            _address(socket.remote)
            for socket in member.last.sockets
            if socket.remote and is_far(socket) and _address(socket.remote) not in self.owners
        }
        return tuple(sorted(found))


def lay_out(members: Sequence[Member], hosts: Sequence[Host] = ()) -> Wires:
    """The connections of all members at their last look. A host's addresses are its own, and those its members use."""
    ends: dict[tuple[str, str], list[Member]] = {}
    listeners: dict[tuple[str | None, str], list[tuple[str, Member]]] = {}
    is_named = all(member.key.host is not None for member in members)  # those of a lone capture name no host
    owned = [(address, host.name if is_named else None) for host in hosts for address in host.addresses]
    for member in members:
        for socket in _tcp(member.last):
            if socket.local is None:
                continue
            address, _, port = socket.local.rpartition(":")
            if socket.remote is None or socket.state == "LISTEN":
                listeners.setdefault((member.key.host, port), []).append((address, member))
            if not is_loopback(socket.local):
                owned.append((address, member.key.host))
                if socket.remote is not None:
                    ends.setdefault((socket.local, socket.remote), []).append(member)
    return Wires(
        {key: tuple(found) for key, found in ends.items()},
        {key: tuple(found) for key, found in listeners.items()},
        _owners(owned),
    )


def _owners(owned: Iterable[tuple[str, str | None]]) -> Mapping[str, frozenset[str | None]]:
    found: dict[str, set[str | None]] = {}
    for address, host in owned:
        found.setdefault(address, set()).add(host)
    return {address: frozenset(hosts) for address, hosts in found.items()}


def is_loopback(end: str) -> bool:
    """Whether ``address:port`` is another place on every host."""
    return _HERE.match(end) is not None


def is_far(socket: Socket) -> bool:
    """Whether its other end has an address that another host could have.

    An address that is also our own end's is this host, also where the process behind it was not found.
    """
    remote = socket.remote or ""
    if not _is_tcp(socket) or socket.state not in _TALKING or is_loopback(remote):
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
    return filter(_is_tcp, process.sockets)


def _is_tcp(socket: Socket) -> bool:
    return socket.family.startswith("tcp")


def _address(end: str) -> str:
    return end.rpartition(":")[0]
