"""Who listens on a TCP port, in whatever network namespace."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from hangdoctor.collect.holders import scan_host
from hangdoctor.collect.procfs import read_bytes

_LISTEN = b"0A"
_MAX_TABLE_BYTES = 32 << 20


def find_listeners(port: int, pids: Sequence[int]) -> list[int]:
    """Processes that hold a socket listening on ``port``, in the order of their pids. Never raises.

    A container has ports of its own, so one table is read for every network namespace among ``pids``.
    """
    inodes: set[int] = set()
    for table in read_tables(pids, "tcp", "tcp6"):
        inodes |= parse_listening(table, port)
    return sorted({held.pid for held in scan_host(inodes).held}) if inodes else []


def read_tables(pids: Sequence[int], *families: str) -> Iterator[bytes]:
    """``/proc/PID/net/FAMILY`` once for each network namespace among ``pids``; what may not be read is left out."""
    seen: set[str] = set()
    for pid in pids:
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/net")
            if namespace in seen:
                continue
            seen.add(namespace)
            for family in families:
                yield read_bytes(f"/proc/{pid}/net/{family}", limit=_MAX_TABLE_BYTES)
        except OSError:
            continue


def parse_listening(table: bytes, port: int) -> set[int]:
    """Inodes of the sockets of ``/proc/net/tcp`` that listen on ``port``."""
    found = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(b":")[2], 16) == port:
            found.add(int(fields[9]))
    return found
