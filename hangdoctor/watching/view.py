"""The live view: a table that is redrawn on a terminal, a line when something changes elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from hangdoctor.render._wording import clean, duration, to_ascii
from hangdoctor.watching.picture import Picture, cost_text

if TYPE_CHECKING:
    from rich.console import RenderableType

REPEAT_S = 600.0
"""A line at least this often where nothing changes: a silent log would look like a dead watch."""


class View(Protocol):
    """Shows pictures; lines of the conversation go through it, so that they do not tear a table."""

    def show(self, picture: Picture) -> None:
        """The newest picture."""


@contextmanager
def open_view(stream: TextIO, *, is_live: bool, is_ascii: bool, color: bool) -> Iterator[View]:
    """The view that fits ``stream``."""
    if not is_live:
        yield Lines(lambda text: print(text, file=stream, flush=True), is_ascii=is_ascii)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream, highlight=False, markup=False, emoji=False, no_color=not color)
    with Live(console=console, auto_refresh=False, transient=False) as live:
        yield _Table(lambda picture: live.update(_draw(picture), refresh=True))


class _Table:
    def __init__(self, draw: Callable[[Picture], None]) -> None:
        self._draw = draw

    def show(self, picture: Picture) -> None:
        self._draw(picture)


def _draw(picture: Picture) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, expand=False)
    for name in ("rank", "pid", "phase", "in", "progress", "since"):
        table.add_column(name, no_wrap=name in ("rank", "pid", "since"), overflow="ellipsis")
    for row in picture.rows:
        cells = (row.label, str(row.pid or ""), row.phase, row.where, row.progress, duration(row.since_s))
        table.add_row(*(Text(cell) for cell in cells), style="bold red" if row.is_culprit else "")
    head = Text(f"{picture.target}, {_clock(picture.at)}: ").append(picture.verdict, style="bold")
    lines: list[RenderableType] = [head, Text(picture.summary), Text(), table, Text()]
    if picture.stopped_s:
        lines.append(Text(f"no proof of progress for {duration(picture.stopped_s)}", style="yellow"))
    if picture.probe is not None:
        lines.append(Text(f"probe {picture.probe}"))
    lines.append(Text(f"{cost_text(picture.cost)}. Ctrl-C ends it.", style="dim"))
    return Group(*lines)


class Lines:
    """A line when the verdict, the culprits or their phase change, and now and then where nothing does."""

    def __init__(self, write: Callable[[str], None], *, is_ascii: bool = False) -> None:
        self._write = write
        self._is_ascii = is_ascii
        self._told: tuple[object, ...] | None = None
        self._told_at = 0.0

    def show(self, picture: Picture) -> None:
        """Write a line if there is news."""
        news = (picture.verdict, tuple((row.label, row.phase) for row in picture.rows if row.is_culprit))
        if news == self._told and picture.at - self._told_at < REPEAT_S:
            return
        self._told, self._told_at = news, picture.at
        line = f"{_clock(picture.at)} {picture.verdict}: {clean(picture.summary)}; {cost_text(picture.cost)}"
        self._write(to_ascii(line) if self._is_ascii else line)


def _clock(unix_time: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_time))
