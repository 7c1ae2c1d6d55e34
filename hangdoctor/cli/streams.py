"""Standard output: text wrapped to its width, and silence when its reader has gone."""

from __future__ import annotations

import os
import sys


def silence_stdout() -> None:
    """Let nothing more be written: the interpreter would complain once more when it flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def print_wrapped(text: str, *, first: str = "", hanging: str = "") -> None:
    """Paragraphs on stdout, wrapped to the terminal (80 columns where there is none); words are never broken."""
    import shutil
    import textwrap

    import click

    width = min(shutil.get_terminal_size().columns, 100) if sys.stdout.isatty() else 80
    for number, line in enumerate(text.splitlines()):
        begin = hanging if number else first
        click.echo(
            textwrap.fill(
                line,
                width,
                initial_indent=begin,
                subsequent_indent=hanging,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
