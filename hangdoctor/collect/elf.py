"""Symbols of a running program: exported ones from its memory, hidden ones from the file it was loaded from.

Exported symbols are looked up in the target's own memory (program headers, PT_DYNAMIC, GNU hash table), so no
file is opened and the answer is right in containers, chroots and after the file was replaced: 10-30 pages and
0.4-9 ms each. Only 64-bit little-endian images are understood (x86-64 and aarch64).
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangdoctor.collect.memory import Memory, Region, Regions

# elf.h
_ET_DYN = 3
_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH = 5, 6, 0x6FFFFEF5
_SHT_SYMTAB, _SHT_NOTE = 2, 7
_NT_GNU_BUILD_ID = 3
_SYMBOL = struct.Struct("<IBBHQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_MAX_DYNAMIC_ENTRIES = 256
_MAX_PROGRAM_HEADERS = 128
_MAX_CHAIN = 4096
_MAX_SECTIONS = 4096


class NotAnImage(ValueError):
    """The memory or file is no 64-bit ELF image, or one without what was asked of it."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """An address in the target and the size the linker recorded."""

    address: int
    size: int
    path: str
    """Of the image it was found in."""


class Image:
    """One ELF image in the target's memory, starting at ``base``."""

    def __init__(self, memory: Memory, base: int) -> None:
        self._memory = memory
        header = memory.read(base, 64)
        if header[:6] != b"\x7fELF\x02\x01":
            raise NotAnImage("no 64-bit little-endian ELF header")
        kind, table = struct.unpack_from("<H", header, 16)[0], struct.unpack_from("<Q", header, 32)[0]
        size, count = struct.unpack_from("<HH", header, 54)
        if size != 56 or not 0 < count <= _MAX_PROGRAM_HEADERS:
            raise NotAnImage("implausible program headers")
        raw = memory.read(base + table, size * count)
        headers = [struct.unpack_from("<IIQQQQQQ", raw, size * index) for index in range(count)]
        loads = [header[3] for header in headers if header[0] == _PT_LOAD]
        if not loads:
            raise NotAnImage("nothing to load")
        self.bias = base - (min(loads) & -4096) if kind == _ET_DYN else 0
        self._notes = [(self.bias + header[3], header[5]) for header in headers if header[0] == _PT_NOTE]
        dynamic = next((header[3] for header in headers if header[0] == _PT_DYNAMIC), None)
        self._dynamic = {} if dynamic is None else dict(self._read_dynamic(self.bias + dynamic))

    def _read_dynamic(self, address: int) -> Iterator[tuple[int, int]]:
        for index in range(_MAX_DYNAMIC_ENTRIES):
            tag, value = self._memory.unpack("QQ", address + 16 * index)
            if tag == 0:
                return
            yield tag, value

    def _table(self, tag: int) -> int:
        value = self._dynamic.get(tag)
        if value is None:
            raise NotAnImage("no dynamic symbols")
        # glibc relocates these entries in place (elf/get-dynamic-info.h), musl and the vdso leave them
        # relative.
        return value if value > self.bias else value + self.bias

    def build_id(self) -> bytes | None:
        """The linker's fingerprint of this image, if it left one."""
        for address, size in self._notes:
            if size > 4096:
                continue
            found = _find_build_id(self._memory.read(address, size))
            if found is not None:
                return found
        return None

    def find(self, name: bytes) -> tuple[int, int] | None:
        """Address and size of a defined exported symbol, through the GNU hash table."""
        table = self._table(_DT_GNU_HASH)
        symbols, strings = self._table(_DT_SYMTAB), self._table(_DT_STRTAB)
        buckets, first, words, shift = self._memory.unpack("IIII", table)
        if not buckets or not words:
            return None
        value = _gnu_hash(name)
        word = self._memory.u64(table + 16 + 8 * (value // 64 % words))
        if not (word >> (value % 64)) & (word >> ((value >> shift) % 64)) & 1:
            return None
        at_buckets = table + 16 + 8 * words
        start = self._memory.u32(at_buckets + 4 * (value % buckets))
        if start < first:
            return None
        for index in range(start, start + _MAX_CHAIN):
            chained = self._memory.u32(at_buckets + 4 * buckets + 4 * (index - first))
            if chained | 1 == value | 1:
                at_name, _, _, section, offset, size = self._memory.unpack("IBBHQQ", symbols + 24 * index)
                if section and self._memory.string(strings + at_name, len(name) + 1) == name:
                    return self.bias + offset, size
            if chained & 1:
                return None
        return None


def _gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def _find_build_id(notes: bytes) -> bytes | None:
    offset = 0
    while offset + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, offset)
        at = offset + 12 + (name_size + 3 & -4)
        if kind == _NT_GNU_BUILD_ID and notes[offset + 12 : offset + 16] == b"GNU\0":
            return notes[at : at + size]
        offset = at + (size + 3 & -4)
    return None


def list_images(regions: Regions) -> list[Region]:
    """The first mapping of every mapped file, where its ELF header is."""
    seen: set[str] = set()
    images = []
    for region in regions.of_files:
        if region.offset == 0 and region.path.startswith("/") and region.path not in seen:
            seen.add(region.path)
            images.append(region)
    return images


def find_symbols(
    memory: Memory,
    regions: Regions,
    names: Sequence[bytes],
    is_candidate: Callable[[str], bool],
) -> dict[bytes, Symbol]:
    """The exported symbols ``names``, from the first image that has each, of those whose file name passes.

    Images that cannot be read are passed over. Raises only ``OSError`` for a process that may not be read.
    """
    found: dict[bytes, Symbol] = {}
    for region in list_images(regions):
        if not is_candidate(os.path.basename(region.path)) or "r" not in region.permissions:
            continue
        try:
            for name, (offset, size) in _find_in_image(memory, region, tuple(names)).items():
                found.setdefault(name, Symbol(region.start + offset, size, region.path))
        except (NotAnImage, FileNotFoundError):
            continue
        except OSError as error:
            if error.errno in _PROCESS_REFUSES:
                raise
        if len(found) == len(names):
            break
    return found


_Offsets = Mapping[bytes, tuple[int, int]]
_known_images: dict[tuple[str, int, str, tuple[bytes, ...]], _Offsets] | None = None


def remember_images() -> None:
    """From now on, in this process, the symbols of a file are looked up once, for ranks load the same files.

    To be called anew for each look: a file that is replaced later may get the same inode.
    """
    global _known_images
    _known_images = {}


def _find_in_image(memory: Memory, region: Region, names: tuple[bytes, ...]) -> _Offsets:
    """Those of ``names`` that an image has: offset from its first byte in memory, and size."""
    key = region.device, region.inode, region.path, names
    if _known_images is not None and key in _known_images:
        return _known_images[key]
    image = Image(memory, region.start)
    hits = {name: hit for name in names if (hit := image.find(name)) is not None}
    offsets = {name: (address - region.start, size) for name, (address, size) in hits.items()}
    if _known_images is not None:
        _known_images[key] = offsets
    return offsets


_PROCESS_REFUSES = (1, 3, 13)
"""EPERM, ESRCH, EACCES: about the process, not about one image."""


def find_hidden(
    pid: int, memory: Memory, region: Region, name_pattern: re.Pattern[bytes]
) -> dict[bytes, Symbol]:
    """Symbols of ``.symtab`` (also those that are not exported) whose whole name matches, in a mapped image.

    The file is the one in the target's own mount namespace; if its build id differs from the one in
    memory (an upgrade under a running server) nothing is returned. Raises ``OSError`` and
    :class:`NotAnImage`.
    """
    image = Image(memory, region.start)
    fd = os.open(f"/proc/{pid}/root{region.path}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise NotAnImage("not a regular file")
        key = _FileKey(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size, name_pattern.pattern)
        found = _symtabs.get(key)
        if found is None:
            found = _read_symtab(fd, status.st_size, name_pattern)
            learn_symtabs({key: found})
    finally:
        os.close(fd)
    if found.build_id != image.build_id():
        raise NotAnImage("the file was replaced since it was loaded")
    return {name: Symbol(image.bias + value, size, region.path) for name, value, size in found.symbols}


@dataclass(frozen=True, slots=True)
class _FileKey:
    """A file as it is, and what was looked for in it."""

    device: int
    inode: int
    modified_ns: int
    size: int
    pattern: bytes


@dataclass(frozen=True, slots=True)
class Symtab:
    """What a file says: its fingerprint; name, value and size of each symbol that matches."""

    build_id: bytes | None
    symbols: tuple[tuple[bytes, int, int], ...]


Symtabs = Mapping[_FileKey, Symtab]
_MOST_SYMTABS = 64
_symtabs: dict[_FileKey, Symtab] = {}


def known_symtabs() -> Symtabs:
    """What this process has found in files so far. For another one, which is spared the search by it."""
    return dict(_symtabs)


def learn_symtabs(known: Symtabs) -> None:
    """What another process has found. libtorch_cpu.so (434 MB) takes about 100 ms."""
    _symtabs.update(known)
    for oldest in list(_symtabs)[:-_MOST_SYMTABS]:
        del _symtabs[oldest]


def _read_symtab(fd: int, size: int, name_pattern: re.Pattern[bytes]) -> Symtab:
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as image:
        sections = _read_sections(image)
        build_id = next(
            (
                found
                for section in sections
                if section.kind == _SHT_NOTE and section.size <= 4096
                if (found := _find_build_id(image[section.offset : section.offset + section.size]))
            ),
            None,
        )
        symbols: list[tuple[bytes, int, int]] = []
        for section in sections:
            if section.kind == _SHT_SYMTAB and section.link < len(sections):
                symbols += _search(image, section, sections[section.link], name_pattern)
    return Symtab(build_id, tuple(symbols))


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


def _read_sections(image: mmap.mmap) -> list[_Section]:
    if image[:6] != b"\x7fELF\x02\x01":
        raise NotAnImage("no 64-bit little-endian ELF header")
    table = struct.unpack_from("<Q", image, 40)[0]
    size, count = struct.unpack_from("<HH", image, 58)
    if size != _SECTION.size or count > _MAX_SECTIONS or table + size * count > len(image):
        raise NotAnImage("implausible section headers")
    rows = [_SECTION.unpack_from(image, table + size * index) for index in range(count)]
    return [
        # A truncated file keeps its section numbers (links are indexes) but loses what lies beyond its end.
        _Section(kind=row[1], offset=row[4], size=row[5] if row[4] + row[5] <= len(image) else 0, link=row[6])
        for row in rows
    ]


def _search(
    image: mmap.mmap, table: _Section, strings: _Section, name_pattern: re.Pattern[bytes]
) -> Iterator[tuple[bytes, int, int]]:
    """Find the names first (one pass of ``re`` over the string table), then who refers to them.

    Unpacking every entry of libtorch's symbol table would take seconds.
    """
    for match in name_pattern.finditer(image, strings.offset, strings.offset + strings.size):
        start, end = match.span()
        if image[start - 1 : start] != b"\0" or image[end : end + 1] != b"\0":
            continue
        wanted = struct.pack("<I", start - strings.offset)
        at = image.find(wanted, table.offset, table.offset + table.size)
        while at >= 0:
            if (at - table.offset) % _SYMBOL.size == 0:
                _, _, _, section, value, size = _SYMBOL.unpack_from(image, at)
                if section:
                    yield match.group(), value, size
                break
            at = image.find(wanted, at + 1, table.offset + table.size)
