"""The command that opens an issue with a report. It is printed for a person to run; nothing is ever sent."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hangdoctor.render._digest import VERDICT_WORDS
from hangdoctor.render._wording import clip
from hangdoctor.report import Report

TITLE_LIMIT = 160
"""GitHub refuses titles of more than 256 characters; lists of issues show about a hundred."""


def issue_title(report: Report) -> str:
    """``HUNG: TP3 (pid 41901) waits for …``, on one line whatever the names in it are."""
    return f"{VERDICT_WORDS[report.verdict.kind]}: {clip(report.verdict.summary, TITLE_LIMIT)}"


def issue_command(report: Report, body: str | None, analyze: Sequence[str]) -> str:
    """A line for a shell: the body from the Markdown file ``body``, else from ``hangdoctor analyze WORDS…``.

    Captured text in it (the title) is quoted; it cannot become a word of its own, let alone a command.
    """
    create = f"gh issue create --title {shlex.quote(issue_title(report))} --body-file"
    if body is not None:
        return f"{create} {shlex.quote(body)}\n"
    return f"{shlex.join(('hangdoctor', 'analyze', *analyze, '-f', 'markdown', '-o', '-'))} | {create} -\n"
