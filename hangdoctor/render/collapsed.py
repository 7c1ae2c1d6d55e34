"""Stacks as collapsed lines (``rank;thread;outer;…;inner 1``), the input of flame graph tools and of `diff`."""

from __future__ import annotations

from hangdoctor.render._base import Renderer, RenderOptions
from hangdoctor.render._digest import Names
from hangdoctor.render._wording import call, clean, to_ascii
from hangdoctor.report import Report


def render(report: Report, options: RenderOptions) -> str:
    """One line a thread; threads of library pools only with ``options.detail``."""
    names = Names(report)
    lines = []
    for row in report.processes:
        for thread in row.threads:
            if thread.stack and (options.detail or not thread.is_machinery):
                parts = [names.of_row(row), clean(thread.name or f"thread {thread.tid}")]
                parts += [call(frame, brief=True) for frame in reversed(thread.stack)]
                lines.append(";".join(part.replace(";", ",") for part in parts) + " 1")
    # Whoever reads it expects at least one line; a comment would be taken for a stack.
    text = "\n".join(lines or ["no stacks 1"]) + "\n"
    return to_ascii(text) if options.ascii else text


RENDERER = Renderer("collapsed", "collapsed.txt", render)
