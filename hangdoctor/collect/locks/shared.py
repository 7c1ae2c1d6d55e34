"""Locks of multiprocessing: a semaphore in shared memory, and in each process an object that counts its own takes.

The semaphore records nobody. But the ``SemLock`` object of the process that took it has a count above zero and the
ident of the thread (Modules/_multiprocessing/semaphore.c). It is found by searching the small anonymous mappings
of the processes that map the semaphore for its address, so this is bounded in bytes and time.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from hangdoctor.collect.cpython.interpreter import open_interpreter
from hangdoctor.collect.cpython.view import View
from hangdoctor.collect.locks.futex import FutexWait
from hangdoctor.collect.locks.objects import SEMLOCK, ObjectReader
from hangdoctor.collect.memory import Memory, Region, Regions, read, read_regions
from hangdoctor.model import LockWait

SEARCH_BYTES = 32 << 20
"""A process. Objects of this size come from pymalloc's arenas (1 MiB each), which lie among the first."""
SEARCH_LIMIT_S = 0.2
"""All processes together."""
BUDGET_BYTES = 16 << 20
_CHUNK = 1 << 20
_MAX_REGION_BYTES = 64 << 20
# struct SemLockObject after the header: handle, last_tid, count, maxvalue, kind
_SEMLOCK = struct.Struct("<QQiii")
_HEADER = 16


@dataclass(frozen=True, slots=True)
class _Semaphore:
    """A place in a shared mapping, the same for every process that maps it."""

    device: str
    inode: int
    offset: int

    def address_in(self, region: Region) -> int | None:
        is_same = (region.device, region.inode) == (self.device, self.inode)
        if not is_same or not region.offset <= self.offset < region.offset + region.end - region.start:
            return None
        return region.start + self.offset - region.offset


@dataclass(frozen=True, slots=True)
class _Holder:
    pid: int
    tid: int | None


_Holders = dict[_Semaphore, _Holder | None]
_known: _Holders | None = None


def remember_holders() -> None:
    """From now on, in this process, the holder of a lock is looked for once.

    To be called anew for each look. All 62 idle workers of a pool wait for the lock of one queue.
    """
    global _known
    _known = {}


def find_shared_waits(
    view: View, regions: Regions, waits: Sequence[FutexWait], peers: Collection[int]
) -> dict[int, LockWait]:
    """Host tid to lock, for waits on a ``multiprocessing`` lock or semaphore. Raises ``OSError``."""
    places = {
        wait.tid: (wait, region)
        for wait in waits
        if not wait.is_private and (region := regions.find(wait.address)) and "s" in region.permissions
    }
    if not places:
        return {}
    now = view.anew(places)
    if now is None:
        return {}
    pid = now.memory.pid
    pids = {pid, *peers}
    end = time.monotonic() + SEARCH_LIMIT_S
    holders: _Holders = {} if _known is None else _known
    found = {}
    for wait, region in places.values():
        capacity = _read_capacity(now, regions, wait)
        if capacity is None:
            continue
        if capacity != 1:
            found[wait.tid] = LockWait("mp.Semaphore", wait.address, is_shared=True)
            continue
        place = _Semaphore(region.device, region.inode, region.offset + wait.address - region.start)
        if place not in holders:
            is_taken = read(pid, wait.address, 4) == bytes(4)
            holders[place] = _find_holder(place, pids, end) if is_taken else None
        holder = holders[place]
        found[wait.tid] = LockWait(
            "mp.Lock",
            wait.address,
            holder.tid if holder else None,
            holder.pid if holder else None,
            owner_how="recorded" if holder else None,
            is_shared=True,
        )
    return found


def _read_capacity(view: View, regions: Regions, wait: FutexWait) -> int | None:
    """How many may hold it: 1 for a lock. From the SemLock object in the waiter's innermost frame.

    0 for the free places of a ``Queue``: those are counted down by who puts, and given back by who gets.
    """
    seen = view.threads.get(wait.tid)
    frame = view.frames.innermost(seen.trace) if seen is not None else None
    if frame is None:
        return None
    values = view.frames.slot_values(frame)
    for value in ObjectReader(view.interpreter, view.memory, regions).resolve(values).values():
        if value.type_name == SEMLOCK:
            at = value.manager + _HEADER
            handle, _, _, capacity, _ = _SEMLOCK.unpack(view.memory.fresh(at, _SEMLOCK.size))
            if handle == wait.address:
                function, file = view.frames.name_of(frame.code)
                is_queue = function == "put" and file.endswith("multiprocessing/queues.py")
                return 0 if is_queue else int(capacity)
    return None


def _find_holder(place: _Semaphore, pids: Collection[int], end: float) -> _Holder | None:
    """The one process whose object says that it took the lock; ``None`` when none or several do."""
    holders = []
    for pid in sorted(pids):
        if time.monotonic() > end:
            break  # nothing more would be searched, and the address spaces of 256 processes take a second to read
        try:
            regions = read_regions(pid)
            address = next((at for region in regions if (at := place.address_in(region)) is not None), None)
            if address is not None:
                holders += _search(pid, regions, address, end)
        except OSError:
            continue
    return holders[0] if len(holders) == 1 else None


def _search(pid: int, regions: Regions, handle: int, end: float) -> list[_Holder]:
    interpreter = open_interpreter(pid)
    if interpreter is None:
        return []
    memory = Memory(pid, BUDGET_BYTES)
    objects = ObjectReader(interpreter, memory, regions)
    for at in _occurrences(pid, regions, handle, end):
        known = objects.resolve([at - _HEADER]).get(at - _HEADER)
        if known is None or known.type_name != SEMLOCK:
            continue
        _, ident, count, _, _ = _SEMLOCK.unpack(memory.fresh(at, _SEMLOCK.size))
        if count > 0:
            return [_Holder(pid, interpreter.tid_of(ident))]
    return []


def _occurrences(pid: int, regions: Regions, word: int, end: float) -> Iterator[int]:
    """Where an 8-aligned word stands in the anonymous writable memory of a process."""
    raw = struct.pack("<Q", word)
    # An address of a page begins and ends with zero bytes, and so does most memory: look for its middle.
    middle = raw.strip(b"\0")
    shift = raw.index(middle)
    left = SEARCH_BYTES
    for region in regions:
        is_plain = region.path in ("", "[heap]") or region.path.startswith("[anon")
        size = region.end - region.start
        if not is_plain or region.permissions != "rw-p" or size > _MAX_REGION_BYTES:
            continue
        for start in range(region.start, region.end, _CHUNK):
            length = min(_CHUNK, region.end - start)
            left -= length
            if left < 0 or time.monotonic() > end:
                return
            try:
                data = read(pid, start, length)
            except OSError:
                break
            at = data.find(middle)
            while at >= 0:
                first = at - shift
                if first % 8 == 0 and data[first : first + 8] == raw:
                    yield start + first
                at = data.find(middle, at + 1)
