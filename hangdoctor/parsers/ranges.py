"""Line numbers for people: ``3-9, 44, 80-81 and 12 more places``."""

from __future__ import annotations

_SHOWN = 8


class LineRanges:
    """Collects ascending line numbers; keeps the first few ranges and counts the rest."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self._more = 0
        self._last = -2

    def add(self, number: int) -> None:
        """Add one line; numbers must not descend."""
        follows = number == self._last + 1
        self._last = number
        if follows and not self._more and self._ranges:
            self._ranges[-1] = (self._ranges[-1][0], number)
        elif follows and self._more:
            return
        elif len(self._ranges) < _SHOWN:
            self._ranges.append((number, number))
        else:
            self._more += 1

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __str__(self) -> str:
        shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in self._ranges)
        return f"{shown} and {self._more} more places" if self._more else shown
