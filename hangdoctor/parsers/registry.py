"""The formats: one module each below `formats/`, found by walking the package.

A module exposes ``FORMAT`` (or ``FORMATS``), an object of one of the kinds below. The driver tries text formats
line by line; JSON and binary formats get a whole value at a time.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from hangdoctor.parsers.findings import Finding, Where
from hangdoctor.parsers.frame_text import FrameTable
from hangdoctor.parsers.labels import Heading
from hangdoctor.parsers.prefix import Stream


@dataclass(frozen=True, slots=True)
class Opening:
    """The line that begins a block, and whose block it is."""

    where: Where
    text: str
    """Without prefixes."""
    frames: FrameTable
    """Shared by all readers of one input: equal lines give the same Frame."""
    stream: Stream | None = None
    heading: Heading | None = None
    """What the lines just above said: ``# TP1``, ``$ py-spy dump --pid 7``."""
    label: str | None = None
    """From the log record that the line is in (``[2025-03-10 16:29:01 TP0] …``)."""
    taken_at: float | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the process: of the line itself, else of its stream, else of the heading above."""
        if self.label is not None:
            return (self.label,)
        if self.stream is not None and self.stream.label is not None:
            return (self.stream.label,)
        return self.heading.labels if self.heading is not None else ()

    @property
    def pid(self) -> int | None:
        """The pid that prefix or heading gave."""
        if self.stream is not None and self.stream.pid is not None:
            return self.stream.pid
        return self.heading.pid if self.heading is not None else None

    @property
    def host(self) -> str | None:
        """The host, pod or container that prefix or heading gave."""
        if self.stream is not None and self.stream.host is not None:
            return self.stream.host
        return self.heading.host if self.heading is not None else None

    @property
    def command(self) -> tuple[str, ...]:
        """The process title that the heading gave."""
        return self.heading.command if self.heading is not None else ()


class Reader(Protocol):
    """Eats the lines of one block, the first included."""

    def take(self, text: str, number: int) -> bool:
        """``False``: the block ended before this line."""

    def close(self) -> Iterable[Finding]:
        """What the block held."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """Text of several lines. ``opens`` is matched at the start of a line without prefixes and indentation.

    ``first`` are the characters that such a line can begin with; "" is any. It only saves time.
    """

    name: str
    summary: str
    opens: re.Pattern[str]
    reader: Callable[[Opening], Reader]
    first: str = ""
    order: int = 50
    """Formats are tried in this order: the more specific opening first."""
    continues_unprefixed: bool = False
    """Only the first line carries the prefix of its rank: one log record of several lines."""


class LineReader(Protocol):
    """Recognises single lines; may remember them and report at the end."""

    def read(self, text: str, where: Where, label: str | None) -> Iterable[Finding] | None:
        """What a line says; empty when that is told at the end; ``None`` when it is not of this format."""

    def close(self) -> Iterable[Finding]:
        """What all the lines together say."""


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Single lines of a log. Only lines that contain one of ``hints`` are tried."""

    name: str
    summary: str
    hints: tuple[str, ...]
    reader: Callable[[], LineReader]
    order: int = 50
    reads_all: bool = False
    """Counts or compares over many lines; others are shown only the first and last of lines that look alike."""
    is_fallback: bool = False
    """Tried only after the knowledge of servers' logs."""


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A JSON value. ``keys`` are object keys that must occur near its beginning."""

    name: str
    summary: str
    keys: tuple[str, ...]
    read: Callable[[object, Where], tuple[Finding, ...]]
    """Empty when the value is something else after all."""
    repair: Callable[[str], str] = field(default=lambda text: text)
    """Mends what known versions of the writer get wrong."""


@dataclass(frozen=True, slots=True)
class BinaryFormat:
    """A whole file that is no text."""

    name: str
    summary: str
    magic: re.Pattern[bytes]
    read: Callable[[bytes, Where], tuple[Finding, ...]]


Format = BlockFormat | LineFormat | JsonFormat | BinaryFormat


@cache
def formats() -> tuple[Format, ...]:
    """Every format, in the order in which it is tried."""
    package = importlib.import_module("hangdoctor.parsers.formats")
    found: list[Format] = []
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        contents = importlib.import_module(module.name)
        found.extend(getattr(contents, "FORMATS", ()))
    return tuple(sorted(found, key=lambda f: (getattr(f, "order", 50), f.name)))
