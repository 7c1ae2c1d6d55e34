"""What a file descriptor of another process is, in words."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from hangdoctor.model import Socket

MAX_FDINFO_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Descriptor:
    """``target`` names it; ``detail`` says how far a file was read."""

    target: str
    detail: str | None = None


def describe_descriptor(pid: int, fd: int, sockets: Sequence[Socket] = ()) -> Descriptor | None:
    """``None`` when it was closed meanwhile or may not be seen. ``sockets`` are those of the process, if
    known.
    """
    try:
        link = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return None
    if link.startswith("socket:["):
        known = next((found for found in sockets if found.fd == fd), None)
        return Descriptor(describe_socket(known) if known else link)
    if link.startswith("anon_inode:"):
        return Descriptor(_describe_anonymous(pid, fd, link))
    if link.startswith("/"):
        return Descriptor(link, _describe_position(pid, fd))
    return Descriptor(link)


def describe_socket(found: Socket) -> str:
    """``TCP 127.0.0.1:1 <-> 127.0.0.1:2``, ``TCP 0.0.0.0:80 (listening)``, ``UNIX /run/x.sock``."""
    if found.family.startswith("tcp"):
        if found.state == "LISTEN":
            return f"TCP {found.local} (listening)"
        return f"TCP {found.local} <-> {found.remote}"
    return f"UNIX {found.local or found.remote or f'socket:[{found.inode}]'}"


def _describe_anonymous(pid: int, fd: int, link: str) -> str:
    kind = link.partition("[")[2].rstrip("]") or link.partition(":")[2]
    if kind == "eventfd":
        fields = read_fdinfo(pid, fd)
        return f"eventfd {fields.get('eventfd-id', '?')} (count {fields.get('eventfd-count', '?')})"
    if kind == "pidfd":
        return f"pid {read_fdinfo(pid, fd).get('Pid', '?')}"
    return kind


def _describe_position(pid: int, fd: int) -> str | None:
    """Only what procfs knows: to stat the file could hang with the very file system that the target waits
    for.
    """
    position = read_fdinfo(pid, fd).get("pos", "")
    return f"at byte {position}" if position not in ("", "0") else None


def read_fdinfo(pid: int, fd: int) -> dict[str, str]:
    """The fields of ``/proc/PID/fdinfo/FD``; empty when it may not be seen."""
    fields: dict[str, str] = {}
    for line in _read_fdinfo_text(pid, fd).splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name, value.strip())
    return fields


def read_watched(pid: int, fd: int, limit: int) -> tuple[int, ...]:
    """The descriptors that an epoll set watches, lowest first, at most ``limit``."""
    watched = set()
    for line in _read_fdinfo_text(pid, fd).splitlines():
        if line.startswith("tfd:"):
            watched.add(int(line.split()[1]))
    return tuple(sorted(watched)[:limit])


def _read_fdinfo_text(pid: int, fd: int) -> str:
    try:
        with open(f"/proc/{pid}/fdinfo/{fd}", "rb") as file:
            return file.read(MAX_FDINFO_BYTES).decode("ascii", "replace")
    except OSError:
        return ""


def describe_address(raw: bytes) -> str | None:
    """A ``struct sockaddr`` (as handed to connect) as ``host:port`` or a path."""
    if len(raw) < 4:
        return None
    family = struct.unpack_from("=H", raw)[0]
    if family == socket.AF_INET and len(raw) >= 8:
        return f"{socket.inet_ntop(socket.AF_INET, raw[4:8])}:{int.from_bytes(raw[2:4], 'big')}"
    if family == socket.AF_INET6 and len(raw) >= 24:
        return f"[{socket.inet_ntop(socket.AF_INET6, raw[8:24])}]:{int.from_bytes(raw[2:4], 'big')}"
    if family == socket.AF_UNIX:
        name = raw[2:]
        if name.startswith(b"\0"):
            return "@" + name[1:].rstrip(b"\0").decode("utf-8", "replace")
        return name.partition(b"\0")[0].decode("utf-8", "replace")
    return None
