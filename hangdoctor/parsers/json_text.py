"""JSON in the middle of a text: whole, slightly malformed, or cut short."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

_DECODER = json.JSONDecoder(strict=False)
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)
_MOST_SALVAGED = 16_000_000
_MOST_MEMORY = 250_000_000


@dataclass(frozen=True, slots=True)
class JsonResult:
    """A value, where it ended, and what was wrong with it."""

    value: object
    end: int
    problem: str | None = None


def read_json(text: str, start: int, repair: Callable[[str], str]) -> JsonResult | None:
    """The value at ``start``. Cut-off values are closed after their last complete part.

    ``None`` when nothing complete can be had, or when the value would need too much memory.
    """
    if _memory_needed(text, start) > _MOST_MEMORY:
        return None
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        return _repaired(text, start, repair) or _salvaged(text, start, error.pos)
    except (RecursionError, ValueError):
        return None
    return JsonResult(value, end)


def _memory_needed(text: str, start: int) -> int:
    """Bytes that CPython would need, from above: a small text can hold millions of empty lists."""
    objects, lists, items = (text.count(char, start) for char in "{[,")
    strings = max(0, text.count('"', start) // 2 - text.count(":", start))  # keys are shared
    return 184 * objects + 64 * lists + 16 * items + 60 * strings


def _repaired(text: str, start: int, repair: Callable[[str], str]) -> JsonResult | None:
    if len(text) - start > _MOST_SALVAGED:
        return None
    damaged = text[start:]
    mended = repair(damaged)
    if mended == damaged:
        return None
    try:
        value, end = _DECODER.raw_decode(mended)
    except json.JSONDecodeError as error:
        found = _salvaged(mended, 0, error.pos)
        if found is None:
            return None
        return JsonResult(found.value, len(text), found.problem)
    except (RecursionError, ValueError):
        return None
    return JsonResult(
        value, start + end - (len(mended) - len(damaged)), "malformed, as that version writes it; mended"
    )


def _salvaged(text: str, start: int, failed: int) -> JsonResult | None:
    if failed - start > _MOST_SALVAGED:
        return None
    safe = start
    for token in _TOKEN.finditer(text, start, failed):
        if token[0] in "]}":
            safe = token.end()
        elif token[0] == ",":
            safe = token.start()
    if safe <= start:
        return None
    stack: list[str] = []
    for token in _TOKEN.finditer(text, start, safe):
        if token[0] in "[{":
            stack.append("]" if token[0] == "[" else "}")
        elif token[0] in "]}" and stack:
            stack.pop()
    try:
        value, _ = _DECODER.raw_decode(text[start:safe] + "".join(reversed(stack)))
    except (RecursionError, ValueError):
        return None
    return JsonResult(value, failed, "cut short; the complete parts were read")
