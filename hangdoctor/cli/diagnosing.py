"""From a redacted capture to a report on the right stream and an exit code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hangdoctor.analysis import diagnose
from hangdoctor.cli.group import State
from hangdoctor.cli.options import ReportChoice
from hangdoctor.cli.output import exit_code, write_report
from hangdoctor.knowledge import Knowledge, load_knowledge
from hangdoctor.model import Capture
from hangdoctor.redact import redacted_kinds


def load(folder: str | None) -> Knowledge:
    """The knowledge that is built in, or that of `folder`."""
    return load_knowledge(Path(folder) if folder else None)


def report_on(
    capture: Capture, knowledge: Knowledge, choice: ReportChoice, state: State, *, strict: bool
) -> int:
    """Diagnose, write the report, and return the exit code of its verdict."""
    report = replace(
        diagnose(capture, knowledge), bundle=state.bundle, redacted=redacted_kinds(strict=strict)
    )
    write_report(report, choice)
    return exit_code(report)
