"""The command line: words to one function, and its answer to an exit code.

stdout carries the report alone; everything else is said on stderr. Modules here import nothing but click and a little
of the standard library at their top: `hangdoctor --help` must not cost more than importing click.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` by default) and return the exit code. Raises nothing but SystemExit."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words in (["--version"], ["-V"]):
        # The one question that needs no parser: a quarter of the time.
        from hangdoctor.cli.version import version_text

        print(version_text())
        return 0
    # Importing click makes thousands of objects and no garbage: the collector would take 6 % of the time of --help.
    gc.disable()
    try:
        from hangdoctor.cli.running import run_command
    finally:
        gc.enable()
    return run_command(words)
