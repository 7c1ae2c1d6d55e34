"""Which evidence speaks of which process: the links from a sentence, a stack or a thread to what it rests on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from hangdoctor.render._digest import Names
from hangdoctor.report import Evidence, Party, ProcessRow, Report

_PID = re.compile(r"\(pid (\d+)\)")
_MOST = 12
_MOST_OF_A_WAIT = 6
_Place = tuple[str | None, int]


class Citations:
    """Evidence ids by process, in the order of the evidence."""

    def __init__(self, report: Report, names: Names) -> None:
        """Read the subjects of all evidence: ``TP1 (pid 4902), MainThread`` speaks of that process."""
        self._names = names
        self._of: dict[_Place, list[str]] = defaultdict(list)
        self._places: dict[str, _Place] = {}
        by_pid: dict[int, list[ProcessRow]] = defaultdict(list)
        for row in report.processes:
            by_pid[row.pid].append(row)
        cited = {name for culprit in report.verdict.culprits for name in culprit.evidence}
        self._general: list[str] = []
        for piece in report.evidence:
            home = _row_of(piece, by_pid)
            if home is not None:
                self._of[home.host, home.pid].append(piece.id)
                self._places[piece.id] = (home.host, home.pid)
            elif piece.id not in cited:
                self._general.append(piece.id)
        known = [piece.id for piece in report.evidence]
        self.decisive = tuple(name for name in known if name in cited) or tuple(known)[:_MOST]
        """What the verdict rests on; everything where nobody is to blame."""
        self.progress = tuple(
            piece.id
            for piece in report.evidence
            if piece.source == "diff of looks" and piece.id in self.decisive
        )
        """What was compared to say whether anything moved."""
        self._victims = {(victim.host, victim.pid) for victim in report.verdict.victims}

    def of(self, pid: int | None, host: str | None) -> tuple[str, ...]:
        """Evidence on one process; on all that wait, where it is one of them and has none of its own."""
        row = self._names.row(pid, host)
        if row is None:
            return ()
        place = (row.host, row.pid)
        found = self._of.get(place, [])
        if not found and (place in self._victims or (None, row.pid) in self._victims):
            found = self._general
        return tuple(found[:_MOST])

    def of_parties(self, parties: Iterable[Party | None]) -> tuple[str, ...]:
        """Evidence on the ends of a wait, each piece once."""
        found = (self.of(party.pid, party.host) for party in parties if party is not None)
        return tuple(dict.fromkeys(name for names in found for name in names))[:_MOST_OF_A_WAIT]

    def place(self, evidence_id: str) -> _Place | None:
        """Host and pid of the process that a piece of evidence speaks of."""
        return self._places.get(evidence_id)


def _row_of(piece: Evidence, by_pid: dict[int, list[ProcessRow]]) -> ProcessRow | None:
    match = _PID.search(piece.subject)
    rows = by_pid.get(int(match[1]), []) if match and len(match[1]) < 10 else []
    if len(rows) <= 1:
        return rows[0] if rows else None
    # One number on several hosts: the rank's label tells them apart.
    return next((row for row in rows if row.rank and piece.subject.startswith(f"{row.rank.label} ")), None)
