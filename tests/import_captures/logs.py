"""The end of a server log as it was at one moment, from the log as it was later."""

from __future__ import annotations

import calendar
import re
import time

TAIL_LINES = 60
_STAMP = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
"""SGLang: ``[2026-11-29 18:04:41 TP0]``; vLLM: ``INFO 11-29 18:04:41``. Both recordings ran in UTC."""
_ELAPSED = re.compile(r"\[(?:(\d+):)?(\d\d):(\d\d)<")


def as_of(text: str, moment: float) -> str:
    """The part of a log that had been written at ``moment`` (Unix time).

    Progress bars carry no stamp, only the time since they began; they began after the last stamped line.
    """
    kept: list[str] = []
    year = time.gmtime(moment).tm_year
    stamped = 0.0
    for line in text.splitlines(keepends=True):
        written = stamped
        if stamp := _STAMP.search(line):
            fields = [int(part) for part in stamp.groups()[1:]]
            stamped = float(calendar.timegm((int(stamp[1] or year), *fields)))
            written = stamped
        elif elapsed := _ELAPSED.search(line):
            hours, minutes, seconds = (int(part or 0) for part in elapsed.groups())
            written = stamped + hours * 3600 + minutes * 60 + seconds
        if written > moment:
            break
        kept.append(line)
    return "".join(kept)


def tail(text: str) -> tuple[str, ...]:
    """The last lines; a progress bar rewrites its line with carriage returns, the newest counts."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return tuple(line for line in lines if line.strip())[-TAIL_LINES:]
