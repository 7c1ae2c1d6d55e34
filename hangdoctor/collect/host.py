"""The machine: who it is and how busy it is."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Iterator, Sequence

from hangdoctor.collect.listeners import read_tables
from hangdoctor.collect.procfs import PAGE_BYTES, TICKS_PER_S, read_bytes
from hangdoctor.model import Host, HostLoad

_OWN_IPV4 = re.compile(rb"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL")
"""In ``fib_trie``: the kernel makes such a route for every address that it answers to."""
_OWN_IPV6 = re.compile(rb"^([0-9a-f]{32}) ", re.M)


def read_host(access_tier: str | None, pids: Sequence[int] = ()) -> Host:
    """Name, kernel, units and addresses of this machine; those of containers among ``pids`` are its own, too."""
    system = platform.uname()
    return Host(
        name=system.node,
        kernel=system.release,
        boot_id=_read_text("/proc/sys/kernel/random/boot_id"),
        machine=system.machine,
        cpu_count=os.cpu_count(),
        ticks_per_s=TICKS_PER_S,
        page_bytes=PAGE_BYTES,
        access_tier=access_tier,
        addresses=tuple(dict.fromkeys(_addresses((os.getpid(), *pids)))),
    )


def _addresses(pids: Sequence[int]) -> Iterator[str]:
    """Without loopback, which is another place on every host."""
    for table in read_tables(pids, "fib_trie", "if_inet6"):
        ipv4 = (found.decode() for found in _OWN_IPV4.findall(table))
        yield from (address for address in ipv4 if not address.startswith("127."))
        ipv6 = (
            socket.inet_ntop(socket.AF_INET6, bytes.fromhex(f.decode())) for f in _OWN_IPV6.findall(table)
        )
        yield from (f"[{address}]" for address in ipv6 if address != "::1")


def read_load() -> HostLoad:
    """Load and pressure: a starved target looks stuck."""
    try:
        load1: float | None = os.getloadavg()[0]
    except OSError:
        load1 = None
    available = re.search(r"^MemAvailable:\s+(\d+) kB", _read_text("/proc/meminfo") or "", re.M)
    return HostLoad(
        load1=load1,
        cpu_pressure_percent=_pressure("cpu"),
        io_pressure_percent=_pressure("io"),
        memory_pressure_percent=_pressure("memory"),
        memory_available_bytes=int(available[1]) * 1024 if available else None,
    )


def _pressure(resource: str) -> float | None:
    """Share of the last 10 s in which some task waited for it; kernels without PSI have no such file."""
    found = re.search(r"^some avg10=([\d.]+)", _read_text(f"/proc/pressure/{resource}") or "")
    return float(found[1]) if found else None


def _read_text(path: str) -> str | None:
    try:
        return read_bytes(path).decode("utf-8", "replace").strip()
    except OSError:
        return None
