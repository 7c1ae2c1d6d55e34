"""Log lines of servers, torch and NCCL that say something about a hang.

A message tells who waits or who timed out, seldom who is at fault; the kinds below say no more than that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hangdoctor.model import LogMessage

LOG_KINDS = (
    "begin",  # a phase begins
    "end",  # a phase is over
    "progress",  # within a phase, often with numbers
    "heartbeat",  # repeated; says that the writer lives, not that work advances
    "ready",  # the server serves
    "waiting",  # the writer waits for somebody
    "watchdog",  # a watchdog fired
    "timeout",  # a limit was reached
    "error",  # the writer failed
    "death",  # a process died
    "note",  # harmless, but often mistaken for a cause
)

_PREFIXES = (
    re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? (?P<process>(?:[A-Z_]+\d+ ?)+)\]"),  # SGLang
    re.compile(r"\((?P<process>(?:\w+?)(?:_[A-Z]+\d+)*) pid=(?P<pid>\d+)\)"),  # vLLM
    re.compile(
        r"\[rank(?P<process>\d+)\]:"
    ),  # torch: the global rank, unlike "[Rank r]", the one in the group
)


@dataclass(frozen=True, slots=True)
class LogRule:
    """One kind of line: a literal that must be in it, and optionally a pattern that reads its numbers."""

    kind: str
    literal: str
    pattern: re.Pattern[str] | None
    """Searched in the line; its named groups become the message's fields."""
    server: str
    phase: str | None
    meaning: str
    examples: tuple[str, ...] = ()
    counterexamples: tuple[str, ...] = ()


class LogReader:
    """Applies log rules to lines. Literals are tried first: 150 ``in`` tests cost about 10 us a line."""

    def __init__(self, rules: Iterable[LogRule]) -> None:
        self.rules = tuple(rules)

    def read(self, text: str, servers: frozenset[str] | None = None) -> LogMessage | None:
        """The message in one line (the last update of a progress bar redrawn with carriage returns), or ``None``."""
        line = text.rstrip("\r\n").rsplit("\r", 1)[-1]
        for rule in self.rules:
            if rule.literal not in line or (servers is not None and rule.server not in servers):
                continue
            found = rule.pattern.search(line) if rule.pattern is not None else None
            if rule.pattern is not None and found is None:
                continue
            fields = {"server": rule.server}
            if rule.phase is not None:
                fields["phase"] = rule.phase
            if found is not None:
                fields.update({name: value for name, value in found.groupdict().items() if value is not None})
            process, pid = _writer(line)
            if pid is not None:
                fields.setdefault("pid", pid)
            return LogMessage(rule.kind, line, process=process, fields=fields)
        return None


def _writer(line: str) -> tuple[str | None, str | None]:
    """Which process wrote the line, as its prefix says: ``TP0``, ``Worker_TP1``, ``rank 3``; and its pid."""
    for prefix in _PREFIXES:
        found = prefix.search(line)
        if found is not None:
            name = found["process"].strip()
            return (f"rank {name}" if name.isdigit() else name), found.groupdict().get("pid")
    return None, None
