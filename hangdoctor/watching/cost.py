"""What watching costs, measured while it watches."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from hangdoctor.collect.deadline import helpers_cpu_s


@dataclass(frozen=True, slots=True)
class Cost:
    """Since the watch began."""

    cpu_share: float | None
    """Of one core, our children included."""
    look_s: float | None
    """The mean look."""
    paused_s: float
    """The longest pause of any target."""


class Meter:
    """Adds up looks and CPU time."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._cpu_s = _cpu_s()
        self._looks = 0
        self._look_s = 0.0
        self._paused_s = 0.0

    def add(self, look_s: float | None, paused_s: float | None) -> None:
        """Count one look."""
        self._looks += 1
        self._look_s += look_s or 0.0
        self._paused_s = max(self._paused_s, paused_s or 0.0)

    def read(self) -> Cost:
        """So far."""
        wall_s = time.monotonic() - self._began
        return Cost(
            (_cpu_s() - self._cpu_s) / wall_s if wall_s > 0 else None,
            self._look_s / self._looks if self._looks else None,
            self._paused_s,
        )


def _cpu_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system + helpers_cpu_s()
