"""Reading bundles: every older format, damaged files as far as they go, hostile ones not at all."""

from __future__ import annotations

import gc
import os
import sys
import zlib
from dataclasses import replace
from typing import BinaryIO

from hangdoctor.bundle.builders import Shared, Tables
from hangdoctor.bundle.codec import decode_head, decode_snapshot
from hangdoctor.bundle.container import (
    GZIP_MAGIC,
    LIMITS,
    Damage,
    Limits,
    count_values,
    parse,
    payloads,
    too_large,
)
from hangdoctor.bundle.version import FORMAT, JsonObject, check_readable, migrate, version_of
from hangdoctor.errors import UnreadableInput
from hangdoctor.model import Capture, Gap, Snapshot, Target, Tool

_TAG = b'{"hangdoctor":"manifest"'
_REMEDY = "copy the file again from the machine it was taken on, or take a new capture"


def looks_like_bundle(head: bytes) -> bool:
    """Whether a file that begins with these bytes (100 are enough) is meant to be a bundle."""
    if not head.startswith(GZIP_MAGIC):
        return False
    try:
        return zlib.decompressobj(wbits=31).decompress(head[:4096], len(_TAG)) == _TAG
    except zlib.error:
        return False


def read(
    source: str | os.PathLike[str] | BinaryIO, *, limits: Limits = LIMITS, shared: Shared | None = None
) -> Capture:
    """Read a bundle from a path, from ``-`` (standard input) or from a binary stream.

    ``shared``: give the same to all bundles of a job, and what they have in common is the same object in all of them.

    A damaged or truncated file gives the snapshots that are intact and a Gap for what is missing. Raises
    UnreadableInput when nothing can be had: no bundle, nothing intact, a newer major format, or a content
    beyond ``limits``. Nothing is ever written to disk or evaluated.
    """
    name, data = _load(source, limits)
    if not data.startswith(GZIP_MAGIC):
        found = "is empty" if not data else "is no hangdoctor bundle"
        raise UnreadableInput(
            f"{name} {found}", hint="bundles end in .hang; `hangdoctor list formats` names what else is read"
        )
    salvage = _Salvage(name, limits, shared)
    # A capture has no cycles; looking for some among its objects takes a third of the time of reading many bundles.
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        for item in payloads(data, limits):
            if isinstance(item, Damage):
                salvage.damaged(item)
            else:
                salvage.take(item)
    finally:
        if is_collecting:
            gc.enable()
    return salvage.capture()


class _Salvage:
    """Collects what is intact and says what is not."""

    def __init__(self, name: str, limits: Limits, shared: Shared | None) -> None:
        self._name = name
        self._limits = limits
        self._values = 0
        self._tables = Tables(shared or Shared())
        self._version = FORMAT
        self._head: Capture | None = None
        self._expected: int | None = None
        self._snapshots: list[Snapshot] = []
        self._gaps: list[Gap] = []
        self._is_foreign = True

    def damaged(self, damage: Damage) -> None:
        end = damage.offset + damage.length
        self._gap(f"bytes {damage.offset} to {end} are lost: {damage.reason}")

    def take(self, payload: bytes) -> None:
        """Use one record; what is damaged becomes a Gap. Raises for a newer major and beyond the limits."""
        self._values += count_values(payload)
        if self._values > self._limits.total_values:
            raise too_large(f"more than {self._limits.total_values} values")
        try:
            record = parse(payload)
            kind = record.get("hangdoctor")
            if kind == "manifest":
                self._is_foreign = False
                self._take_manifest(record)
            elif kind == "snapshot":
                self._is_foreign = False
                self._snapshots.append(decode_snapshot(migrate(record, self._version), self._tables))
            elif not isinstance(kind, str):
                self._gap("a record is not hangdoctor's")
            # Any other kind of record is a later minor version's addition.
        except ValueError as error:
            self._gap(f"a record is damaged or was made by something else: {error}")

    def _take_manifest(self, record: JsonObject) -> None:
        version = version_of(record)
        check_readable(version, record, self._name)
        self._version = version
        record = migrate(record, version)
        expected = record.get("snapshots")
        self._head = decode_head(record)
        if type(expected) is int:
            self._expected = expected

    def capture(self) -> Capture:
        count = len(self._snapshots)
        if self._expected is None:
            self._gap(f"the file ends early: it was cut off while it was written or copied; {_intact(count)}")
        elif count < self._expected:
            self._gap(f"{self._expected - count} of {self._expected} snapshots are lost")
        if not count and self._expected != 0:
            self._refuse()
        head = self._head
        if head is None:
            self._gap("the manifest is lost: host, target and tool are not known")
            head = Capture(Tool("unknown"), Target(asked=self._name), hosts=(), snapshots=())
        return replace(head, snapshots=tuple(self._snapshots), gaps=(*head.gaps, *self._gaps))

    def _refuse(self) -> None:
        reasons = "; ".join(dict.fromkeys(gap.reason for gap in self._gaps[:3]))
        what = "is no hangdoctor bundle" if self._is_foreign else "holds no intact snapshot"
        raise UnreadableInput(f"{self._name} {what}: {reasons}", hint=_REMEDY)

    def _gap(self, reason: str) -> None:
        self._gaps.append(Gap("bundle", self._name, reason, _REMEDY))


def _intact(count: int) -> str:
    return f"{count} snapshot{' is' if count == 1 else 's are'} intact"


def _load(source: str | os.PathLike[str] | BinaryIO, limits: Limits) -> tuple[str, bytes]:
    """Name for messages and content, at most ``limits.file_bytes`` of it."""
    if not isinstance(source, str | os.PathLike):
        return "the stream", _bounded(source, "the stream", limits)
    if os.fspath(source) == "-":
        return "standard input", _bounded(sys.stdin.buffer, "standard input", limits)
    name = os.fspath(source)
    try:
        with open(source, "rb") as file:
            return name, _bounded(file, name, limits)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnreadableInput(
            f"{name} cannot be read: {reason}", hint="check the path and its permissions"
        ) from error


def _bounded(stream: BinaryIO, name: str, limits: Limits) -> bytes:
    data = stream.read(limits.file_bytes + 1)
    if len(data) > limits.file_bytes:
        raise UnreadableInput(
            f"{name} is larger than {limits.file_bytes} bytes, which no bundle is",
            hint="`hangdoctor list formats` names what else is read",
        )
    return data
