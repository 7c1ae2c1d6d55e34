"""Cuts an input into blocks: strips prefixes, finds where a dump begins, and gives its lines to its format.

One pass, line by line. Every stream (a rank, a container) has its own open block, so that interleaved output comes
apart again. What no format takes is a log record, a heading for the next block, or prose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hangdoctor.knowledge.clock import Clock
from hangdoctor.model import Gap, LogMessage
from hangdoctor.parsers.findings import Where
from hangdoctor.parsers.found import Found, name_finding
from hangdoctor.parsers.frame_text import FrameTable
from hangdoctor.parsers.json_text import read_json
from hangdoctor.parsers.labels import Heading, read_heading
from hangdoctor.parsers.log_lines import LogKnowledge, LogLine, LogLines
from hangdoctor.parsers.prefix import Splitter, Stream
from hangdoctor.parsers.ranges import LineRanges
from hangdoctor.parsers.records import split_record
from hangdoctor.parsers.registry import BlockFormat, JsonFormat, Opening, Reader, formats

_SHORTEST_LINE, _LONGEST_LINE = 3, 8192
_MOST_LINES = 1_500_000
_FIRST_LINES, _LAST_LINES = 50_000, 350_000
"""Of a longer log its beginning and its end are searched for messages."""
_MOST_JSON_TRIED = 100_000_000
"""Characters behind the beginnings of what turned out to be no JSON."""
_JSON_SECOND = ("", " ", "\t", "\r", "\n", "{", "[", '"')
_JSON_STARTS = ("[", "{", "  [", "  {", "    [", "    {", "\t[", "\t{")
_HEADING_REACH = 3
"""Lines of prose after which a heading no longer speaks for the next block."""

_DEBRIS = re.compile(r'Thread \S+ ?\(|File "[^"]*", line \d|#\d+ +0x|Traceback \(')
_FENCE = re.compile(r"\s*(?:```|~~~|</?(?:details|summary|pre|code)\b)", re.IGNORECASE)
_NAMED_GROUP = re.compile(r"\(\?P<\w+>")


@dataclass(slots=True)
class _Block:
    format: BlockFormat
    reader: Reader
    stream: Stream | None
    """Whose first line it was; lines without a prefix may belong to it too."""


class Cutter:
    """Reads one text into ``found``."""

    def __init__(
        self,
        file: str,
        found: Found,
        frames: FrameTable,
        knowledge: LogKnowledge | None = None,
    ) -> None:
        self._file, self._found, self._frames = file, found, frames
        self._blocks = [f for f in formats() if isinstance(f, BlockFormat)]
        self._json = [f for f in formats() if isinstance(f, JsonFormat)]
        self._json_keys = tuple(f'"{key}"' for f in self._json for key in f.keys)
        self._opens = _openings(self._blocks)
        self._clock, self._splitter = Clock(), Splitter()
        self._open: dict[Stream | None, _Block] = {}
        self._headings: dict[Stream | None, tuple[Heading, int]] = {}
        self._json_tried = 0
        self._headless: tuple[str, Stream | None, int] | None = None
        self._unread, self._debris = LineRanges(), LineRanges()
        self._log = LogLines(file, knowledge)
        self._middle = range(0)
        self._skipped = 0

    # -- the pass ----------------------------------------------------------------------------------

    def read(self, text: str) -> None:
        """Read the whole text; never raises for what it contains."""
        count = text.count("\n") + 1
        self._middle = range(_FIRST_LINES, count - _LAST_LINES)
        position, number = self._skip_excess(text, count)
        size = len(text)
        while position < size:
            number += 1
            end = text.find("\n", position)
            end = size if end < 0 else end
            try:
                jump = self._take(text, position, end, number)
            except Exception as error:  # a bug here must not cost the rest of the evidence
                self._bug(number, error)
                jump = end
            if jump != end:
                number += text.count("\n", position, jump)
                end = text.find("\n", jump)
                end = size if end < 0 else end
            position = end + 1
        try:
            self._finish()
        except Exception as error:
            self._bug(number, error)

    def _take(self, text: str, position: int, end: int, number: int) -> int:
        """Read the line at ``position``; where that ended: ``end``, or further on for a value of several lines."""
        if text.startswith(_JSON_STARTS, position):
            jump = self._json_at(text, position, min(end, position + 64), number)
            if jump is not None:
                return jump
        line = text[position : min(end, position + _LONGEST_LINE)]
        block = self._open.get(None)
        # Four of five lines of a dump are frames; none of them has a prefix.
        if block is not None and (not line or (line[:4] == "    " and line[-1] != "\r")):
            if block.reader.take(line, number):
                return end
            self._close(None)
        if end - position >= _SHORTEST_LINE or None in self._open:
            self._line(line, number)
        if end - position > 1_000_000:
            self._gap(number, f"the line is {end - position:,} characters long; only its beginning was read")
        return end

    def _bug(self, number: int, error: Exception) -> None:
        """Drop what was being read and say so."""
        self._open.clear()
        where = str(Where(self._file, number))
        reason = f"hangdoctor failed to read it ({type(error).__name__}: {error})"[:200]
        self._found.gaps.append(
            Gap("parser", where, reason, "this is a bug in hangdoctor: please report the line")
        )

    def _skip_excess(self, text: str, count: int) -> tuple[int, int]:
        """Where to begin: a text of millions of tiny lines is no dump, and its end is what matters."""
        if count <= _MOST_LINES:
            return 0, 0
        position = text.find("\n", int(len(text) * (1 - _MOST_LINES / count))) + 1
        skipped = text.count("\n", 0, position)
        self._found.gaps.append(
            Gap(
                "parser",
                self._file,
                f"{count:,} lines; lines 1-{skipped:,} were not read",
                "cut the file around the time of the hang",
            )
        )
        return position, skipped

    def _line(self, raw: str, number: int) -> None:
        if "\r" in raw:
            raw = raw.rstrip("\r")
            raw = raw[raw.rfind("\r") + 1 :]
        if number in self._middle and None not in self._open:
            self._skim(raw, number)
            return
        stream, text, stamp = self._splitter.split(raw)
        if stream in self._open and self._offer(stream, text, number):
            return
        body = text.strip()
        if not body:
            return
        opens = self._may_open(body)
        if opens is not None and self._start(stream, text, body, stamp, number, None, opens):
            return
        record = split_record(text)
        label = None
        if record is not None:
            stamp, label = record.stamp, record.label
            inner = record.text.strip()
            opens = self._may_open(inner)
            if opens is not None and self._start(stream, record.text, inner, stamp, number, label, opens):
                return
        if stamp:
            self._found.tail.append(raw[:400])
        if record is not None and not record.text.strip():
            self._headless = (raw, stream, number)  # a logger's line broken after its head
            return
        if self._headless is not None and stream is None and record is None:
            raw, stream = self._join_head(raw, number)
        findings = self._log.read(LogLine(raw, text, number, stream, label))
        if findings is not None:
            for finding, name in findings:
                self._found.add(finding, name)
        elif not stamp:
            self._prose(stream, text, number)

    def _join_head(self, raw: str, number: int) -> tuple[str, Stream | None]:
        """The line with the head that stands alone just before it, if one does."""
        head, self._headless = self._headless, None
        if head is None or head[2] != number - 1:
            return raw, None
        return f"{head[0]} {raw}", head[1]

    def _skim(self, raw: str, number: int) -> None:
        """A line in the middle of a very long text: it can only begin a dump."""
        body = raw.strip()
        opens = self._may_open(body)
        if opens is None or not self._start(None, raw, body, "", number, None, opens):
            self._skipped += 1

    def _may_open(self, body: str) -> int | None:
        """The number of the first format that a line may begin a block of."""
        pattern, numbers = self._opens.get(body[:1], self._opens[""])
        found = pattern.match(body)
        return numbers[(found.lastindex or 1) - 1] if found is not None else None

    # -- blocks ------------------------------------------------------------------------------------

    def _offer(self, stream: Stream | None, text: str, number: int) -> bool:
        """Give a line to the block that is open in its stream."""
        if self._open[stream].reader.take(text, number):
            return True
        self._close(stream)
        return False

    def _start(
        self,
        stream: Stream | None,
        text: str,
        body: str,
        stamp: str,
        number: int,
        label: str | None,
        first: int,
    ) -> bool:
        """Begin a block with this line; ``first`` is the number of the first format whose opening it matches."""
        if self._found.is_full:
            return False
        for candidate in self._blocks[first:]:
            if candidate.opens.match(body) is None:
                continue
            moment = self._clock.read(stamp) if stamp else None
            opening = Opening(
                where=Where(self._file, number),
                text=text,
                frames=self._frames,
                stream=stream,
                heading=self._heading_for(stream),
                label=label,
                taken_at=moment.seconds if moment is not None and moment.has_year else None,
            )
            reader = candidate.reader(opening)
            if not reader.take(text, number):
                continue
            block = _Block(candidate, reader, stream)
            self._open[stream] = block
            if candidate.continues_unprefixed and None not in self._open:
                self._open[None] = block
            return True
        return False

    def _close(self, stream: Stream | None) -> None:
        block = self._open.pop(stream)
        for other in (block.stream, None):
            if self._open.get(other) is block:
                del self._open[other]
        is_empty = True
        for finding in block.reader.close():
            is_empty = False
            self._found.add(finding, block.format.name)
            if isinstance(finding, LogMessage) and finding.kind == "python.exception":
                # "RuntimeError: [gloo] Connection closed by peer": a message in the shape of an exception.
                number = finding.line_number or 0
                for inner, name in self._log.read_formats(finding.text, number, finding.process) or ():
                    self._found.add(inner, name)
        if not is_empty:
            self._headings.pop(block.stream, None)

    def _heading_for(self, stream: Stream | None) -> Heading | None:
        known = self._headings.get(stream)
        return known[0] if known is not None else None

    # -- everything else ---------------------------------------------------------------------------

    def _prose(self, stream: Stream | None, text: str, number: int) -> None:
        if _FENCE.match(text):
            return
        heading = read_heading(text)
        known = self._headings.get(stream)
        if heading is not None:
            self._headings[stream] = (_merge(known[0], heading) if known else heading, 0)
            return
        if known is not None:
            if known[1] + 1 > _HEADING_REACH:
                del self._headings[stream]
            else:
                self._headings[stream] = (known[0], known[1] + 1)
        (self._debris if _DEBRIS.search(text) else self._unread).add(number)

    def _json_at(self, text: str, position: int, end: int, number: int) -> int | None:
        """Read a JSON value that begins in this line; where it ends, or ``None`` when there is none."""
        start = position
        while start < end and text[start] in " \t":
            start += 1
        # "[2026-01-01 12:00:00 TP0]" begins most lines of some logs.
        if text[start + 1 : start + 2] not in _JSON_SECOND or self._json_tried > _MOST_JSON_TRIED:
            return None
        head = text[start : start + 600]
        if not any(key in head for key in self._json_keys):
            return None
        for form in self._json:
            if not any(f'"{key}"' in head for key in form.keys):
                continue
            result = read_json(text, start, form.repair)
            if result is None:
                self._gap(number, f"looks like {form.name}, but is too damaged or too large to read")
                continue
            findings = form.read(result.value, Where(self._file, number))
            for finding in findings:
                self._found.add(name_finding(finding, self._heading_for(None)), form.name)
            if findings:
                if result.problem:
                    self._gap(number, f"{form.name}: {result.problem}")
                self._headings.pop(None, None)
                return result.end
        self._json_tried += len(text) - start
        return None

    # -- the end -----------------------------------------------------------------------------------

    def _finish(self) -> None:
        for stream in list(self._open):
            if stream in self._open:
                self._close(stream)
        for finding, name in self._log.close():
            self._found.add(finding, name)
        for ranges, what in (
            (self._debris, "parts of dumps that could not be read"),
            (self._unread, "prose, or a format that is not known"),
        ):
            if ranges:
                self._found.gaps.append(Gap("parser", f"{self._file}, lines {ranges}", what))
        if self._skipped:
            reason = f"{self._skipped:,} lines in the middle were searched for dumps, not for messages"
            self._found.gaps.append(
                Gap("parser", self._file, reason, "cut the log around the time of the hang")
            )

    def _gap(self, number: int, reason: str) -> None:
        self._found.gaps.append(Gap("parser", str(Where(self._file, number)), reason))


def _openings(blocks: Sequence[BlockFormat]) -> dict[str, tuple[re.Pattern[str], tuple[int, ...]]]:
    """By first character: one pattern with a group a format, and the numbers of these formats. "" is any other."""
    characters = {char for form in blocks for char in form.first}
    table = {}
    for char in ("", *characters):
        numbers = tuple(n for n, f in enumerate(blocks) if not f.first or (char and char in f.first))
        groups = (f"({_NAMED_GROUP.sub('(?:', blocks[n].opens.pattern)})" for n in numbers)
        table[char] = (re.compile("|".join(groups)), numbers)
    return table


def _merge(outer: Heading, inner: Heading) -> Heading:
    return Heading(
        labels=inner.labels or outer.labels,
        pid=inner.pid if inner.pid is not None else outer.pid,
        tid=inner.tid,
        host=inner.host or outer.host,
        command=inner.command or outer.command,
        tool=inner.tool or outer.tool,
    )
