"""Reading another process' memory without stopping it.

``process_vm_readv`` copies pages through the kernel: no attach, no signal, no write; a thread of the target
cannot notice it. Where a seccomp profile forbids that call but not the file, ``/proc/PID/mem`` is read
instead. What is read may be half changed (nothing stands still), so callers check what they read and read
it twice where it matters.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import NamedTuple

PAGE = 4096
"""Cache granularity. Kernels with larger pages (aarch64 with 64 KiB) contain a whole number of these."""
DEFAULT_BUDGET_BYTES = 64 << 20
MAX_MAPS_BYTES = 32 << 20
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) ([0-9a-f]+) (\S+) (\d+) *(.*)")
_IOV_MAX = 1024
_CALL_BYTES = 256 << 10
"""What is copied at once stays in the CPU's cache: a megabyte of pages takes a third less time so (measured)."""
_ADDRESS_LIMIT = 1 << 63

_unpack_word = struct.Struct("<Q").unpack_from
_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t
_libc.process_vm_readv.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
)


class BudgetSpent(OSError):
    """This reader has read as many bytes as it was allowed to."""

    def __init__(self, budget: int) -> None:
        super().__init__(errno.EDQUOT, f"more than {budget} bytes of the target's memory asked for")


def read(pid: int, address: int, size: int) -> bytes:
    """Exactly ``size`` bytes at ``address``.

    Raises ``OSError``: EFAULT when a part is not mapped, EPERM or EACCES when not permitted, ESRCH when gone.
    """
    if size <= 0 or not 0 < address < _ADDRESS_LIMIT - size:
        if size == 0:
            return b""
        raise OSError(errno.EFAULT, "no such address")
    buffer = ctypes.create_string_buffer(size)
    got = _readv(pid, buffer, size, struct.pack("<2Q", address, size), 1)
    if got == size:
        return buffer.raw
    if got >= 0:
        raise OSError(errno.EFAULT, f"only {got} of {size} bytes at {address:#x} are mapped")
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EPERM):
        return _read_proc_mem(pid, address, size, code)
    raise OSError(code, os.strerror(code))


def gather(pid: int, items: Sequence[tuple[int, int]]) -> list[bytes | None]:
    """Many small reads in few calls (1024 or 256 KiB a call); ``None`` for each ``(address, size)`` that is not
    readable.

    A bad address costs one more call, not the batch. Raises ``OSError`` only when nothing at all is
    permitted.
    """
    if not items:
        return []
    out: list[bytes | None] = [None] * len(items)
    places = [place for place, item in enumerate(items) if _is_plausible(item)]
    wanted = [items[place] for place in places]
    vector = struct.pack(f"<{2 * len(wanted)}Q", *chain.from_iterable(wanted))
    ends = list(accumulate((size for _, size in wanted), initial=0))
    buffer = ctypes.create_string_buffer(0)
    start = 0
    while start < len(wanted):
        fitting = bisect_right(ends, ends[start] + _CALL_BYTES, start) - 1 - start
        count = max(1, min(_IOV_MAX, fitting))
        total = ends[start + count] - ends[start]
        if len(buffer) < total:  # made once, or each bad address would cost a new one of up to 4 MB
            buffer = ctypes.create_string_buffer(total)
        got = _readv(pid, buffer, total, vector[16 * start : 16 * (start + count)], count)
        if got < 0:
            code = ctypes.get_errno()
            if code == errno.EFAULT:
                start += 1
                continue
            if code in (errno.ENOSYS, errno.EPERM):
                return _gather_proc_mem(pid, items, code)
            raise OSError(code, os.strerror(code))
        data = ctypes.string_at(buffer, got)
        whole = bisect_right(ends, ends[start] + got, start, start + count + 1) - 1
        for index in range(start, whole):
            out[places[index]] = data[ends[index] - ends[start] : ends[index + 1] - ends[start]]
        # What comes after those that are whole was cut off, or is not mapped.
        start = whole if whole == start + count else whole + 1
    return out


def _is_plausible(item: tuple[int, int]) -> bool:
    address, size = item
    return size > 0 and PAGE <= address < _ADDRESS_LIMIT - size


