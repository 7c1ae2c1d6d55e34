"""Watchdog lines and progress bars in the form every version shares; versions' own words are in the knowledge."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.model import LogMessage
from hangdoctor.parsers.findings import Finding, Where
from hangdoctor.parsers.registry import LineFormat

_WATCHDOG = re.compile(
    r"(?:(?P<component>[A-Z]\w{2,60}) )?[Ww]atchdog timeout(?: \((?:self\.)?watchdog_timeout=(?P<seconds>\d{1,9})"
    r"(?:, (?:self\.)?soft=(?P<soft>True|False))?)?"
)
_HELD_BATCH = re.compile(r"(?:Scheduler )?debug info:|cur_batch\w*\.batch_size\(\)=(?P<batch>\d{1,9})")
_BAR = re.compile(
    r"(?P<name>[^|%\r\n]{0,160}?):?\s{0,4}(?P<percent>\d{1,3})%\s?\|[^|]{0,400}\|\s?(?P<done>\d{1,12}(?:\.\d+)?\w?)/"
    r"(?P<total>\d{1,12}(?:\.\d+)?\w?)(?: \[(?P<elapsed>[\d:]+)<(?P<remaining>[\d:?]+)"
    r"(?:, *(?P<rate>[\d.?]+ ?\S{1,12}?))?\])?"
)


class WatchdogLines:
    """A watchdog that fired, and what its rank held at that moment."""

    def __init__(self) -> None:
        self._last: tuple[str | None, int] = (None, -9)

    def _remember(self, label: str | None, line: int) -> str | None:
        """Only the first line of a record names the rank."""
        known, number = self._last
        if label is None and line - number <= 3:
            label = known
        self._last = (label, line)
        return label

    def read(self, text: str, where: Where, label: str | None) -> Iterable[Finding] | None:
        """The message in a line, if any."""
        fired = _WATCHDOG.search(text)
        if fired is not None:
            fields = {n: v for n, v in fired.groupdict().items() if v is not None}
            return (LogMessage("watchdog", text[:600], label, fields, where.line),)
        held = _HELD_BATCH.search(text)
        if held is not None:
            label = self._remember(label, where.line or 0)
            fields = {"batch": held["batch"]} if held["batch"] else {}
            return (LogMessage("sglang.holds-batch", text[:300], label, fields, where.line),)
        return None

    def close(self) -> Iterable[Finding]:
        """Nothing."""
        return ()


class BarLines:
    """tqdm's bars: ``Tuning mxfp8_gemm: 100%|####| 16/16 [00:12<00:00, 1.3it/s]``."""

    def read(self, text: str, where: Where, label: str | None) -> Iterable[Finding] | None:
        """The last state of a bar in a line, if there is one."""
        bars = list(_BAR.finditer(text[:2000]))
        if not bars:
            return None
        found = bars[-1]
        fields = {n: v.strip() for n, v in found.groupdict().items() if v is not None and v.strip()}
        return (LogMessage("bar", text[:300], label, fields, where.line),)

    def close(self) -> Iterable[Finding]:
        """Nothing."""
        return ()


FORMATS = (
    LineFormat(
        name="watchdog",
        summary="a server's own watchdog, and what the rank held when it fired",
        hints=("atchdog timeout", "debug info:", ".batch_size()="),
        reader=WatchdogLines,
        order=30,
        is_fallback=True,
    ),
    LineFormat(
        name="progress bar",
        summary="tqdm progress bars",
        hints=("%|",),
        reader=BarLines,
        order=90,
        is_fallback=True,
    ),
)
