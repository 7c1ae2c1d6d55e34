"""Standard output when its reader has gone."""

from __future__ import annotations

import os
import sys


def silence_stdout() -> None:
    """Let nothing more be written: the interpreter would complain once more when it flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
