"""What is said on stderr while the work goes on: a line a step, and on a terminal a spinner for what takes time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


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
        """A line first, then a spinner with a changing label where stderr is a terminal, plain lines elsewhere.

        The spinner comes with the first new label: rich takes as long to import as a look at three ranks.
        """
        is_live = not self._quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        if not is_live:
            yield self.tell
            return
        self.tell(f"{text} …")
        with ExitStack() as stack:
            yield _Spinner(stack)


class _Spinner:
    """Begins when it is first given a label, and turns until ``stack`` ends."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._update: Callable[[str], None] | None = None

    def __call__(self, label: str) -> None:
        if self._update is None:
            self._update = self._begin(label)
        else:
            self._update(label)

    def _begin(self, label: str) -> Callable[[str], None]:
        from rich.console import Console
        from rich.text import Text

        console = Console(stderr=True, highlight=False, markup=False)
        spinner = "dots" if console.encoding.startswith("utf") else "line"
        status = self._stack.enter_context(console.status(Text(label), spinner=spinner))
        return lambda text: status.update(Text(text))
