"""Whether a log says something new. A heartbeat is not progress; a count that advances is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hangdoctor.model import LogTail, Snapshot
from hangdoctor.report import ProgressClass

_ORDER = (ProgressClass.PROOF, ProgressClass.WEAK, ProgressClass.ACTIVITY, ProgressClass.NONE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_COUNT = re.compile(
    r"(?<![\d./:])(\d+(?:\.\d+)?)\s*(?:/\s*\d|%|of \d)"
    r"|(?:step|iter(?:ation)?|epoch|batch|layer|shard|token|sample|request)s?[ #:=]+(\d+)",
    re.IGNORECASE,
)
_BAR = re.compile(r"[\u2588-\u258f#=>|]{2,}[\s|]*")
_CLOCK = re.compile(r"\d{1,4}[-/:.]\d{1,2}[-/:.]\d{1,4}[ T]?[\d:.,]*")


@dataclass(frozen=True, slots=True)
class LogMove:
    """What the logs did over all looks."""

    kind: ProgressClass
    text: str | None
    """The newest line that is news."""
    pids: tuple[int, ...] = ()
    """Who writes that log."""
    host: str | None = None
    """Whose pids these are, where several hosts were looked at."""
    cause: str | None = None
    """Cause id of the phase that the line belongs to, where it is known."""


def log_progress(snapshots: Sequence[Snapshot]) -> LogMove:
    """Whether the target's logs say something new: a count that advances is proof, repeated text is not."""
    best = LogMove(ProgressClass.NONE, None)
    for earlier, later in pairwise(snapshots):
        old = {(log.host, log.path): log for log in earlier.logs}
        for log in later.logs:
            previous = old.get((log.host, log.path))
            if previous is not None and log.lines != previous.lines:
                move = _compare_logs(previous, log)
                if _ORDER.index(move.kind) <= _ORDER.index(best.kind):
                    best = move
    return best


def _compare_logs(before: LogTail, after: LogTail) -> LogMove:
    seen = set(before.lines)
    fresh = [line for line in after.lines if line not in seen]
    known = {mask_numbers(line): line for line in before.lines}
    for line in reversed(fresh):
        twin = known.get(mask_numbers(line))
        if twin is not None and any(b > a for a, b in zip(_counts(twin), _counts(line), strict=False)):
            return LogMove(ProgressClass.PROOF, line, after.pids, after.host)
    unheard = [line for line in fresh if mask_numbers(line) not in known]
    if unheard:
        return LogMove(ProgressClass.WEAK, unheard[-1], after.pids, after.host)
    return LogMove(ProgressClass.ACTIVITY, fresh[-1] if fresh else None, after.pids, after.host)


def mask_numbers(line: str) -> str:
    """What is left of a line when only its times, numbers and bars differ from another's."""
    return _NUMBER.sub("#", _BAR.sub("", _CLOCK.sub("@", line)))


def _counts(line: str) -> list[float]:
    """The numbers that count something: ``17/100``, ``17 %``, ``step 17``; not times, ports or sizes."""
    return [float(next(part for part in match if part)) for match in _COUNT.findall(_CLOCK.sub("@", line))]
