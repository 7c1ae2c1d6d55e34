"""Captured text inside Markdown: escaped for prose, as code, in table cells, in fenced blocks and in HTML summaries.

What must not happen in a ticket: markup that renders, a table that falls apart, a fence that ends early, and
``@name`` or ``#12`` that notifies a stranger or links another ticket.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from hangdoctor.render._wording import clean

_SPECIAL = re.compile(r"[\\`*\[\]~$]")
# An underscore between letters is no emphasis, and `reserve\_slot` is hard to read in a plain-text mail.
_UNDERSCORE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_BLOCK_START = re.compile(r"^\s*(?:[#+=-]|\d+[.)](?=\s|$))")
# A zero-width space after the sign, as Dependabot does it: nothing else stops a mention outside of code.
_MENTION = re.compile(r"@(?=\w)|#(?=\d)")
_RUN = re.compile(r"`+")


def escape(text: str) -> str:
    """Prose: nothing in `text` is markup, a mention or a reference."""
    text = _UNDERSCORE.sub(r"\\_", _SPECIAL.sub(r"\\\g<0>", clean(text)))
    text = "".join(_ENTITIES.get(character, character) for character in text)
    text = _MENTION.sub(lambda match: match[0] + "\u200b", text)
    return _BLOCK_START.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", text)


def code(text: str) -> str:
    """A code span that `text` cannot leave."""
    text = clean(text)
    if not text.strip():
        return "` `"
    fence = "`" * (max(map(len, _RUN.findall(text)), default=0) + 1)
    space = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{space}{text}{space}{fence}"


def cell(text: str, *, is_code: bool = False) -> str:
    """Text for a table cell; a pipe would end the cell even inside a code span, so such text is prose."""
    if is_code and "|" not in text:
        return code(text)
    return escape(text).replace("|", "&#124;")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that were made with `cell`."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def fence(lines: Iterable[str]) -> str:
    """A fenced block of captured lines."""
    body = "\n".join(map(clean, lines))
    ticks = "`" * max(3, max(map(len, _RUN.findall(body)), default=0) + 1)
    return f"{ticks}text\n{body}\n{ticks}"


def details(summary: str, body: str) -> str:
    """A folded section. Blank lines around the tags keep the body Markdown, also where HTML is not rendered."""
    return f"<details><summary>{html.escape(clean(summary))}</summary>\n\n{body}\n\n</details>"
