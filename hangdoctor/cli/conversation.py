"""What is said on stderr while the work goes on: a line a step, and on a terminal a spinner for what takes time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Conversation:
    """Speaks unless it was told to be quiet. Nothing here is ever part of a report."""

    def __init__(self, say: Callable[[str], None], *, quiet: bool = False, verbosity: int = 0) -> None:
        self._say = say
        self._quiet = quiet
        self._began = time.monotonic()
        self.verbosity = verbosity

    def tell(self, text: str) -> None:
        """A line about what is going on."""
        if not self._quiet:
            self._say(text)

    def explain(self, text: str, level: int = 1) -> None:
        """A line for those who asked for more with -v."""
        if self.verbosity >= level and not self._quiet:
            self._say(f"[{time.monotonic() - self._began:6.2f} s] {text}")

    def warn(self, text: str) -> None:
        """A line that is said even to those who want quiet: something did not go as they asked."""
        self._say(text)

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """A spinner with a changing label where stderr is a terminal, plain lines elsewhere."""
        is_live = not self._quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        if not is_live:
            yield self.tell
            return
        from rich.console import Console
        from rich.text import Text

        console = Console(stderr=True, highlight=False, markup=False)
        with console.status(
            Text(text), spinner="dots" if console.encoding.startswith("utf") else "line"
        ) as status:
            yield lambda label: status.update(Text(label))
