"""Python tracebacks: where an exception was raised, most recent call last.

Incidental evidence: a server logs many that have nothing to do with a hang. But ``KeyboardInterrupt`` shows where a
hung script was, and a time-out's traceback shows what the rank had been waiting in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.model import Frame, LogMessage, Method, Stack, Thread
from hangdoctor.parsers.findings import Finding, Sighting
from hangdoctor.parsers.registry import BlockFormat, Opening

_FRAME = re.compile(r"(?:[|+ ]*)File \"(?P<file>[^\"]*)\", line (?P<line>\d{1,9})(?:, in (?P<function>.+))?$")
_EXCEPTION = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Failure|Empty|Full|Again)|[A-Za-z_][\w.]*Error)"
    r"(?:: (?P<message>.*))?$"
)
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_MOST_FRAMES = 2000
_INTERRUPTS = ("KeyboardInterrupt", "SystemExit")


class TracebackReader:
    """Reads one traceback; a chained one continues it, and its last exception counts."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._frames: list[Frame] = []
        self._type: str | None = None
        self._message = ""
        self._is_first_first = False
        self._is_done = False
        self._blank_seen = False

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the traceback."""
        body = text.strip()
        if not body:
            self._blank_seen = True
            return True
        if body.startswith("Traceback (most recent call "):
            return self._begin(body)
        found = _FRAME.match(body)
        if found is not None and not self._is_done and len(self._frames) < _MOST_FRAMES:
            self._frames.append(
                Frame(found["function"] or "<module>", found["file"], int(found["line"]) or None)
            )
            return True
        if body.startswith(_CHAINED):
            return True
        if self._is_done:
            return False
        exception = _EXCEPTION.match(body)
        if exception is not None and not text.startswith("    ") and self._frames:
            self._type, self._message, self._is_done = exception["type"], exception["message"] or "", True
            return True
        # Source lines, carets and "[Previous line repeated …]" are indented below a frame.
        return bool(self._frames) and text.startswith(("   ", "\t", "  [", "  ^"))

    def _begin(self, body: str) -> bool:
        if self._is_done and not self._blank_seen:
            return False
        if self._is_done and self._type in _INTERRUPTS:
            return False
        self._frames, self._is_done = [], False
        self._is_first_first = "call first" in body
        return True

    def close(self) -> Iterable[Finding]:
        """What was raised and where; the process it was raised in, if there is one to put it to."""
        if not self._frames:
            return
        opening = self._opening
        frames = tuple(self._frames if self._is_first_first else reversed(self._frames))
        label = next(iter(opening.labels), None)
        if self._type is not None:
            fields = {
                "type": self._type,
                "message": self._message[:500],
                "function": frames[0].function,
                "file": frames[0].file,
            }
            if frames[0].line is not None:
                fields["line"] = str(frames[0].line)
            text = f"{self._type}: {self._message}"[:600]
            yield LogMessage("python.exception", text, label, fields, opening.where.line)
        is_where_it_hung = self._type is None or self._type in _INTERRUPTS
        if not is_where_it_hung and label is None and opening.pid is None:
            return
        is_main = frames[-1].function == "<module>"
        yield Sighting(
            source="traceback",
            where=opening.where,
            pid=opening.pid,
            labels=opening.labels,
            host=opening.host,
            taken_at=opening.taken_at,
            command=opening.command,
            threads=(
                Thread(
                    tid=None, name="MainThread" if is_main else None, stack=Stack(frames, Method.TRACEBACK)
                ),
            ),
            is_incidental=True,
        )


FORMATS = (
    BlockFormat(
        name="traceback",
        summary="Python tracebacks, also with a rank before every line and without their beginning",
        first="TF",
        opens=re.compile(
            r"Traceback \(most recent call (?:last|first)\):|File \"[^\"]*\", line \d+(?:, in .+)?$"
        ),
        reader=TracebackReader,
        order=40,
    ),
)
