"""A client of NCCL's RAS service (NCCL 2.24 and newer, ``localhost:28028`` unless NCCL_RAS_ADDR says otherwise).

    answer = query_ras("localhost:28028", nccl_version="2.28.9")

Opt-in, because asking is not free of danger: every query makes all ranks on all nodes answer, and queries have crashed
jobs (NVIDIA/nccl #1669 with 2.26.2, #1718 with 2.26.5, #1762 with 2.27.3 and #2346 with 2.29.7, the last while a
communicator was being made and the answer was text). No release is known to be safe; JSON skips the code of #2346.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from dataclasses import dataclass

from hangdoctor.collect.ras_answers import NotAnAnswer, read_json, read_text
from hangdoctor.model import Gap, RasAnswer

DEFAULT_ADDRESS = "localhost:28028"

DEADLINE_S = 12.0
"""The service gives each leg 5 s and the whole collection 10 s (ras_internal.h), before it answers with what it has."""

CONNECT_S = 2.0

OLDEST_ASKED = (2, 28)
"""Every crash report of a query to a running job is about 2.26 and 2.27."""

MAX_ANSWER_BYTES = 256 << 20
"""About 300 bytes a rank and communicator: a hundred communicators of 8192 ranks."""

FORCE = "Add --ras-force if losing the job is acceptable."


class _Refused(Exception):
    """The service said or did something that ends the query; the message is the gap's reason."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def query_ras(
    address: str = DEFAULT_ADDRESS,
    *,
    deadline_s: float = DEADLINE_S,
    nccl_version: str | None = None,
    is_initialising: bool = False,
    is_peer_silent: bool = False,
    force: bool = False,
) -> RasAnswer | Gap:
    """Ask once. A service that stops in the middle gives a partial answer; everything else that goes wrong, a gap.

    ``nccl_version`` is what the ranks have loaded, ``is_initialising`` whether one of them is inside
    ncclCommInitRank, ``is_peer_silent`` whether one is stopped or dead and so cannot answer its peers. They
    decide whether we dare to ask at all; ``force`` overrides that. Where the version is not known, a service
    that cannot do JSON gives it away as older than 2.28.7, and it is not asked either.
    """
    subject = f"NCCL RAS at {address}"
    try:
        if not force:
            _refuse(nccl_version, is_initialising, is_peer_silent)
        return _converse(address, time.monotonic() + deadline_s, force)
    except _Refused as why:
        return Gap("ras", subject, why.reason, why.remedy)


def _refuse(nccl_version: str | None, is_initialising: bool, is_peer_silent: bool) -> None:
    if is_initialising:
        raise _Refused(
            "not asked: a rank is still initialising, and queries crashed such jobs (nccl #2346)", FORCE
        )
    if is_peer_silent:  # seen with NCCL 2.28.9: 257 ranks read from memory that was not theirs
        raise _Refused(
            "not asked: a rank cannot answer, and NCCL then reads memory beyond its own data", FORCE
        )
    numbers = tuple(int(part) for part in re.findall(r"\d+", nccl_version or "")[:2])
    if numbers and numbers < OLDEST_ASKED:
        issues = "#1669, #1718, #1762"
        raise _Refused(f"not asked: queries crashed jobs with NCCL 2.26 and 2.27 (nccl {issues})", FORCE)


def _converse(address: str, deadline: float, force: bool) -> RasAnswer:
    asked = time.monotonic()
    with contextlib.closing(_connect(address, deadline)) as connection:
        line = _Line(connection, deadline)
        hello = line.ask("CLIENT PROTOCOL 2")
        if not hello.startswith("SERVER PROTOCOL"):
            raise _Refused(
                f"something else answers there: {hello[:60]!r}", "NCCL_RAS_ADDR of the job says where."
            )
        line.ask(f"TIMEOUT {max(1, int((deadline - time.monotonic()) / 2.4))}")
        is_json = line.ask("SET FORMAT json") == "OK"
        if not is_json and not force:
            raise _Refused("not asked: it cannot answer in JSON, so its NCCL is older than 2.28.7", FORCE)
        line.send("STATUS" if is_json else "VERBOSE STATUS")
        text, is_whole = line.rest()
    took = time.monotonic() - asked
    try:
        read = read_json if is_json else read_text
        return read(text, address=address, is_partial=not is_whole, took_s=took)
    except NotAnAnswer as why:
        raise _Refused(str(why), "Ask again; a service that keeps silent has lost its peers.") from why


def _connect(address: str, deadline: float) -> socket.socket:
    host, port = _split(address)
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        raise _Refused(f"no such address: {problem}") from problem
    problem_there: OSError | None = None
    for family, kind, protocol, _, place in places:
        connection = socket.socket(family, kind, protocol)
        connection.settimeout(max(0.05, min(CONNECT_S, deadline - time.monotonic())))
        try:
            connection.connect(place)
        except OSError as problem:
            connection.close()
            problem_there = problem_there or problem
        else:
            return connection
    raise _Refused(
        f"nobody listens there ({problem_there})",
        "NCCL 2.24 or newer, without NCCL_RAS_ENABLE=0, listens on localhost:28028 or on NCCL_RAS_ADDR.",
    )


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise _Refused("not an address", "Give host:port or [ipv6]:port.")
    return host.strip("[]"), int(port)


@dataclass(slots=True)
class _Line:
    """The conversation: short lines first, then one long answer until the service hangs up."""

    connection: socket.socket
    deadline: float
    buffer: bytes = b""

    def send(self, words: str) -> None:
        self._hurry()
        try:
            self.connection.sendall(f"{words}\n".encode())
        except OSError as problem:
            raise _Refused(f"the connection broke ({problem})") from problem

    def ask(self, words: str) -> str:
        """Send a line and return the line that answers it."""
        self.send(words)
        while b"\n" not in self.buffer:
            block = self._receive()
            if not block:
                raise _Refused("it hung up without a word", "Something else may listen on that port.")
            self.buffer += block
            if len(self.buffer) > 4096:
                break
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def rest(self) -> tuple[str, bool]:
        """All that comes until the service closes the connection, and whether it did."""
        blocks, size = [self.buffer], len(self.buffer)
        is_whole = False
        while size < MAX_ANSWER_BYTES:
            try:
                block = self._receive()
            except _Refused:
                break
            if not block:
                is_whole = True
                break
            blocks.append(block)
            size += len(block)
        return b"".join(blocks).decode("utf-8", "replace"), is_whole

    def _receive(self) -> bytes:
        self._hurry()
        try:
            return self.connection.recv(65536)
        except TimeoutError as late:
            raise _Refused("it does not answer in time", "Its RAS thread may wait for a lost peer.") from late
        except OSError as problem:
            raise _Refused(f"the connection broke ({problem})") from problem

    def _hurry(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise _Refused("it does not answer in time", "Its RAS thread may wait for a lost peer.")
        self.connection.settimeout(left)
