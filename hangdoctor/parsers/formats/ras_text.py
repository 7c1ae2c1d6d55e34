"""``ncclras`` and ``nc localhost 28028``, text, NCCL 2.24 to 2.30, plain and verbose."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.model import Gap, LogMessage
from hangdoctor.parsers.findings import Finding
from hangdoctor.parsers.ras import Communicator, RasRank, findings_of
from hangdoctor.parsers.registry import BlockFormat, Opening

_VERSION = re.compile(r"NCCL version (\S+) compiled with CUDA")
_ROW = re.compile(
    r"(?P<group>\d+) +(?P<comms>\d+) +(?P<nodes>\d+) +(?P<per_node>[\d-]+) +(?P<size>[\d-]+) +(?P<ranks>[\d-]+)"
    r" +(?P<status>[A-Z]{3,10}) +(?P<errors>[A-Z,]+)$"
)
_COMMUNICATOR = re.compile(
    r"#(?P<group>\d+)-(?P<number>\d+) \((?P<hash>[0-9a-fx:]{8,40})\)(?: (?P<errors>[A-Z,]+))?"
)
_OPERATION = re.compile(r"Communicator ranks have different (?P<op>\w+) operation counts")
_SOME = re.compile(
    r"(?P<ranks>\d+) ranks? ha(?:ve|s) (?:launched up to operation (?P<count>\d+)|not launched any)"
)
_RANK = re.compile(
    r"Rank (?P<rank>-?\d+)(?: has (?:launched up to operation (?P<count>\d+)|(?P<none>not launched any operations)))?"
    r"(?: --? ?(?:GPUs? (?P<gpu>[\d,\-]+)[^m]{0,60}"
    r"managed by process (?P<pid>\d+) on node (?P<host>\S+)|\[process.*))?$"
)
_PROCESS = re.compile(r"Process (?P<pid>\d+) on node (?P<host>\S+)(?: managing GPUs? (?P<gpu>\S+))?")
_MISSING = re.compile(r"Missing communicator data from (?P<count>\d+) ranks?")
_WORDS = re.compile(
    r"NCCL version|CUDA runtime version|Job summary|[=-]{4,}|Nodes +Processes|\(total\)|\d+ +\d+ +\d+"
    r"|Communicators\.\.\."
    r"|Group +Comms|# +in group|Errors$|Warnings$|INCOMPLETE|DEAD|TIMEOUT|Encountered \d+|.* job process|Missing "
    r"|Communicator ranks|\d+ ranks? ha|Rank -?\d+|Process \d+ on|#\d+-\d+ |.* (?:ranks?|processes) |The job"
)


class RasTextReader:
    """Reads one answer."""

    def __init__(self, opening: Opening) -> None:
        self._where = opening.where
        self._version: str | None = None
        self._groups: dict[str, tuple[int | None, str, str]] = {}
        self._rows: list[Communicator] = []
        self._by_number: dict[int, RasRank] = {}
        self._loose: list[RasRank] = []
        self._operation: str | None = None
        self._same: tuple[str, int] | None = None
        self._section = ""
        self._unknown = 0
        self._is_missing = False

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the answer."""
        body = text.strip()
        if not body:
            return True
        version = _VERSION.match(body)
        if version is not None:
            if self._version is not None:
                return False
            self._version = version[1]
            return True
        if body in ("INCOMPLETE", "DEAD", "TIMEOUT", "Errors", "Warnings"):
            self._section = body
            return True
        row = _ROW.match(body)
        if row is not None:
            size = int(row["size"]) if row["size"].isdigit() else None
            self._groups[row["group"]] = (size, row["status"], row["errors"])
            return True
        return self._take_communicator(body) or bool(_WORDS.match(body))

    def _take_communicator(self, body: str) -> bool:
        found = _COMMUNICATOR.match(body)
        if found is not None:
            size, status, errors = self._groups.get(found["group"], (None, None, None))
            self._rows.append(
                Communicator(found["hash"], size, errors=found["errors"] or errors, status=status)
            )
            self._operation, self._same, self._is_missing = None, None, False
            self._by_number = {}
            return True
        process = _PROCESS.match(body)
        if process is not None and not self._rows:
            why = "dead" if self._section == "DEAD" else "no data"
            self._loose.append(RasRank(-1, int(process["pid"]), process["host"], process["gpu"], missing=why))
            return True
        if not self._rows:
            return False
        operation = _OPERATION.match(body)
        if operation is not None:
            self._operation, self._same, self._is_missing = operation["op"], None, False
            return True
        if _MISSING.match(body):
            self._is_missing = True
            return True
        return self._take_counts(body)

    def _take_counts(self, body: str) -> bool:
        communicator = self._rows[-1]
        some = _SOME.match(body)
        if some is not None and self._operation is not None:
            self._same = (self._operation, int(some["count"] or 0))
            communicator.summaries.append((*self._same, int(some["ranks"])))
            return True
        found = _RANK.match(body)
        if found is None:
            return False
        if found["pid"] is None:
            self._unknown += 1
            return True
        rank = self._rank(communicator, found)
        if found["count"] is not None and self._operation is not None:
            rank.counts[self._operation] = int(found["count"])
        elif self._same is not None:
            rank.counts[self._same[0]] = self._same[1]
        elif self._is_missing:
            rank.missing = "no data"
        return True

    def _rank(self, communicator: Communicator, found: re.Match[str]) -> RasRank:
        number = int(found["rank"])
        known = self._by_number.get(number)
        if known is None:
            known = self._by_number[number] = RasRank(number, int(found["pid"]), found["host"], found["gpu"])
            communicator.ranks.append(known)
        return known

    def close(self) -> Iterable[Finding]:
        """The processes that were listed, and what concerns communicators as a whole."""
        if self._version is None and not self._rows:
            return
        yield from findings_of(self._rows, self._version, self._where)
        for group, (size, status, errors) in self._groups.items():
            if not any(c.errors == errors for c in self._rows) and errors != "OK":
                loose = Communicator(f"group {group}", size, errors=errors, status=status)
                yield from findings_of([loose], None, self._where)
        told = {(r.host, r.pid) for c in self._rows for r in c.ranks}
        for rank in self._loose:
            if (rank.host, rank.pid) not in told:
                job = Communicator("the job", None, [rank])
                yield from (f for f in findings_of([job], None, self._where) if isinstance(f, LogMessage))
        if self._unknown:
            reason = (
                f"{self._unknown} ranks without process information (a communicator that is still forming)"
            )
            yield Gap("ncclras", str(self._where), reason)


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
