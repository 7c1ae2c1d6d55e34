"""Frames without any header: the middle of a dump, or what somebody typed under ``# TP0``.

A line opens such a block only when it cannot be prose: ``function (file.py:12)``, or at least two lines that are
nothing but the names of C functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from hangdoctor.parsers.findings import Finding, Sighting
from hangdoctor.parsers.formats.py_spy_text import ThreadDumpReader
from hangdoctor.parsers.frame_text import is_frame, is_symbol_line, read_frame
from hangdoctor.parsers.labels import read_heading
from hangdoctor.parsers.registry import BlockFormat, Opening

_COMMENT = re.compile(r"\s*(?:#|//|--|[-*•]|\|)+\s*(?=\S)")
_NUMBERED = re.compile(r"\s*\d{1,3}[.)]\s+(?=\S)")
_TITLED = re.compile(r"(?P<title>\S.{2,120}?) ?: (?P<frame>\S.*)$")


class BareFrameReader:
    """Like a py-spy dump, but lines may be comments or list items, and the first may begin with a title."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._inner: ThreadDumpReader | None = None
        self._held: list[tuple[str, int]] = []

    def take(self, text: str, number: int) -> bool:
        """Whether a line goes on with the frames."""
        body = _strip(text)
        if self._inner is not None:
            # A comment is a new heading unless it is a frame itself.
            if body != text.strip() and not is_frame(body):
                return False
            return self._inner.take(body, number)
        if is_frame(body):
            return self._begin(self._opening, body, number)
        titled = _TITLED.match(body)
        if titled is not None and is_frame(titled["frame"]):
            heading = read_heading(f"# {titled['title']}")
            return self._begin(replace(self._opening, heading=heading), titled["frame"], number)
        is_first = not self._held
        if is_first and not is_symbol_line(body):
            return False
        if body != text.strip() or read_frame(body) is None:
            return False
        self._held.append((body, number))
        return True

    def _begin(self, opening: Opening, frame: str, number: int) -> bool:
        self._inner = ThreadDumpReader(opening, source="frames", bare=True)
        for held, line in self._held:
            self._inner.take(held, line)
        self._held = []
        return self._inner.take(frame, number)

    def close(self) -> Iterable[Finding]:
        """One sighting; nothing for a lone name, which may be any word."""
        if self._inner is None and len(self._held) > 1:
            self._inner = ThreadDumpReader(self._opening, source="frames", bare=True)
            for held, line in self._held:
                self._inner.take(held, line)
        if self._inner is None:
            return
        for finding in self._inner.close():
            if isinstance(finding, Sighting) and finding.threads:
                yield replace(finding, is_continuation=False)


def _strip(text: str) -> str:
    found = _COMMENT.match(text) or _NUMBERED.match(text)
    return (text[found.end() :] if found else text).strip()


FORMATS = (
    BlockFormat(
        name="frames",
        summary="bare frames: the middle of a dump, or typed below a heading such as '# TP1, TP2'",
        # Anything that could be a frame; the reader decides.
        opens=re.compile(r".*\)$|[A-Za-z_][\w:]{3,199}$"),
        reader=BareFrameReader,
        order=90,
    ),
)
