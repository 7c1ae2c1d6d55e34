"""The printed command: one line, and nothing captured can become a word of it, whatever it is called."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangdoctor.render._issue import issue_command, issue_title
from tests.render_support import SAMPLES, hostile, laggard


@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_the_title_is_the_verdict_on_one_line(sample: str) -> None:
    title = issue_title(SAMPLES[sample]())
    assert title.isprintable() and len(title) <= 256  # what GitHub accepts
    assert title.split(":")[0] in ("HUNG", "SLOW", "READY", "CANNOT TELL")


@given(st.text(max_size=400))
def test_no_summary_leaves_its_quotes(summary: str) -> None:
    report = replace(laggard(), verdict=replace(laggard().verdict, summary=summary))
    line = issue_command(report, None, ("a b.hang", "$(reboot)", "-x;y"))
    assert line.endswith("\n") and line.count("\n") == 1
    words = shlex.split(line)
    assert words[:5] == ["hangdoctor", "analyze", "a b.hang", "$(reboot)", "-x;y"]
    assert words[5:10] == ["-f", "markdown", "-o", "-", "|"]
    assert words[10:14] == ["gh", "issue", "create", "--title"]
    assert words[14:] == [issue_title(report), "--body-file", "-"]


def test_a_body_that_is_a_file_needs_no_pipe() -> None:
    words = shlex.split(issue_command(hostile(), "my report's.md", ()))
    assert words == [
        "gh",
        "issue",
        "create",
        "--title",
        issue_title(hostile()),
        "--body-file",
        "my report's.md",
    ]