def _readv(pid: int, buffer: ctypes.Array[ctypes.c_char], size: int, remote: bytes, count: int) -> int:
    local = struct.pack("<2Q", ctypes.addressof(buffer), size)
    return int(_libc.process_vm_readv(pid, local, 1, remote, count, 0))


def _read_proc_mem(pid: int, address: int, size: int, refusal: int) -> bytes:
    try:
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError as error:
        raise OSError(refusal, os.strerror(refusal)) from error
    try:
        data = os.pread(fd, size, address)
    except OSError as error:
        # /proc/PID/mem says EIO where process_vm_readv says EFAULT (fs/proc/base.c mem_rw).
        code = errno.EFAULT if error.errno == errno.EIO else error.errno or errno.EFAULT
        raise OSError(code, os.strerror(code)) from error
    finally:
        os.close(fd)
    if len(data) != size:
        raise OSError(errno.EFAULT, f"only {len(data)} of {size} bytes at {address:#x} are mapped")
    return data


def _gather_proc_mem(pid: int, items: Sequence[tuple[int, int]], refusal: int) -> list[bytes | None]:
    out: list[bytes | None] = []
    for address, size in items:
        try:
            out.append(_read_proc_mem(pid, address, size, refusal))
        except OSError as error:
            if error.errno not in (errno.EFAULT, errno.EINVAL):
                raise
            out.append(None)
    return out


def ensure_readable(pid: int) -> None:
    """Reads one word of the first readable mapping. Raises ``OSError`` as :func:`read` does. Behind a deadline."""
    region = next((region for region in read_regions(pid) if region.permissions.startswith("r")), None)
    if region is not None:
        read(pid, region.start, 8)


