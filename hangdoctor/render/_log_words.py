"""What the log says, in one or two lines: the telling one with its age, and the newest where that is another."""

from __future__ import annotations

from collections.abc import Iterator

from hangdoctor.render._wording import duration
from hangdoctor.report import Report


def said_in_log(report: Report, *, with_newest: bool = True) -> Iterator[tuple[str, str]]:
    """Headings and lines as captured, the newest last; ``with_newest``: also where the end of the log is shown, too."""
    line = report.log_line
    if line is None:
        if report.log_tail and with_newest:
            yield "Last in the log", report.log_tail[-1]
        return
    if not line.is_newest:
        where = " ".join(filter(None, (line.path or "the log", line.host and f"on {line.host}")))
        yield f"In {where}, {_ago(line.age_s)}", line.text
    if with_newest:
        age = f", {_ago(line.newest_age_s)}" if line.newest_age_s is not None else ""
        yield f"Last in the log{age}", line.newest


def _ago(seconds: float | None) -> str:
    return "earlier" if seconds is None else f"{duration(seconds)} ago"
