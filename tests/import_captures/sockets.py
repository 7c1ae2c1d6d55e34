"""What ``ss -tnp`` and ``ss -xp`` printed, as sockets by process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hangdoctor.model import Socket

_USER = re.compile(r'\("[^"]*",pid=(\d+),fd=(\d+)\)')
_TCP = re.compile(r"(\S+)\s+(\d+)\s+(\d+)\s+(\S+:\S+)\s+(\S+:\S+)")
_UNIX = re.compile(r"(u_\w+)\s+(\S+)\s+(\d+)\s+(\d+)\s+(\S+)\s+(\d+)\s+(\S+)\s+(\d+)")


@dataclass(frozen=True, slots=True)
class _Row:
    socket: Socket
    end: object
    """What a peer calls this end."""
    peer: object
    """What this end calls the other."""
    users: tuple[tuple[int, int], ...]


def read(tcp: str, unix: str) -> dict[int, tuple[Socket, ...]]:
    """Pid -> its sockets, with the pids at the other ends that are on this host."""
    rows = [*_tcp_rows(tcp), *_unix_rows(unix)]
    owners: dict[object, set[int]] = {}
    for row in rows:
        owners.setdefault(row.end, set()).update(pid for pid, _ in row.users)
    found: dict[int, list[Socket]] = {}
    for row in rows:
        peers = tuple(sorted(owners.get(row.peer, ())))
        for pid, fd in row.users:
            found.setdefault(pid, []).append(replace(row.socket, fd=fd, peers=peers))
    return {pid: tuple(sorted(sockets, key=lambda socket: socket.fd)) for pid, sockets in found.items()}


def with_inodes(sockets: tuple[Socket, ...], inodes: Mapping[int, int | None]) -> tuple[Socket, ...]:
    """``ss -t`` prints no inodes; the descriptors' links do."""
    return tuple(replace(socket, inode=inodes.get(socket.fd)) for socket in sockets)


def _users(line: str) -> tuple[tuple[int, int], ...]:
    return tuple((int(pid), int(fd)) for pid, fd in _USER.findall(line))


def _tcp_rows(text: str) -> Iterator[_Row]:
    for line in text.splitlines()[1:]:
        found = _TCP.match(line)
        if found is None:
            continue
        state, received, sent, local, remote = found.groups()
        is_listening = state == "LISTEN"
        family = "tcp6" if local.startswith("[") else "tcp"
        socket = Socket(
            fd=0,
            family=family,
            state=state,
            local=local,
            remote=None if is_listening else remote,
            # ss prints a listener's backlog in these columns
            receive_queue_bytes=None if is_listening else int(received),
            send_queue_bytes=None if is_listening else int(sent),
        )
        yield _Row(socket, (local, remote), (remote, local), _users(line))


def _unix_rows(text: str) -> Iterator[_Row]:
    for line in text.splitlines()[1:]:
        found = _UNIX.match(line)
        if found is None:
            continue
        _, state, received, sent, path, inode, _, peer = found.groups()
        socket = Socket(
            fd=0,
            family="unix",
            state=state,
            local=None if path == "*" else path,
            receive_queue_bytes=None if state == "LISTEN" else int(received),
            send_queue_bytes=None if state == "LISTEN" else int(sent),
            inode=int(inode),
        )
        yield _Row(socket, int(inode), int(peer), _users(line))
