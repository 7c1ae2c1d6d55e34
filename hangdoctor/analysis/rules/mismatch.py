"""Ranks of one group that stand in different collectives: each waits for what the others will never issue."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations

from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.analysis.ras_view import behind
from hangdoctor.analysis.recorder import DONE, by_group, current_entries
from hangdoctor.analysis.standing import collective_name, in_collective, is_idle, is_settled
from hangdoctor.case import Case, Member
from hangdoctor.model import Activity, FlightEntry
from hangdoctor.report import Cause, Confidence, Kind


def check(situation: Situation) -> Finding | None:
    """Fires when ranks wait for each other in what is not the same collective, by name or by the recorder."""
    case = situation.case
    recorded = _different_at_one_number(case) or _finished_alone(case)
    if recorded is not None:
        return recorded
    if len(case.ranks) < 2 or not all(_waits_for_peers(m) for m in case.ranks):
        return None
    found = _crossed(case) or _apart(case)
    if found is None and all(in_collective(m) for m in case.ranks):
        found = _by_name(case) or _by_ras(case)
    return found


def _waits_for_peers(member: Member) -> bool:
    """In a collective, or waiting for a GPU that may be running one."""
    lead = member.lead
    waits = in_collective(member) or (lead is not None and lead.last.activity is Activity.WAIT_GPU)
    return waits and is_settled(lead) and not is_idle(member)


def _by_name(case: Case) -> Finding | None:
    names = {m.key: collective_name(m) or "?" for m in case.ranks}
    counts = Counter(names.values())
    if len(counts) < 2:
        return None
    odd = min(counts.values())
    suspects = (
        [m for m in case.ranks if counts[names[m.key]] == odd] if odd < max(counts.values()) else case.ranks
    )
    told = "; ".join(
        f"{fold_labels(m.label for m in case.ranks if names[m.key] == name)} in {name}" for name in counts
    )
    confidence = Confidence.LIKELY if case.look_count > 1 else Confidence.POSSIBLE
    return _finding(confidence, f"the ranks wait in different collectives: {told}", suspects)


def _by_ras(case: Case) -> Finding | None:
    """All wait in what looks like one collective, and NCCL has counted that some have launched fewer."""
    found = behind(case)
    return _finding(Confidence.LIKELY, found[1], found[0]) if found is not None else None


def _different_at_one_number(case: Case) -> Finding | None:
    """One number of a group, two operations or sizes, and at least one rank still in it."""
    at: dict[tuple[str, int], list[tuple[Member, FlightEntry]]] = defaultdict(list)
    for member in case.ranks:
        for entry in member.last.flight:
            if entry.sequence is not None:
                at[(entry.group, entry.sequence)].append((member, entry))
    for (group, _), rows in sorted(at.items(), key=lambda item: item[0]):
        kinds = Counter(_identity(entry) for _, entry in rows)
        stuck = [m for m, entry in rows if entry.state not in DONE and _waits_for_peers(m)]
        if len(kinds) > 1 and stuck and not _is_uneven(rows):
            return _finding(Confidence.CERTAIN, f"in group {group} {_tell(rows)}", _odd_ones(rows))
    return None


def _is_uneven(rows: list[tuple[Member, FlightEntry]]) -> bool:
    """Gathers of uneven tensors legitimately differ in size."""
    return len({entry.op for _, entry in rows}) == 1 and "all_reduce" not in rows[0][1].op


def _finished_alone(case: Case) -> Finding | None:
    """A rank has finished a collective that a peer cannot finish: they did not put the same into it."""
    finished = _finished(case)
    for member in case.ranks:
        if not _waits_for_peers(member):
            continue
        for group, mine in current_entries(member.last.flight).items():
            if mine.state in DONE or not any(op in mine.op for op in _SYMMETRIC):
                continue
            sequence = mine.sequence or 0
            if max((last for last, _ in finished.get(group, ())), default=-1) < sequence:
                continue
            ahead = [p for last, p in finished[group] if p is not member and last >= sequence]
            if ahead:
                because = (
                    f"in group {group} {member.label} is still in {' '.join(_identity(mine))}, which "
                    f"{fold_labels(p.label for p in ahead)} finished: they did not put the same into it"
                )
                return _finding(Confidence.LIKELY, because, [member, *ahead])
    return None


_SYMMETRIC = ("all_reduce", "all_gather", "allgather", "reduce_scatter", "barrier", "all_to_all", "alltoall")
"""Collectives that no rank can finish before every other has put its share in."""


def _finished(case: Case) -> dict[str, list[tuple[int, Member]]]:
    """For each group the ranks that have nothing of it open, with the last number that they have finished."""
    found: dict[str, list[tuple[int, Member]]] = defaultdict(list)
    for member in case.ranks:
        for group, entries in by_group(member.last.flight).items():
            states = {e.state for e in entries}
            if "completed" in states and states <= set(DONE):
                found[group].append((max(e.sequence or 0 for e in entries), member))
    return found


def _apart(case: Case) -> Finding | None:
    """All ranks wait, at different numbers of one group."""
    current: dict[str, list[tuple[Member, FlightEntry]]] = defaultdict(list)
    for member in case.ranks:
        for group, entry in _pending(member).items():
            current[group].append((member, entry))
    for group, rows in current.items():
        if len(rows) > 1 and len({entry.sequence for _, entry in rows}) > 1:
            return _finding(Confidence.CERTAIN, f"in group {group} {_tell(rows)}", _odd_ones(rows))
    return None


def _crossed(case: Case) -> Finding | None:
    """Some wait in one group for others that wait in a second group for them: the groups are used in two orders.

    Who is in a group is told by its earlier collectives: of a group that was never used nobody is known to be missing.
    """
    pending = {m.key: _pending(m) for m in case.ranks}
    known = {m.key: {entry.group for entry in m.last.flight} for m in case.ranks}
    groups = sorted({group for entries in pending.values() for group in entries})
    for first, second in combinations(groups, 2):
        here = [m for m in case.ranks if first in pending[m.key] and second not in pending[m.key]]
        there = [m for m in case.ranks if second in pending[m.key] and first not in pending[m.key]]
        missed_here = [m for m in there if first in known[m.key]]
        missed_there = [m for m in here if second in known[m.key]]
        if missed_here and missed_there:
            told = [
                f"{fold_labels(m.label for m in waiting)} in group {group} "
                f"({' '.join(_identity(pending[waiting[0].key][group]))}) for {fold_labels(m.label for m in missed)}"
                for waiting, group, missed in ((here, first, missed_here), (there, second, missed_there))
            ]
            because = f"{told[0]} and {told[1]}: the two groups are not used in the same order"
            return _finding(Confidence.CERTAIN, f"the ranks wait for each other, {because}", [*here, *there])
    return None


def _pending(member: Member) -> dict[str, FlightEntry]:
    return {
        group: entry
        for group, entry in current_entries(member.last.flight).items()
        if entry.state not in DONE
    }


def _tell(rows: list[tuple[Member, FlightEntry]]) -> str:
    kinds = dict.fromkeys(_identity(entry) for _, entry in rows)
    return "; ".join(
        f"{fold_labels(m.label for m, e in rows if _identity(e) == kind)} at {' '.join(kind)}"
        for kind in kinds
    )


def _odd_ones(rows: list[tuple[Member, FlightEntry]]) -> list[Member]:
    """The minority; everybody when there is none."""
    kinds = Counter(_identity(entry) for _, entry in rows)
    odd = min(kinds.values())
    tied = odd == max(kinds.values())
    return [m for m, entry in rows if tied or kinds[_identity(entry)] == odd]


def _identity(entry: FlightEntry) -> tuple[str, ...]:
    sizes = entry.input_sizes or ""
    return tuple(part for part in (f"#{entry.sequence}", entry.op, sizes, entry.dtype or "") if part)


def _finding(confidence: Confidence, because: str, suspects: list[Member] | tuple[Member, ...]) -> Finding:
    return Finding(
        Kind.HUNG,
        confidence,
        Cause.COLLECTIVE_MISMATCH,
        because,
        tuple(Suspect(m, m.lead) for m in suspects),
    )


RULE = Rule(
    id="mismatch",
    order=40,
    summary="All ranks wait in collectives, but not in the same one.",
    refuted_by="the ranks being in different process groups that do not share these members",
    check=check,
)