class Memory:
    """One process' memory through a page cache, for structures that are walked pointer by pointer.

    A page is read once and then never again, which keeps what is read from one page consistent; make a new
    ``Memory`` to see changes. ``bytes_read`` counts towards ``budget_bytes``; beyond it every read raises
    :class:`BudgetSpent`.
    """

    def __init__(self, pid: int, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self.pid = pid
        self._page = ctypes.create_string_buffer(PAGE)
        self._to_page = struct.pack("<2Q", ctypes.addressof(self._page), PAGE)
        self.bytes_read = 0
        self._budget = budget_bytes
        self.pages: dict[int, bytes] = {}
        """Every page that was read, by its address."""

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes; raises ``OSError`` as :func:`read` does."""
        first = address & -PAGE
        if address + size <= first + PAGE:
            page = self.pages.get(first) or self._load(first)
            return page[address - first : address - first + size]
        end = address + size
        pages = [self.pages.get(at) or self._load(at) for at in range(first, end, PAGE)]
        return b"".join(pages)[address - first : end - first]

    def _load(self, address: int) -> bytes:
        if not 0 < address < _ADDRESS_LIMIT:
            raise OSError(errno.EFAULT, "no such address")
        self._spend(PAGE)
        wanted = struct.pack("<2Q", address, PAGE)
        if _libc.process_vm_readv(self.pid, self._to_page, 1, wanted, 1, 0) == PAGE:
            page = self._page.raw
        else:
            page = read(self.pid, address, PAGE)  # which says why not
        self.pages[address] = page
        return page

    def prefetch(self, addresses: Iterable[int], *, pages_before: int = 0) -> None:
        """The pages of ``addresses``, and so many before each, in few system calls; what is not mapped is left out.

        Raises ``OSError`` only when nothing at all may be read.
        """
        before = range(-PAGE * pages_before, 1, PAGE)
        wanted = {(address & -PAGE) + offset: None for address in addresses for offset in before}
        missing = [at for at in wanted if at not in self.pages]
        self._spend(PAGE * len(missing))
        for at, page in zip(missing, gather(self.pid, [(at, PAGE) for at in missing]), strict=True):
            if page is not None:
                self.pages[at] = page

    def _spend(self, size: int) -> None:
        self.bytes_read += size
        if self.bytes_read > self._budget:
            raise BudgetSpent(self._budget)

    def fresh(self, address: int, size: int) -> bytes:
        """As :meth:`read`, past the cache."""
        self._spend(size)
        return read(self.pid, address, size)

    def gather(self, items: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """As :func:`gather`, past the cache and within the budget."""
        self._spend(sum(size for _, size in items))
        return gather(self.pid, items)

    def u32(self, address: int) -> int:
        return int.from_bytes(self.read(address, 4), "little")

    def u64(self, address: int) -> int:
        page, at = self.pages.get(address & -PAGE), address & PAGE - 1
        if page is None or at > PAGE - 8:
            page, at = self.read(address, 8), 0
        # Half the time of the way through `read`, and pointers are most of what is read.
        return int(_unpack_word(page, at)[0])

    def unpack(self, layout: str, address: int) -> tuple[int, ...]:
        """``struct.unpack`` of a little-endian layout of integers at an address."""
        return struct.unpack("<" + layout, self.read(address, struct.calcsize("<" + layout)))

    def string(self, address: int, limit: int = PAGE) -> bytes:
        """The bytes up to the first NUL, at most ``limit`` of them."""
        out = b""
        while len(out) < limit:
            chunk = self.read(address, min(limit - len(out), PAGE - address % PAGE))
            end = chunk.find(b"\0")
            if end >= 0:
                return out + chunk[:end]
            out += chunk
            address += len(chunk)
        return out


class Region(NamedTuple):
    """One line of ``/proc/PID/maps``; a tuple, because an address space with torch has a thousand of them."""

    start: int
    end: int
    permissions: str
    offset: int
    device: str
    inode: int
    path: str
    """Empty for anonymous memory; ``[heap]``, ``[stack]`` …; a deleted file keeps the kernel's suffix."""


_Row = tuple[str, str, str, str, str, str, str]


class Regions:
    """An address space, lowest first, searchable by address."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        """``rows``: the fields of each line. Made into regions when they are asked for: most are stacks, and never."""
        self._rows = rows
        self._found: dict[int, Region] = {}

    def __iter__(self) -> Iterator[Region]:
        return map(_region_of, self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def of_files(self) -> Sequence[Region]:
        """Those with a file behind them."""
        return [_region_of(row) for row in self._rows if row[5] != "0"]

    @cached_property
    def _starts(self) -> Sequence[int]:
        return [int(row[0], 16) for row in self._rows]

    def find(self, address: int) -> Region | None:
        """The region that contains ``address``."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        region = self._found.get(index)
        if region is None:
            region = self._found[index] = _region_of(self._rows[index])
        return region if address < region.end else None


def _region_of(row: _Row) -> Region:
    start, end, permissions, offset, device, inode, path = row
    return Region(int(start, 16), int(end, 16), permissions, int(offset, 16), device, int(inode), path)


_recent: dict[int, tuple[float, Regions]] | None = None
_RECENT_S = 0.5
"""The steps of a look at one process follow each other within some milliseconds."""


def remember_regions() -> None:
    """From now on, in this process, an address space read a moment ago is not read again (0.3 ms; 3 ms with torch)."""
    global _recent
    _recent = {}


def read_regions(pid: int) -> Regions:
    """The address space, lowest first. See :func:`remember_regions`.

    Raises ``OSError``. May block as long as a thread of the target holds the mmap lock for writing, so
    call it behind a deadline.
    """
    if _recent is None:
        return _read_regions(pid)
    now = time.monotonic()
    for old in [old for old, (read_at, _) in _recent.items() if now - read_at > _RECENT_S]:
        del _recent[old]  # 1 MB each with torch, and there may be hundreds
    if pid not in _recent:
        _recent[pid] = now, _read_regions(pid)
    return _recent[pid][1]


def _read_regions(pid: int) -> Regions:
    with open(f"/proc/{pid}/maps", "rb") as file:
        text = file.read(MAX_MAPS_BYTES).decode("utf-8", "surrogateescape")
    return Regions(_MAPPING.findall(text))  # nothing but \n ends a line: a file's name may hold U+2028
