"""NCCL's own view of this job: which of its answers count, what they add to the evidence, who is behind by them."""

from __future__ import annotations

from collections.abc import Iterator

from hangdoctor.analysis.evidence import EvidenceBook
from hangdoctor.analysis.ras import RasFinding, RasKind, is_answer_of, read_ras
from hangdoctor.case import Case, Member
from hangdoctor.model import Gap, RasAnswer

_MOST_FINDINGS = 8
_SOURCE = "ncclras"


def findings(case: Case) -> tuple[RasFinding, ...]:
    """What the services that belong to this job say, each by its last answer compared with its earlier ones."""
    by_address: dict[str, list[RasAnswer]] = {}
    for answer in _answers(case):
        if not _is_foreign(case, answer):
            by_address.setdefault(answer.address, []).append(answer)
    return tuple(finding for answers in by_address.values() for finding in read_ras(answers))


def ras_gaps(case: Case) -> tuple[Gap, ...]:
    """Answers that were left out, and holes in those that were not."""
    return tuple(dict.fromkeys(gap for answer in _answers(case) for gap in _gaps(case, answer)))


def cite_ras(book: EvidenceBook, case: Case) -> tuple[str, ...]:
    """Add what NCCL says to the evidence; returns the ids."""
    return tuple(
        book.cite(f"communicator {finding.communicator or '?'}", _SOURCE, finding.text)
        for finding in findings(case)[:_MOST_FINDINGS]
    )


def behind(case: Case) -> tuple[tuple[Member, ...], str] | None:
    """Ranks that NCCL names as behind, unchanged over two answers, and its words; ``None`` when it names none.

    A difference of counts that moves is what every busy job shows.
    """
    for finding in findings(case):
        if finding.kind is RasKind.BEHIND and finding.is_still and finding.pids:
            members = tuple(m for m in case.ranks if _own_pid(m) in finding.pids)
            if members and len(members) < len(case.ranks):
                return members, f"NCCL says: {finding.text}"
    return None


def _answers(case: Case) -> Iterator[RasAnswer]:
    return (answer for snapshot in case.capture.snapshots for answer in snapshot.ras)


def _is_foreign(case: Case, answer: RasAnswer) -> bool:
    """All jobs of a user share a port. Of a file that somebody gave us nothing can be checked."""
    pids = {_own_pid(member) for member in case.members}
    return case.capture.origin == "live" and is_answer_of(answer, pids) is False


def _own_pid(member: Member) -> int:
    """As its own namespace numbers it, and so as NCCL reports it."""
    return member.last.ns_pid or member.pid


def _gaps(case: Case, answer: RasAnswer) -> Iterator[Gap]:
    subject = f"NCCL RAS at {answer.address}"
    if _is_foreign(case, answer):
        remedy = "Give each job a port of its own: NCCL_RAS_ADDR=localhost:PORT"
        yield Gap(_SOURCE, subject, "another job answered there, so its answer is left out", remedy)
        return
    if answer.is_partial:
        yield Gap(_SOURCE, subject, "the answer is cut short; the complete parts were read")
    if answer.timeouts:
        yield Gap(_SOURCE, subject, f"{answer.timeouts} time-outs while collecting: the picture has holes")
    for warning in answer.warnings:
        yield Gap(_SOURCE, subject, warning)
