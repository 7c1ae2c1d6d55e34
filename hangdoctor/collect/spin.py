"""Does a thread that burns CPU repeat itself? Its user registers, sampled by the kernel without stopping it.

A software perf event (task-clock; no hardware counter needed) interrupts the thread up to 1000 times per second of
its CPU time and copies the registers. A tight spin comes back to the same few register vectors; a loop that works
does not. Measured on 42 loads: no work above 0.18 (26 kinds), tight spins at 0.41-1.0 (7 kinds), and nine
spins with a clock, a backoff or a Python call in the loop that look like work. So a high value says "spins"
and a low one says nothing.

What work does and a wait does not: it walks through memory. Registers hold pointers, and over 600 samples those of ten
kinds of work (a full garbage collection, dequantization, sorting, parsing, hashing, matrix products) led into 278 to
1464 pages, more than half of the later samples into a page not met before (0.43 to 0.99). Ten kinds of waiting in a
loop kept to 16 to 108 pages (0.00 to 0.04); one that asks 200,000 objects in turn came to 271 (0.33). Work on few data
(primes, small matrices) keeps to few pages, too, so that few pages again say nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
import struct
import time
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hangdoctor.collect.procfs import PAGE_BYTES
from hangdoctor.model import SpinSample

MAX_THREADS = 64
MIN_SAMPLES = 20
_WANTED_SAMPLES = 600
_FASTEST_NS = 1_000_000

# include/uapi/linux/perf_event.h
_ATTR_SIZE_VER3 = 96
_TYPE_SOFTWARE, _TASK_CLOCK = 1, 1
_SAMPLE_IP, _SAMPLE_REGS_USER = 1, 1 << 12
_EXCLUDE_KERNEL, _EXCLUDE_HV = 1 << 5, 1 << 6
_FLAG_FD_CLOEXEC = 8
_RECORD_SAMPLE = 9
_DATA_HEAD = 1024
_BUFFER_PAGES = 64


@dataclass(frozen=True, slots=True)
class _Machine:
    """System call number, register mask, and which of the sampled registers are program counter and stack pointer."""

    syscall: int
    mask: int
    counter: int
    stack: int

    @property
    def count(self) -> int:
        return bin(self.mask).count("1")


# asm/perf_regs.h. x86: AX … SP (7), IP (8), R8-R15 (16-23), without flags and segments. arm64: X0-X30, SP, PC (32).
_MACHINES = {
    "x86_64": _Machine(298, 0xFF01FF, 8, 7),
    "aarch64": _Machine(241, (1 << 33) - 1, 32, 31),
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def sample_spin(tids: Sequence[int], seconds: float) -> dict[int, SpinSample]:
    """How often the register vectors of each thread recur; takes ``seconds``. At most 64 threads, hot ones first.

    Threads that ran too little to be judged (fewer than 20 samples) and all that may not be sampled
    (perf_event_paranoid > 2, a container's seccomp profile, another machine) are left out. Never raises. Trust a
    recurrence only from 100 samples on.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None or not tids or seconds <= 0:
        return {}
    period_ns = max(_FASTEST_NS, int(seconds * 1e9 / _WANTED_SAMPLES))
    events: dict[int, _Event] = {}
    try:
        for tid in tids[:MAX_THREADS]:
            try:
                events[tid] = _Event(machine, tid, period_ns)
            except OSError:
                continue
        if not events:
            return {}
        time.sleep(seconds)
        vectors = {tid: list(event.vectors()) for tid, event in events.items()}
    finally:
        for event in events.values():
            event.close()
    return {
        tid: _summarize(tid, found, machine.stack)
        for tid, found in vectors.items()
        if len(found) >= MIN_SAMPLES
    }


def _summarize(tid: int, vectors: Sequence[tuple[int, ...]], stack: int) -> SpinSample:
    recurrence = round(measure_recurrence(vectors), 3)
    try:
        ranges = read_data_ranges(tid)
    except OSError:
        return SpinSample(len(vectors), recurrence)
    reach = measure_reach(vectors, ranges, stack)
    return SpinSample(len(vectors), recurrence, reach.pages, round(reach.new, 3))


_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) .w.. \S+ \S+ \S+ *(?!\[stack\]|\[v)[^\n]*$", re.M)


def read_data_ranges(tid: int) -> list[tuple[int, int]]:
    """Where data lies in the address space of a thread: start and end of all that may be written, in order.

    Raises ``OSError``.
    """
    maps = Path(f"/proc/{tid}/maps").read_bytes()
    return [(int(found[1], 16), int(found[2], 16)) for found in _MAPPING.finditer(maps)]


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the pointers in sampled registers spread."""

    pages: int
    new: float
    """0..1, share of the second half's samples with a page that the first half did not have."""


def measure_reach(vectors: Sequence[tuple[int, ...]], ranges: Sequence[tuple[int, int]], stack: int) -> Reach:
    """Pages of ``ranges`` (sorted) that registers point into, without the range that the stack pointer is in."""
    starts = [start for start, _ in ranges]

    def find(value: int) -> int | None:
        index = bisect_right(starts, value) - 1
        return index if index >= 0 and value < ranges[index][1] else None

    own = {find(vector[stack]) for vector in vectors} | {None}
    pages = [{v // PAGE_BYTES for v in vector if find(v) not in own} for vector in vectors]
    middle = len(pages) // 2
    first = set().union(*pages[:middle])
    later = [bool(touched - first) for touched in pages[middle:]]
    return Reach(len(first.union(*pages[middle:])), sum(later) / len(later) if later else 0.0)


def measure_recurrence(vectors: Collection[tuple[int, ...]]) -> float:
    """0..1: the share of the second half's vectors that the first half had too."""
    ordered = list(vectors)
    middle = len(ordered) // 2
    first, second = set(ordered[:middle]), ordered[middle:]
    return sum(vector in first for vector in second) / len(second) if second else 0.0


class _Event:
    """One perf event on one thread, and its ring buffer. Raises ``OSError`` when not permitted."""

    def __init__(self, machine: _Machine, tid: int, period_ns: int) -> None:
        self._machine = machine
        attributes = bytearray(_ATTR_SIZE_VER3)
        sampled = _SAMPLE_IP | _SAMPLE_REGS_USER
        struct.pack_into(
            "<IIQQQ", attributes, 0, _TYPE_SOFTWARE, _ATTR_SIZE_VER3, _TASK_CLOCK, period_ns, sampled
        )
        struct.pack_into("<Q", attributes, 40, _EXCLUDE_KERNEL | _EXCLUDE_HV)
        struct.pack_into("<Q", attributes, 80, machine.mask)
        raw = (ctypes.c_char * _ATTR_SIZE_VER3).from_buffer(attributes)
        fd = _libc.syscall(machine.syscall, ctypes.byref(raw), tid, -1, -1, _FLAG_FD_CLOEXEC)
        if fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._fd = fd
        try:
            self._buffer = mmap.mmap(fd, mmap.PAGESIZE * (1 + _BUFFER_PAGES), prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            # An unprivileged user may lock only perf_event_mlock_kb of such buffers.
            os.close(fd)
            raise OSError(getattr(error, "errno", None) or 1, "no buffer for samples") from error

    def vectors(self) -> Iterator[tuple[int, ...]]:
        """The register vectors in the order of sampling, without the program counter."""
        head = struct.unpack_from("<Q", self._buffer, _DATA_HEAD)[0]
        end = min(head, mmap.PAGESIZE * _BUFFER_PAGES)
        base, offset = mmap.PAGESIZE, 0
        count, counter = self._machine.count, self._machine.counter
        while offset + 8 <= end:
            kind, _, size = struct.unpack_from("<IHH", self._buffer, base + offset)
            if size < 8 or offset + size > end:
                return
            # A sample is ip, abi (0: no user registers), then the registers.
            if kind == _RECORD_SAMPLE and struct.unpack_from("<Q", self._buffer, base + offset + 16)[0]:
                registers = struct.unpack_from(f"<{count}Q", self._buffer, base + offset + 24)
                yield registers[:counter] + registers[counter + 1 :]
            offset += size

    def close(self) -> None:
        self._buffer.close()
        os.close(self._fd)
