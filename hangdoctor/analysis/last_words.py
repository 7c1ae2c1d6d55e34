"""The line of the logs that says most, which seldom is the newest: servers go on writing statistics over a failure.

A failure that nothing has overtaken comes first, whatever was written since; else it is the last line that is no
statistics. A server that became ready, or works again, has overtaken what failed before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from hangdoctor.analysis.log_moves import mask_numbers
from hangdoctor.case import Case
from hangdoctor.knowledge import Knowledge
from hangdoctor.knowledge.clock import Clock
from hangdoctor.model import LogMessage, LogTail, Snapshot
from hangdoctor.report import LogLine

_FAILURES = ("error", "death", "timeout", "watchdog")
_STEPS = ("begin", "progress", "end")
_STATISTICS = ("heartbeat", "note")
_STARTS = ("vllm.arguments", "sglang.arguments")
"""Phases that begin with a new process: what another one wrote into the same file before is over."""
_PREFIX = r"^(?:\[[^\]]*\]:?\s*|\([^)]*\)\s*)*"
_LEVEL = re.compile(
    _PREFIX
    + r"(?:[\d:.,/TZ |-]*[\s|-])?(?:[\w.]+ - )?(?:ERROR|CRITICAL|FATAL)\b"  # logging: vLLM, SGLang's launcher, uvicorn
    r"|^(?:\[rank\d+\]:)?\s*\[?[EF]\d{3,4} \d\d:\d\d:\d\d"  # glog: c10d, NCCL's process group
)
_EXCEPTION = re.compile(
    r"(?:^|[\])] )(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout))(?:: .*)?$"
)
"""The last line of a traceback, which some servers write with a prefix of their own."""
_POINTS_UP = re.compile(
    r"root cause|\b(?:see|check)\b.{0,40}\babove\b|Traceback \(most recent call last\)", re.I
)
_ACCESS = re.compile(r'"(?:GET|POST|HEAD|PUT|DELETE|OPTIONS) \S+ HTTP/\d')
_OFTEN = 3
"""A line of which so many differ in numbers only is written by a clock."""
_BURST_S = 60.0
"""A failure takes others with it; what failed first in that time says most."""


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    message: LogMessage | None
    age_s: float | None
    is_often: bool

    @property
    def kind(self) -> str | None:
        return self.message.kind if self.message is not None else None

    @property
    def writer(self) -> str | None:
        return self.message.process if self.message is not None else None

    @property
    def is_failure(self) -> bool:
        if self.kind is not None:
            return self.kind in _FAILURES
        return bool(_LEVEL.match(self.text[:200])) or self.is_exception

    @property
    def is_exception(self) -> bool:
        return _EXCEPTION.search(self.text[:400]) is not None

    @property
    def is_statistics(self) -> bool:
        if self.kind is not None:
            return self.kind in _STATISTICS
        return not self.is_failure and (self.is_often or _ACCESS.search(self.text) is not None)

    @property
    def has_started(self) -> bool:
        """Whether it tells of a server that serves, or of a new life of it."""
        return self.kind == "ready" or (self._phase in _STARTS and self.kind == "begin")

    @property
    def computes(self) -> bool:
        """Whether tokens come out."""
        rate = self.message.fields.get("rate", "") if self.message is not None else ""
        return self.kind == "heartbeat" and re.search(r"[1-9]", rate) is not None

    @property
    def _phase(self) -> str | None:
        return self.message.fields.get("phase") if self.message is not None else None


def last_words(case: Case, knowledge: Knowledge) -> LogLine | None:
    """The line that says most, of all logs of the last look; ``None`` where there is no log."""
    if not case.capture.snapshots:
        return None
    snapshot = case.capture.snapshots[-1]
    found = [
        _choose(log, lines, is_alone=len(snapshot.logs) == 1)
        for log in sorted(snapshot.logs, key=lambda log: log.modified_at or 0.0)
        if (lines := _read(log, snapshot, knowledge, case.server))
    ]
    failed = [line for line in found if line.is_failure]
    return next(reversed(failed or found), None)


def _read(log: LogTail, snapshot: Snapshot, knowledge: Knowledge, server: str | None) -> list[_Line]:
    texts = [*log.earlier, *log.lines]
    if (
        len(snapshot.logs) == 1 and log.modified_at is None
    ):  # a log that was pasted or saved: all it was known by
        texts = [m.text for m in snapshot.messages if m.text[:400] not in log.lines] + texts
    shapes = Counter(map(mask_numbers, texts))
    ages = _ages(texts, None if log.modified_at is None else log.modified_at, snapshot.taken_at)
    return [
        _Line(text, knowledge.read_log_line(text, server), age, shapes[mask_numbers(text)] >= _OFTEN)
        for text, age in zip(texts, ages, strict=True)
    ]


def _ages(texts: Sequence[str], written_at: float | None, now: float | None) -> list[float | None]:
    """Seconds before the look. Stamps are compared with each other only: their zone is that of the server.

    A line without a stamp (of a traceback) is as old as the next one that has one.
    """
    since = max(0.0, now - written_at) if now is not None and written_at is not None else None
    clock = Clock()
    heads = [text[:200] for text in texts]
    for head in heads:  # the year, which a later line of another logger may have alone
        clock.read(head)
    stamps = [clock.read(head) for head in heads]
    newest = next((stamp.seconds for stamp in reversed(stamps) if stamp is not None), None)
    ages: list[float | None] = []
    age = since
    for stamp in reversed(stamps):
        if stamp is not None and newest is not None:
            before = newest - stamp.seconds
            age = before + (since or 0.0) if before >= 0 else None
        ages.append(age)
    return ages[::-1]


def _choose(log: LogTail, lines: Sequence[_Line], *, is_alone: bool) -> LogLine:
    newest = lines[-1]
    chosen = _standing_failure(lines) or _last_said(lines)
    return LogLine(
        text=chosen.text,
        age_s=chosen.age_s,
        is_failure=chosen.is_failure,
        is_newest=chosen is newest,
        newest=newest.text,
        newest_age_s=newest.age_s,
        path=None if is_alone else log.path,
        host=log.host,
    )


def _standing_failure(lines: Sequence[_Line]) -> _Line | None:
    """Of the last burst of failures that nothing has overtaken: the last exception, else the last line of it."""
    by_writer: dict[str | None, list[tuple[int, _Line]]] = {}
    for place, line in enumerate(lines):
        if line.has_started or line.computes:
            by_writer.clear()
        elif line.kind in _STEPS and line.writer is not None:
            by_writer.pop(line.writer, None)
        if line.is_failure:
            by_writer.setdefault(line.writer, []).append((place, line))
    standing = sorted((failure for own in by_writer.values() for failure in own), key=itemgetter(0))
    if not standing:
        return None
    burst = list(_burst([line for _, line in standing]))
    own = [line for line in burst if not _POINTS_UP.search(line.text)]
    exceptions = [line for line in own if line.is_exception]
    return (exceptions or own or burst)[-1]


def _burst(standing: Sequence[_Line]) -> Iterator[_Line]:
    last = standing[-1].age_s
    for line in standing:
        if last is None or line.age_s is None or line.age_s - last <= _BURST_S:
            yield line


def _last_said(lines: Sequence[_Line]) -> _Line:
    """The last line that is no statistics; what a server says once it serves is its present state."""
    for line in reversed(lines):
        if line.has_started or line.computes:
            break
        if not line.is_statistics and not line.is_failure:
            return line
    return lines[-1]
