"""New lines of the job's logs that match a pattern, also those that are written faster than the looks follow."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from hangdoctor.collect.deadline import Trouble, call
from hangdoctor.collect.logs import find_logs
from hangdoctor.collect.procfs import text
from hangdoctor.errors import WrongUsage
from hangdoctor.model import Snapshot

MOST_BYTES = 8 << 20
"""Of what was written since the last look, the newest part that is searched."""
SEARCH_S = 2.0
_LONGEST_LINE = 2000
_MOST_MATCHES = 20

Match = tuple[str, str]
"""A pattern and the line in which it was found."""


def compile_patterns(patterns: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """Raises WrongUsage for what is no regular expression."""
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            raise WrongUsage(
                f"'{pattern}' is no regular expression: {error}", hint="quote it for the shell; \\ escapes"
            ) from error
    return tuple(compiled)


@dataclass(frozen=True, slots=True)
class _Part:
    matches: tuple[Match, ...]
    end: int
    """Where the next search begins: behind the last whole line."""


class LogSearch:
    """Remembers how far each log has been searched. What was there at the first look is not news."""

    def __init__(self, patterns: Sequence[re.Pattern[str]], given: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._given = tuple(given)
        self._ends: dict[str, int] = {}

    def search(self, snapshot: Snapshot) -> tuple[Match, ...]:
        """Matches in what has been written since the last call."""
        if not self._patterns:
            return ()
        ways = {source.name: source.path for source in find_logs(snapshot.processes, self._given)}
        found: list[Match] = []
        for log in snapshot.logs:
            size = log.size_bytes
            if size is None:
                continue
            start = self._ends.get(log.path)
            if start is None:
                self._ends[log.path] = size
                continue
            start = 0 if size < start else start
            part = self._read(ways.get(log.path, log.path), start)
            if part is not None:
                self._ends[log.path] = part.end
                found += part.matches
        return tuple(found[:_MOST_MATCHES])

    def _read(self, path: str, start: int) -> _Part | None:
        answer = call(lambda: search_file(path, start, self._patterns), SEARCH_S)
        return None if isinstance(answer, Trouble) else answer


def search_file(path: str, start: int, patterns: Sequence[re.Pattern[str]]) -> _Part:
    """Search whole lines from byte ``start`` on. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return _Part((), start)
        start = max(start, found.st_size - MOST_BYTES)
        data = os.pread(fd, MOST_BYTES, start)
    finally:
        os.close(fd)
    whole = data[: data.rfind(b"\n") + 1]
    lines = (text(line)[:_LONGEST_LINE] for line in whole.replace(b"\r", b"\n").split(b"\n"))
    matches = ((p.pattern, line) for line in lines for p in patterns if p.search(line))
    return _Part(
        tuple(pair for pair, _ in zip(matches, range(_MOST_MATCHES), strict=False)), start + len(whole)
    )
