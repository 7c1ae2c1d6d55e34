"""The user's own command on a trigger. It runs beside the watch, one at a time, and cannot hold it up."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress

HOOK_S = 300.0
"""A command that runs longer is ended."""


class Hook:
    """``/bin/sh -c COMMAND`` with some variables more; its output goes to our standard error."""

    def __init__(self, command: str, limit_s: float = HOOK_S) -> None:
        self._command = command
        self._limit_s = limit_s
        self._running: subprocess.Popen[bytes] | None = None
        self._end = 0.0

    def start(self, environment: Mapping[str, str]) -> str | None:
        """Run it. Returns why not, if it was not."""
        self.poll()
        if self._running is not None:
            return "not run: the one before still runs"
        try:
            self._running = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.DEVNULL,
                stdout=2,
                env={**os.environ, **environment},
                # Ctrl-C ends the watch; an upload that has begun is finished.
                start_new_session=True,
            )
        except OSError as error:
            return f"not run: {error.strerror}"
        self._end = time.monotonic() + self._limit_s
        return None

    def poll(self) -> str | None:
        """What became of it, once: a sentence when it failed or was ended."""
        running = self._running
        if running is None:
            return None
        code = running.poll()
        if code is None:
            if time.monotonic() < self._end:
                return None
            self._kill(running)
            self._running = None
            return f"ended after {self._limit_s:.0f} s"
        self._running = None
        return f"ended with {code}" if code else None

    def finish(self) -> str | None:
        """Wait for it, until its limit."""
        while self._running is not None:
            said = self.poll()
            if said is not None:
                return said
            time.sleep(0.05)
        return None

    def _kill(self, running: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
