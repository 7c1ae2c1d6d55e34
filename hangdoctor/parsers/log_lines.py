"""Single log lines: the formats that read such lines, and the knowledge of servers' logs."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

from hangdoctor.knowledge.clock import Clock
from hangdoctor.model import LogMessage
from hangdoctor.parsers.findings import Finding, Where
from hangdoctor.parsers.literals import LiteralIndex
from hangdoctor.parsers.prefix import Stream
from hangdoctor.parsers.registry import LineFormat, LineReader, formats

_PLACE = re.compile(r"\[([\w./\-]{1,100}\.(?:py|cpp|cc):\d{1,6})\]")

_READ_AT_ONCE, _READ_LATER = 8, 12
_MOST_SHAPES = 50_000
# A zero is news ("Running: 0 reqs"), other digits are not.
_SAME_DIGITS = bytes.maketrans(b"23456789", b"11111111")

Named = tuple[Finding, str]
"""A finding and the name of the format that made it."""


class LogKnowledge(Protocol):
    """What the parsers need of the knowledge."""

    def read_log_line(self, text: str) -> LogMessage | None:
        """What a line of a server's log says; ``None`` when it says nothing about a hang."""


class LogLine(NamedTuple):
    """One line outside any block."""

    raw: str
    """As it stands in the file."""
    text: str
    """Without prefixes."""
    number: int
    stream: Stream | None
    label: str | None
    """The process that the head of its record names."""

    @property
    def who(self) -> str | None:
        """The process that wrote it."""
        return self.label or (self.stream.label if self.stream else None)


class LogLines:
    """Reads the lines of one input that lie outside blocks.

    Logs repeat themselves. Lines that differ in their digits only are read a few times; of the others the last few
    are kept and read at the end, which is all that a report needs (`MessageLog`).
    """

    def __init__(self, file: str, knowledge: LogKnowledge | None) -> None:
        self._file, self._knowledge = file, knowledge
        all_readers = [(form, form.reader()) for form in formats() if isinstance(form, LineFormat)]
        self._counting = _Readers([r for r in all_readers if r[0].reads_all])
        self._before = _Readers([r for r in all_readers if not r[0].reads_all and not r[0].is_fallback])
        self._after = _Readers([r for r in all_readers if r[0].is_fallback])
        self._literals = _index(knowledge)
        self._clock = Clock()
        self._shapes: dict[tuple[bytes, str | None], _Shape | None] = {}

    def read(self, line: LogLine) -> list[Named] | None:
        """Findings, each with the name of its format; ``None`` when the line says nothing."""
        found = self._counting.read(line.text, self._where(line.number), line.who)
        if found is not None:
            return found
        key = (line.raw.encode("utf-8", "replace").translate(_SAME_DIGITS), line.who)
        shape = self._shapes.get(key, _NEW)
        if shape is None:
            return None
        if shape.count >= _READ_AT_ONCE:
            shape.add(line)
            return []
        found = self._evaluate(line)
        if len(self._shapes) >= _MOST_SHAPES:
            self._shapes.clear()
        if found is None:
            self._shapes[key] = None
        else:
            known = self._shapes.setdefault(key, _Shape())
            if known is not None:
                known.count += 1
        return found

    def read_formats(self, text: str, number: int, who: str | None) -> list[Named] | None:
        """By the built-in formats alone; for the message of an exception."""
        where = self._where(number)
        return self._counting.read(text, where, who) or self._before.read(text, where, who)

    def close(self) -> Iterator[Named]:
        """What was put off, and what the formats tell at the end."""
        for shape in self._shapes.values():
            for line in shape.last if shape is not None else ():
                yield from self._evaluate(line) or ()
        for readers in (self._counting, self._before, self._after):
            yield from readers.close()

    def _evaluate(self, line: LogLine) -> list[Named] | None:
        where = self._where(line.number)
        found = self._before.read(line.text, where, line.who)
        if found is None:
            message = self._known(line)
            found = [(message, "server log")] if message is not None else None
        if found is None:
            found = self._after.read(line.text, where, line.who)
        return (
            [(_with_pid(finding, line.stream), name) for finding, name in found]
            if found is not None
            else None
        )

    def _known(self, line: LogLine) -> LogMessage | None:
        raw = line.raw
        if self._knowledge is None or (self._literals is not None and not self._literals.may_hold(raw)):
            return None
        message = self._knowledge.read_log_line(raw)
        if message is None:
            return None
        fields = dict(message.fields)
        moment, place = self._clock.read(raw[:200]), _PLACE.search(raw[:300])
        if moment is not None:
            fields["time_s"] = f"{moment.seconds:.3f}"
        if place is not None:
            fields["at"] = place[1]  # the same words mean different things at different places
        return replace(
            message,
            text=message.text[:1000],
            process=message.process or line.who,
            line_number=line.number,
            fields=fields,
        )

    def _where(self, number: int) -> Where:
        return Where(self._file, number)


class _Shape:
    """Lines that differ in their digits only."""

    __slots__ = ("count", "last")

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[LogLine] = deque(maxlen=_READ_LATER)

    def add(self, line: LogLine) -> None:
        self.count += 1
        self.last.append(line)


_NEW = _Shape()


class _Readers:
    """Some line formats, tried in order."""

    def __init__(self, readers: list[tuple[LineFormat, LineReader]]) -> None:
        self._readers = readers
        self._hints = tuple(dict.fromkeys(hint for form, _ in readers for hint in form.hints))

    def read(self, text: str, where: Where, who: str | None) -> list[Named] | None:
        for hint in self._hints:
            if hint in text:
                break
        else:
            return None
        for form, reader in self._readers:
            if any(hint in text for hint in form.hints):
                found = reader.read(text, where, who)
                if found is not None:
                    return [(finding, form.name) for finding in found]
        return None

    def close(self) -> Iterator[Named]:
        for form, reader in self._readers:
            for finding in reader.close():
                yield finding, form.name


def _with_pid(finding: Finding, stream: Stream | None) -> Finding:
    if stream is None or stream.pid is None or not isinstance(finding, LogMessage) or "pid" in finding.fields:
        return finding
    return replace(finding, fields={**finding.fields, "pid": str(stream.pid)})


def _index(knowledge: LogKnowledge | None) -> LiteralIndex | None:
    contents = getattr(knowledge, "contents", None)
    rules = getattr(contents, "logs", None)
    return LiteralIndex(rule.literal for rule in rules) if rules else None
