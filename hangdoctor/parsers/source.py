"""Bytes in, text out: files, folders, standard input, gzip, odd encodings."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hangdoctor.errors import UnreadableInput

MOST_BYTES = 512_000_000
"""More than this of one file is not read."""
_MOST_FILES = 4096
_SKIPPED = (".git", "__pycache__")


@dataclass(frozen=True, slots=True)
class Source:
    """One input file."""

    name: str
    """As the user gave it; ``-`` is standard input."""
    data: bytes
    is_cut: bool = False


def find_sources(paths: Sequence[str]) -> Iterator[Source | UnreadableInput]:
    """Every file of the given paths, folders with all that is below them; an error for each that cannot be read."""
    count = 0
    for path in paths:
        for name in _expand(path):
            count += 1
            if count > _MOST_FILES:
                yield UnreadableInput(f"more than {_MOST_FILES} files", hint="name the files that matter")
                return
            try:
                yield _read(name)
            except UnreadableInput as error:
                yield error
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                yield UnreadableInput(f"{name}: {reason}", hint="check the path and its permissions")


def decode(data: bytes) -> str:
    """Text, whatever the encoding: UTF-8, or UTF-16 with a byte order mark as Windows consoles write it."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")


def _expand(path: str) -> Iterator[str]:
    if path == "-" or not Path(path).is_dir():
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED)
        for name in sorted(files):
            full = Path(folder, name)
            if full.is_file() and not full.is_symlink():
                yield str(full)


def _read(name: str) -> Source:
    if name == "-":
        data = sys.stdin.buffer.read(MOST_BYTES + 1)
    else:
        if not Path(name).is_file() and Path(name).exists() and not Path(name).is_fifo():
            raise UnreadableInput(f"{name} is no regular file", hint="give a dump, a log or a bundle")
        with open(name, "rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    return Source(name, data[:MOST_BYTES], len(data) > MOST_BYTES)


def inflate(data: bytes) -> bytes:
    """The contents of a gzip file, at most ``MOST_BYTES`` of them, as far as they are intact; other data as it is."""
    if not data.startswith(b"\x1f\x8b"):
        return data
    machine = zlib.decompressobj(wbits=31)
    pieces: list[bytes] = []
    size = 0
    while data and size < MOST_BYTES:
        try:
            piece = machine.decompress(data, MOST_BYTES - size)
        except zlib.error:
            break
        pieces.append(piece)
        size += len(piece)
        if not machine.eof:
            break
        data = machine.unused_data
        if not data.startswith(b"\x1f\x8b"):
            break
        machine = zlib.decompressobj(wbits=31)
    return b"".join(pieces)
