"""``ncclras`` and ``nc localhost 28028``, text, NCCL 2.24 to 2.30, plain and verbose."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.collect.ras_answers import NotAnAnswer, read_text
from hangdoctor.model import Gap
from hangdoctor.parsers.findings import Finding
from hangdoctor.parsers.ras import findings_of
from hangdoctor.parsers.registry import BlockFormat, Opening

_FIRST = re.compile(r"NCCL version \S+ compiled with CUDA")
_LINE = re.compile(
    r"NCCL version|CUDA runtime version|Job summary|[=-]{4,}|Nodes +Processes|\(total\)|\d+ +\d+ +\d+"
    r"|Communicators\.\.\.|Group +Comms|# +in group|Errors$|Warnings$|INCOMPLETE|DEAD|TIMEOUT|Encountered \d+"
    r"|.* job process|Missing |Communicator ranks|\d+ ranks? ha|Rank -?\d+|Process \d+ on|#\d+-\d+ "
    r"|.* (?:ranks?|processes) |The job"
)
# Ranks are put together one by one there, so time grows with their square: 1 s for this many.
_MOST_LINES = 20_000


class RasTextReader:
    """Collects one answer."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._lines: list[str] = []
        self._indent = len(opening.text) - len(opening.text.lstrip())
        self._dropped = 0

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the answer."""
        body = text.strip()
        if body and (not _LINE.match(body) or (self._lines and _FIRST.match(body))):
            return False
        if len(self._lines) < _MOST_LINES:
            self._lines.append(text[self._indent :] if not text[: self._indent].strip() else text)
        else:
            self._dropped += 1
        return True

    def close(self) -> Iterable[Finding]:
        """The answer and its processes; nothing when it is none after all."""
        where = self._opening.where
        try:
            # The cut end of a paste shows in the text itself, if at all.
            answer = read_text("\n".join(self._lines), address=str(where), is_partial=False)
        except (NotAnAnswer, ValueError, IndexError):
            return
        yield from findings_of(answer, where)
        if self._dropped:
            yield Gap("ncclras", str(where), f"{self._dropped:,} more lines of the answer were not read")


FORMATS = (
    BlockFormat(
        name="ncclras",
        summary="ncclras (NCCL RAS), text or JSON",
        first="N#",
        opens=re.compile(r"NCCL version \S+ compiled with CUDA|#\d+-\d+ \([0-9a-fx:]{8,40}\) [A-Z,]{2,}"),
        reader=RasTextReader,
        order=12,
    ),
)
