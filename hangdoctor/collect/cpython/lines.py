"""Which source line an instruction belongs to, from the tables that CPython keeps beside its bytecode.

Formats: Objects/lnotab_notes.txt of 3.10 (PEP 626) and Objects/locations.md of 3.11 and later (PEP 657). Our own
decoder, because the tables come out of another process' memory and may be damaged: it stops where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

_NO_LINE, _LONG, _NO_COLUMNS = 15, 14, 13
_ONE_LINE = 10
"""From here to 12 an entry of PEP 657 says its line in its code and has two bytes of columns."""


@lru_cache(maxsize=4096)
def find_line(table: bytes, first_line: int, unit: int, *, is_old: bool) -> int | None:
    """Line of code unit ``unit`` (two bytes); ``None`` where the table has none for it. ``is_old``: 3.10's format.

    Ranks run the same code, so most tables are decoded once.
    """
    ranges = _old_ranges(table, first_line) if is_old else _ranges(table, first_line)
    for first, end, line in ranges:
        if first <= unit < end:
            return line
    return None


def _old_ranges(table: bytes, line: int) -> Iterator[tuple[int, int, int | None]]:
    """Pairs of bytes: bytes of code, signed change of line; -128 says that these instructions have no line."""
    at = 0
    for index in range(0, len(table) - 1, 2):
        size, change = table[index], table[index + 1]
        if change > 127:
            change -= 256
        if change == -128:
            yield at // 2, (at + size) // 2, None
        else:
            line += change
            yield at // 2, (at + size) // 2, line
        at += size


def _ranges(table: bytes, line: int) -> Iterator[tuple[int, int, int | None]]:
    """Entries begin with bit 7 set: four bits of kind, three of length in code units less one."""
    at, index = 0, 0
    while index < len(table):
        head = table[index]
        if not head & 0x80:
            return
        kind, size = head >> 3 & 15, (head & 7) + 1
        if kind in (_LONG, _NO_COLUMNS):
            line += _signed(table, index + 1)
        elif _ONE_LINE <= kind < _NO_COLUMNS:
            line += kind - _ONE_LINE
        yield at, at + size, None if kind == _NO_LINE else line
        at += size
        index += 1
        while index < len(table) and not table[index] & 0x80:
            index += 1


def _signed(table: bytes, index: int) -> int:
    """Six bits a byte, least first; bit 6 says that another follows; the lowest bit of the whole is the sign."""
    value, shift = 0, 0
    for byte in table[index : index + 6]:
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return -(value >> 1) if value & 1 else value >> 1
