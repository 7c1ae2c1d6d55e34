"""Tokens a second of a loaded server, from the outside."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from target import Target


class Meter:
    """Keeps the load running and counts what its requests brought."""

    def __init__(self, target: Target, counts: Path) -> None:
        self.target, self.counts = target, counts
        self.load: subprocess.Popen[bytes] | None = None

    def begin_load(self) -> None:
        """Start the streams unless they run, and let the first requests through."""
        if self.load is not None:
            return
        self.counts.write_text("")
        self.load = self.target.start_load(self.counts)
        deadline = time.monotonic() + 30
        while not self.counts.read_text() and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(1)

    def end_load(self) -> None:
        if self.load is not None:
            self.load.kill()
            self.load.wait()
            self.load = None

    def rate(self, seconds: float) -> float:
        """Tokens a second over the next ``seconds``."""
        begun = time.monotonic()
        time.sleep(seconds)
        return self.rate_between(begun, time.monotonic())

    def rate_between(self, begun: float, ended: float) -> float:
        """Tokens a second between two monotonic times."""
        rows = (line.split() for line in self.counts.read_text().splitlines())
        tokens = sum(int(count) for stamp, count in rows if begun <= float(stamp) < ended)
        return tokens / (ended - begun)
