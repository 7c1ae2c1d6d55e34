"""Ctrl-C and SIGTERM end a command with what it has; a second one ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def stoppable(say: Callable[[str], None]) -> Iterator[None]:
    """Within the block both signals say so at once and raise KeyboardInterrupt."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.default_int_handler)
        say("Stopping, keeping what there is. Once more leaves at once.")
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    try:
        # Ignored, as some supervisors leave it to us, the numbers of our helpers are another's before we know.
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (signal.SIGINT, signal.SIGTERM):
            # nohup and shells ignore SIGINT for background jobs on purpose.
            if signal.getsignal(each) is not signal.SIG_IGN:
                before[each] = signal.signal(each, stop)
    except ValueError:
        pass  # Not the main thread: whoever runs us there handles signals.
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
