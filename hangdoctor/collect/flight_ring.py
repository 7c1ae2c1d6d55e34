"""The ring of a Flight Recorder at an address of another process: is it one, and what do its entries say?"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from operator import sub

from hangdoctor.collect.flight_layouts import LAYOUTS, RING, EntryLayout, dtype_name
from hangdoctor.collect.memory import Memory

MAX_ENTRIES = 16384
"""Read of a larger ring: its newest."""
MAX_PENDING = 16
"""Reported a group: its oldest pending ones, which are the ones that hold things up."""
NEWEST = 4
"""Reported a group besides: its newest, over or not, to compare with a peer that is still in one of them."""
BUDGET_BYTES = 24 << 20
_MAX_TEXT = 4096
_MAX_TENSORS = 16
_MAX_DIMENSIONS = 64
_BACKEND = re.compile(rb"\w{2,16}:\w")
_MAX_TIMEOUT_MS = 10**10
_EPOCH_2017_NS = 1_500_000_000 * 10**9


class NotARing(ValueError):
    """What is there is no ring that can be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Record:
    """One entry, without what depends on the time of the look."""

    ring: str
    id: int
    pg_id: int
    group: str
    description: str
    sequence: int
    p2p_sequence: int
    is_p2p: bool
    op: str
    created_ns: int
    timeout_ms: int
    state: str
    input_sizes: str | None
    output_sizes: str | None
    dtype: str | None


def read_ring(pid: int, name: str, instance: int) -> list[Record]:
    """Of each group the newest entries and the oldest pending ones, by id. ``name`` is kept as ``ring``.

    Raises :class:`NotARing` and ``OSError``. What it returns may be torn; read twice and compare.
    """
    memory = Memory(pid, BUDGET_BYTES)
    header = memory.read(instance, RING.size)
    first, end = _u64(header, RING.entries), _u64(header, RING.entries + 8)
    maximum, following = _u64(header, RING.maximum), _u64(header, RING.following)
    if not header[RING.enabled] or not maximum:
        raise NotARing("the recorder is off")
    if first == end:
        return []
    for layout in LAYOUTS:
        count, rest = divmod(end - first, layout.size)
        if rest or not 0 < count <= maximum:
            continue
        at, size = _choose_part(first, count, following, layout.size)
        entries = _Entries(memory, memory.fresh(at, size), at, layout)
        if entries.make_sense():
            return [entries.parse(name, offset) for offset in entries.choose()]
    raise NotARing("the recorder of this version of torch has a layout that is not known")


def _choose_part(first: int, count: int, following: int, size: int) -> tuple[int, int]:
    """All of it; of a ring that is too large, what lies before the entry that is written next."""
    if count <= MAX_ENTRIES:
        return first, count * size
    start = max(0, min(following, count) - MAX_ENTRIES)
    return first + start * size, MAX_ENTRIES * size


