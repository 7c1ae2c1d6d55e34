"""Time stamps of logs: with and without a year, a zone, fractions.

A stamp without a zone is taken as UTC: within one input only differences matter.
"""

from __future__ import annotations

import calendar
import re
from datetime import datetime
from typing import NamedTuple

_FULL = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s?(Z|[+-]\d\d:?\d\d)?"
)
_GLOG = re.compile(r"[IWEF](\d{2})(\d{2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_GLOG_SHORT = re.compile(r"[IWEF](\d)(\d{2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_NO_YEAR = re.compile(r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_SYSLOG = re.compile(r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(\d{1,2}) (\d\d):(\d\d):(\d\d)")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NOMINAL_YEAR = 1972  # a leap year, so that 29 February is a date


class Stamp(NamedTuple):
    """A moment; without a year only differences between stamps mean something."""

    seconds: float
    has_year: bool


class Clock:
    """Reads stamps, and lends the year of the last full one to those that have none."""

    def __init__(self) -> None:
        self._year: int | None = None

    def read(self, text: str) -> Stamp | None:
        """The first time stamp in ``text``; ``None`` when there is none or it is no date."""
        found = _FULL.search(text)
        if found is not None:
            year, month, day, hour, minute = (int(found[i]) for i in range(1, 6))
            seconds = _seconds(year, month, day, hour, minute, int(found[6] or 0), found[7])
            if seconds is None:
                return None
            self._year = year
            return Stamp(seconds - _offset(found[8]), True)
        return self._without_year(text)

    def _without_year(self, text: str) -> Stamp | None:
        # glog writes month and day as MMDD, or as MDD before October in PyTorch ("E822").
        found = _GLOG.search(text) or _GLOG_SHORT.search(text) or _NO_YEAR.search(text)
        if found is not None:
            month, day = int(found[1]), int(found[2])
            fraction = found[6]
        else:
            found = _SYSLOG.search(text)
            if found is None:
                return None
            month, day, fraction = _MONTHS.index(found[1]) + 1, int(found[2]), None
        year = self._year or _NOMINAL_YEAR
        seconds = _seconds(year, month, day, int(found[3]), int(found[4]), int(found[5]), fraction)
        return Stamp(seconds, self._year is not None) if seconds is not None else None


def _seconds(
    year: int, month: int, day: int, hour: int, minute: int, second: int, fraction: str | None
) -> float | None:
    try:
        moment = datetime(year, month, day, hour, minute, min(second, 59))
    except ValueError:
        return None
    return calendar.timegm(moment.timetuple()) + (float(f"0.{fraction}") if fraction else 0.0)


def _offset(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if zone[0] == "-" else seconds
