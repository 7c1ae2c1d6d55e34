"""``Stack trace of the failed collective``: where the work that timed out had been issued, from the Flight Recorder."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.model import Frame, Method, Stack, Thread
from hangdoctor.parsers.findings import Finding, Sighting
from hangdoctor.parsers.registry import BlockFormat, Opening

_FRAME = re.compile(r"#\d{1,6} (?P<function>\S.*?) from (?P<file>\S.*):(?P<line>\d{1,9})$")
_HEADER = "Stack trace of the failed collective:"


class FlightTextReader:
    """Reads one stack, innermost frame first."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._frames: list[Frame] = []
        self._has_begun = False

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the stack."""
        body = text.strip()
        if not self._has_begun and body.startswith(_HEADER):
            self._has_begun = True
            body = body[len(_HEADER) :].strip()
            if not body:
                return True
        found = _FRAME.match(body)
        if found is None:
            return False
        self._has_begun = True
        self._frames.append(Frame(found["function"], found["file"], int(found["line"]) or None))
        return True

    def close(self) -> Iterable[Finding]:
        """The rank that printed it, with the stack at the time of issue."""
        if self._frames:
            yield Sighting(
                source="flight recorder stack",
                where=self._opening.where,
                pid=self._opening.pid,
                labels=self._opening.labels,
                host=self._opening.host,
                threads=(Thread(tid=None, stack=Stack(tuple(self._frames), Method.FLIGHT_RECORDER)),),
                is_incidental=True,
            )


FORMATS = (
    BlockFormat(
        name="flight recorder stack",
        summary="'Stack trace of the failed collective' in an NCCL watchdog's log",
        first="S#",
        opens=re.compile(_HEADER + r"|#\d{1,6} \S.{0,400}? from \S[^\n]{0,1000}:\d{1,9}$"),
        reader=FlightTextReader,
        order=25,
        continues_unprefixed=True,
    ),
)