class _Entries:
    """A copy of consecutive entries that lay at ``at``.

    What is asked of each is taken out by the column, which is a tenth of the work of going through 2000 entries.
    """

    def __init__(self, memory: Memory, raw: bytes, at: int, layout: EntryLayout) -> None:
        self._memory = memory
        self._raw = raw
        self._at = at
        self._layout = layout
        self._ids = self._numbers(0)

    def _numbers(self, offset: int) -> list[int]:
        """What each entry has there, 8 bytes without a sign. Entries and their numbers are aligned to that."""
        return memoryview(self._raw).cast("Q")[offset // 8 :: self._layout.size // 8].tolist()

    def _flags(self, offset: int) -> bytes:
        """A byte of each entry."""
        return self._raw[offset :: self._layout.size]

    def make_sense(self) -> bool:
        """Every entry has small flags and plausible numbers, and ids follow each other but for one seam."""
        layout, ids = self._layout, self._ids
        if max(self._flags(layout.is_p2p)) > 1 or max(self._flags(layout.retired)) > 1:
            return False
        created = self._numbers(layout.created)
        if not (min(created) > _EPOCH_2017_NS and max(created) < time.time_ns() + 10**9):
            return False
        if max(self._numbers(layout.created + 8)) >= _MAX_TIMEOUT_MS:
            return False
        seams = len(ids) - 1 - list(map(sub, ids[1:], ids)).count(1)
        samples = (self._offset(index) for index in {0, len(ids) // 2, len(ids) - 1})
        return seams <= 1 and all(_BACKEND.match(self._string(at + layout.name)) for at in samples)

    def _offset(self, index: int) -> int:
        return index * self._layout.size

    def choose(self) -> list[int]:
        """Offsets of the entries to report, in the order of their ids."""
        layout, ids = self._layout, self._ids
        groups = self._numbers(layout.pg_id)
        kinds = list(zip(groups, self._flags(layout.is_p2p), strict=True))
        in_order = sorted(range(len(ids)), key=ids.__getitem__)
        chosen = set(_last_of_each(kinds, in_order))
        retired, completed = self._flags(layout.retired), self._flags(layout.completed + 8)
        pending: dict[int, list[int]] = {}
        for index in in_order:
            if not retired[index] and not completed[index]:
                pending.setdefault(groups[index], []).append(index)
        for indices in pending.values():
            chosen.update(indices[:MAX_PENDING])
        return [self._offset(index) for index in in_order if index in chosen]

    def parse(self, ring: str, offset: int) -> Record:
        layout, raw = self._layout, self._raw
        created, timeout = struct.unpack_from("<qq", raw, offset + layout.created)
        op = self._text(offset + layout.name)
        inputs, outputs = self._sizes(offset)
        return Record(
            ring=ring,
            id=_u64(raw, offset),
            pg_id=_u64(raw, offset + layout.pg_id),
            group=self._text(offset + layout.group + 32),
            description=self._text(offset + layout.group),
            sequence=_u64(raw, offset + layout.sequence),
            p2p_sequence=_u64(raw, offset + layout.p2p_sequence),
            is_p2p=bool(raw[offset + layout.is_p2p]),
            op=op,
            created_ns=created,
            timeout_ms=timeout,
            state=_name_state(
                op,
                is_started=bool(raw[offset + layout.started + 8]),
                is_completed=bool(raw[offset + layout.completed + 8]),
                is_retired=bool(raw[offset + layout.retired]),
            ),
            input_sizes=inputs,
            output_sizes=outputs,
            dtype=self._dtype(offset),
        )

    def _read(self, address: int, size: int) -> bytes:
        """From the copy where it lies inside (short strings and small vectors do), else from memory."""
        inside = address - self._at
        if inside >= 0 and inside + size <= len(self._raw):
            return self._raw[inside : inside + size]
        return self._memory.read(address, size)

    def _string(self, offset: int) -> bytes:
        """A std::string: pointer and length. Empty where it cannot be one."""
        address, length = struct.unpack_from("<QQ", self._raw, offset)
        try:
            return self._read(address, length) if 0 < length <= _MAX_TEXT else b""
        except OSError:
            return b""

    def _text(self, offset: int) -> str:
        return self._string(offset).decode("utf-8", "backslashreplace")

    def _sizes(self, offset: int) -> tuple[str | None, str | None]:
        """The shapes of inputs and outputs as the recorder's dump has them: ``[[1024, 8], [4]]``."""
        try:
            inputs = self._small_vector(offset + self._layout.input_dims, _MAX_TENSORS)
            outputs = self._small_vector(offset + self._layout.output_dims, _MAX_TENSORS)
            sizes = iter(self._small_vector(offset + self._layout.sizes, _MAX_DIMENSIONS))
        except OSError:
            return None, None
        try:
            return _shapes(inputs, sizes), _shapes(outputs, sizes)
        except StopIteration:
            return None, None

    def _small_vector(self, offset: int, limit: int) -> tuple[int, ...]:
        address, size, _ = struct.unpack_from("<QII", self._raw, offset)
        count = min(size, limit)
        return struct.unpack(f"<{count}q", self._read(address, 8 * count)) if count else ()

    def _dtype(self, offset: int) -> str | None:
        start, end = struct.unpack_from("<QQ", self._raw, offset + self._layout.input_dtypes)
        try:
            return dtype_name(self._read(start, 1)[0]) if start < end else None
        except OSError:
            return None


def _last_of_each(kinds: Sequence[Hashable], in_order: Sequence[int]) -> Iterator[int]:
    """The newest :data:`NEWEST` places of each kind. Most rings have one, and are not searched to their beginning."""
    missing = dict.fromkeys(kinds, NEWEST)
    for index in reversed(in_order):
        if not missing:
            return
        kind = kinds[index]
        if kind in missing:
            yield index
            missing[kind] -= 1
            if not missing[kind]:
                del missing[kind]


def _shapes(dimensions: tuple[int, ...], sizes: Iterator[int]) -> str | None:
    """Raises ``StopIteration`` when there are fewer sizes than dimensions (cut off, or torn)."""
    if any(not 0 <= count <= _MAX_DIMENSIONS for count in dimensions):
        return None
    return str([[next(sizes) for _ in range(count)] for count in dimensions])


def _name_state(op: str, *, is_started: bool, is_completed: bool, is_retired: bool) -> str:
    """Gloo has no events: its entry is retired when its work is done. NCCL's are marked by the watchdog."""
    if is_completed:
        return "completed"
    if is_retired:
        return "retired"
    if is_started:
        return "started"
    return "pending" if op.startswith("gloo:") else "scheduled"


def _u64(raw: bytes, offset: int) -> int:
    return int.from_bytes(raw[offset : offset + 8], "little")
