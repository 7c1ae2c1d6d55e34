"""From a redacted capture to a report on the right stream and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hangdoctor.analysis import diagnose
from hangdoctor.cli.group import State
from hangdoctor.cli.options import ReportChoice
from hangdoctor.cli.output import exit_code, print_issue_command, write_report
from hangdoctor.knowledge import Knowledge, load_knowledge
from hangdoctor.model import Capture
from hangdoctor.redact import redacted_kinds


def load(folder: str | None) -> Knowledge:
    """The knowledge that is built in, or that of `folder`."""
    return load_knowledge(Path(folder) if folder else None)


def report_on(
    capture: Capture,
    knowledge: Knowledge,
    choice: ReportChoice,
    state: State,
    *,
    strict: bool,
    sources: Sequence[str] = (),
) -> int:
    """Diagnose, write the report, and return the exit code of its verdict.

    ``sources`` are the files from which the report can be made again; by default the saved capture.
    """
    # The folder of the capture may be somebody's home.
    shown = Path(state.bundle).name if state.bundle and strict else state.bundle
    report = replace(diagnose(capture, knowledge), bundle=shown, redacted=redacted_kinds(strict=strict))
    if not choice.github_issue or choice.is_file:
        write_report(report, choice)
    if choice.github_issue:
        again = sources or ((state.bundle,) if state.bundle else ())
        print_issue_command(report, choice, again, strict=strict)
    return exit_code(report)
