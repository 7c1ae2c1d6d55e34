"""The messages of one input, bounded: a day of ``Decode batch`` lines says no more than its ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from hangdoctor.model import LogMessage

_FIRST, _LAST = 4, 12
_MOST_KINDS = 20_000


class _Row:
    """One kind of message of one writer: the first few and the last few."""

    __slots__ = ("count", "first", "highest", "last")

    def __init__(self) -> None:
        self.first: list[LogMessage] = []
        self.last: deque[LogMessage] = deque(maxlen=_LAST)
        self.count = 0
        self.highest = -1

    def add(self, message: LogMessage) -> None:
        line = message.line_number or 0
        if line <= self.highest and any(
            m.line_number == line and m.text == message.text for m in (*self.first, *self.last)
        ):
            return  # the same log, copied again at the second look
        self.highest = max(self.highest, line)
        self.count += 1
        (self.first if len(self.first) < _FIRST else self.last).append(message)

    def __iter__(self) -> Iterator[LogMessage]:
        yield from self.first
        rest = list(self.last)
        if rest and self.count > len(self.first) + len(rest):
            rest[-1] = replace(rest[-1], fields={**rest[-1].fields, "seen": str(self.count)})
        yield from rest


class MessageLog:
    """Collects messages; keeps the first 4 and last 12 of a kind, phase, group and writer."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str | None, ...], _Row] = {}

    def add(self, message: LogMessage) -> None:
        """Keep a message, or only count it."""
        fields = message.fields
        key = (message.kind, message.process, fields.get("phase"), fields.get("server"), fields.get("group"))
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= _MOST_KINDS:
                return
            row = self._rows[key] = _Row()
        row.add(message)

    def messages(self) -> tuple[LogMessage, ...]:
        """What was kept, in the order of the lines. The last of a cut row says in ``seen`` how many there were."""
        kept = [message for row in self._rows.values() for message in row]
        return tuple(sorted(kept, key=lambda m: m.line_number or 0))
