"""The kernel's socket diagnostics (``sock_diag``, what ``ss`` uses): peers of UNIX sockets, bytes of TCP ones.

/proc/net/unix names no peer and /proc/net/tcp counts no bytes. A netlink socket asks the network namespace it
was made in, so for a container's a thread of ours enters it (as root) and ends there. A first query on a host
makes the kernel load ``unix_diag`` and ``tcp_diag``, as a first ``ss`` does.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# include/uapi/linux: sock_diag.h, netlink.h, unix_diag.h, inet_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_UDIAG_SHOW_NAME_PEER_QUEUE = 1 | 4 | 16
_UNIX_NAME, _UNIX_PEER, _UNIX_QUEUE = 0, 2, 4
_INET_INFO = 2
_ALL_STATES = 0xFFFFFFFF
_NO_COOKIE = 0xFFFFFFFF
_LISTEN_AND_TIME_WAIT = 1 << 10 | 1 << 6
# struct tcp_info (include/uapi/linux/tcp.h), fields added in 4.1: bytes_acked at 120, bytes_received at 128.
_BYTES_AT = 120

LIMIT_S = 2.0
MAX_MESSAGES = 20_000

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """``name`` is a path, ``@abstract``, or ``None``; ``state`` as for TCP (1 connected, 10 listening)."""

    state: int
    name: str | None
    peer: int | None
    """Inode of the other end."""
    receive_queue: int | None
    send_queue: int | None


@dataclass(frozen=True, slots=True)
class TcpBytes:
    """Since the connection was made. ``sent`` counts what the peer's kernel has acknowledged."""

    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Of one network namespace, by inode; empty where netlink is not allowed."""

    unix: Mapping[int, UnixSocket]
    tcp_bytes: Mapping[int, TcpBytes]


NOTHING = Diagnostics({}, {})


def read_diagnostics(pid: int | None = None) -> Diagnostics:
    """Of our own namespace, or of that of ``pid``, which needs CAP_SYS_ADMIN. Never raises."""
    if pid is None:
        return _read_here()
    found: list[Diagnostics] = []

    def enter_and_read() -> None:
        with contextlib.suppress(OSError):
            _enter_network_of(pid)
            found.append(_read_here())

    # setns(2) moves the calling thread only; nothing else runs in it, and it is not used again.
    visitor = threading.Thread(target=enter_and_read, daemon=True)
    visitor.start()
    visitor.join(3 * LIMIT_S)
    return found[0] if found else NOTHING


def _enter_network_of(pid: int) -> None:
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(fd, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)


def _read_here() -> Diagnostics:
    """Both are extras: without netlink (a seccomp profile) TCP peers and queues are still known."""
    unix: Mapping[int, UnixSocket] = {}
    tcp_bytes: Mapping[int, TcpBytes] = {}
    with contextlib.suppress(OSError):
        unix = read_unix_sockets()
    with contextlib.suppress(OSError):
        tcp_bytes = read_tcp_bytes()
    return Diagnostics(unix, tcp_bytes)


def read_unix_sockets() -> dict[int, UnixSocket]:
    """All UNIX sockets of this thread's network namespace by inode. Raises ``OSError`` where netlink is not allowed."""
    request = struct.pack(
        "=BBHIIIII",
        socket.AF_UNIX,
        0,
        0,
        _ALL_STATES,
        0,
        _UDIAG_SHOW_NAME_PEER_QUEUE,
        _NO_COOKIE,
        _NO_COOKIE,
    )
    found = {}
    for message in _dump(request):
        _, _, state, _, inode = struct.unpack_from("=BBBBI", message)
        name, peer, queues = None, None, (None, None)
        for kind, value in _attributes(message, 16):
            if kind == _UNIX_NAME:
                name = _decode_name(value)
            elif kind == _UNIX_PEER and len(value) == 4:
                peer = int.from_bytes(value, "little") or None
            elif kind == _UNIX_QUEUE and len(value) == 8:
                queues = struct.unpack("=II", value)
        found[inode] = UnixSocket(state, name, peer, *queues)
    return found


def _decode_name(raw: bytes) -> str | None:
    if not raw:
        return None
    if raw.startswith(b"\0"):
        return "@" + raw[1:].replace(b"\0", b"@").decode("utf-8", "backslashreplace")
    return raw.rstrip(b"\0").decode("utf-8", "backslashreplace")


def read_tcp_bytes() -> dict[int, TcpBytes]:
    """Byte counters of the connections of this thread's network namespace by inode. Raises ``OSError``."""
    found = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        states = _ALL_STATES & ~_LISTEN_AND_TIME_WAIT
        request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INET_INFO - 1), 0, states)
        for message in _dump(request + bytes(40) + struct.pack("=II", _NO_COOKIE, _NO_COOKIE)):
            inode = struct.unpack_from("=I", message, 68)[0]
            for kind, value in _attributes(message, 72):
                if inode and kind == _INET_INFO and len(value) >= _BYTES_AT + 16:
                    acknowledged, received = struct.unpack_from("=QQ", value, _BYTES_AT)
                    # The SYN counts as one byte (RFC 9293).
                    found[inode] = TcpBytes(max(0, acknowledged - 1), received)
    return found


def _dump(request: bytes) -> Iterator[bytes]:
    end = time.monotonic() + LIMIT_S
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as channel:
        channel.settimeout(LIMIT_S)
        size = _HEADER.size + len(request)
        channel.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_REQUEST_DUMP, 1, 0) + request)
        for _ in range(MAX_MESSAGES):
            for message_kind, body in _messages(channel.recv(1 << 18)):
                if message_kind == _NLMSG_DONE:
                    return
                if message_kind == _NLMSG_ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    raise OSError(code, os.strerror(code))
                yield body
            if time.monotonic() > end:
                raise OSError(errno.ETIMEDOUT, "the kernel's socket dump did not end")


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            return
        yield kind, data[offset + _HEADER.size : offset + length]
        offset += length + 3 & ~3


def _attributes(message: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    while offset + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind, message[offset + _ATTRIBUTE.size : offset + length]
        offset += length + 3 & ~3
