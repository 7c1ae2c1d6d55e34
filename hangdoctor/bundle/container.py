"""The bytes of a bundle: gzip members in a row, each holding one JSON record.

Why not zip or tar: a zip without its end cannot be opened, a tar.gz has one checksum for everything and
decodes nothing behind the first wrong bit. Members have a checksum each, can be found again behind damage by
their magic, and still are an ordinary .gz file to every other program.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from hangdoctor.bundle.version import JsonObject
from hangdoctor.errors import UnreadableInput

GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_WINDOW = 31  # zlib's code for a 32 KiB window with a gzip header and trailer
_CHUNK_BYTES = 1 << 12
_MAX_EXPANSION = 1032  # deflate's limit, zlib.net/zlib_tech.html
_MAX_INT_DIGITS = 40  # 128 bits; int() of a long string takes quadratic time before Python 3.10.7
_DIGITS_AS_ZEROS = bytes(48 if 48 <= code < 58 else code for code in range(256))
_LONG_NUMBER = b"0" * (_MAX_INT_DIGITS + 1)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reader accepts: bundles come from strangers, who must not decide how much memory we use.

    Measured: 8 ranks x 200 threads are 0.9 MB of JSON and 56,000 values a snapshot, so three snapshots have a
    margin of 60. The most hostile file within the defaults costs about 1 GB.
    """

    file_bytes: int = 128 << 20
    record_bytes: int = 64 << 20
    total_bytes: int = 512 << 20
    total_values: int = 10_000_000
    """Objects, lists and their elements: ``[[],[],…`` becomes 30 bytes of objects for every byte read."""
    records: int = 4096


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that hold no intact record."""

    offset: int
    length: int
    reason: str
    at_end: bool


class _MemberDamaged(Exception):
    """One member is broken; carries how many bytes it gave before, which count against the limits."""

    def __init__(self, reason: str, produced: int) -> None:
        super().__init__(reason)
        self.produced = produced


def pack(record: JsonObject) -> bytes:
    """One record as a gzip member. Equal records give equal bytes (no time, no name in the header)."""
    payload = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n"
    squeezer = zlib.compressobj(level=9, wbits=_GZIP_WINDOW)
    return squeezer.compress(payload.encode("ascii")) + squeezer.flush()


def payloads(data: bytes, limits: Limits) -> Iterator[bytes | Damage]:
    """Every intact member's content in order, and in between what is damaged.

    Raises UnreadableInput when the whole would grow beyond ``limits``.
    """
    offset, budget = 0, limits.total_bytes
    for _ in range(limits.records):
        if offset >= len(data):
            return
        try:
            payload, behind = _inflate(data, offset, min(limits.record_bytes, budget))
        except _MemberDamaged as broken:
            budget -= broken.produced
            behind = data.find(GZIP_MAGIC, offset + 1)
            at_end = behind < 0
            if at_end:
                behind = len(data)
            yield Damage(offset, behind - offset, str(broken), at_end)
        else:
            budget -= len(payload)
            yield payload
        offset = behind
    if offset < len(data):
        raise too_large(f"more than {limits.records} records")


def _inflate(data: bytes, start: int, limit: int) -> tuple[bytes, int]:
    """Content of the member at ``start`` and the offset behind it. Small chunks: nothing large is copied."""
    view = memoryview(data)
    inflater = zlib.decompressobj(wbits=_GZIP_WINDOW)
    parts: list[bytes] = []
    size, offset = 0, start
    while not inflater.eof:
        chunk = view[offset : offset + _CHUNK_BYTES]
        if not chunk:
            raise _MemberDamaged("cut off", size)
        offset += len(chunk)
        try:
            part = inflater.decompress(chunk, limit - size + 1)
        except zlib.error as error:
            # zlib does not say how much this chunk gave before it failed.
            produced = size + min(limit - size, len(chunk) * _MAX_EXPANSION)
            raise _MemberDamaged(f"does not decompress ({error})", produced) from None
        size += len(part)
        if size > limit:
            raise too_large(f"a record or the whole is larger than {limit} bytes when decompressed")
        parts.append(part)
    return b"".join(parts), offset - len(inflater.unused_data)


def count_values(payload: bytes) -> int:
    """At least as many as the values in this JSON, found without parsing it."""
    return payload.count(b",") + payload.count(b"[") + payload.count(b"{")


def parse(payload: bytes) -> JsonObject:
    """The JSON object in ``payload`` without its nulls; ``ValueError`` when there is none.

    Nulls are dropped everywhere because absent and null mean the same in a bundle: not known.
    """
    # Hooks in Python for every object and number take a third of the time of reading, and what they are for hardly
    # ever occurs. (A NUL: UTF-16, which json reads, too, and in which the two searches would find nothing.)
    is_plain = payload.isascii() and b"\0" not in payload
    can_skip_nulls = is_plain and b"null" not in payload
    # The search for one and the same byte many times over skips ahead by its length; as the pattern \d{41} it took as
    # long as json itself.
    can_skip_numbers = is_plain and _LONG_NUMBER not in payload.translate(_DIGITS_AS_ZEROS)
    try:
        record = json.loads(
            payload,
            object_hook=None if can_skip_nulls else _without_nulls,
            parse_int=None if can_skip_numbers else _bounded_int,
            parse_constant=_no_constant,
        )
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError("is no JSON object")
    return record


def _without_nulls(value: JsonObject) -> JsonObject:
    return {key: item for key, item in value.items() if item is not None}


def _bounded_int(digits: str) -> int:
    if len(digits) > _MAX_INT_DIGITS:
        raise ValueError("has a number of absurd length")
    return int(digits)


def _no_constant(name: str) -> float:
    raise ValueError(f"has {name}, which is not JSON")


def too_large(what: str) -> UnreadableInput:
    """The refusal of a file that goes beyond the limits."""
    return UnreadableInput(
        f"refused: {what}, which no capture needs",
        hint="if the file is genuine, raise the limits: hangdoctor.bundle.read(path, limits=Limits(…))",
    )
