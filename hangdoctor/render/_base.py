"""What every report format promises, and what it may be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hangdoctor.report import Report


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """How to draw a report. Options that only one format understands have no place here."""

    width: int = 80
    """Columns of the page; formats without columns ignore it."""
    color: bool = False
    """Colour is decided by the caller, who knows the stream (NO_COLOR, FORCE_COLOR, TERM, isatty)."""
    detail: bool = False
    """Everything: all threads of all processes, whole stacks, the log's tail."""
    ascii: bool = False
    """The stream cannot print arrows and bars."""


@dataclass(frozen=True, slots=True)
class Renderer:
    """A report format: its name on the command line, the extension of its files, and the function."""

    name: str
    extension: str
    render: Callable[[Report, RenderOptions], str]
