"""Ranks of one group that stand in different collectives: each waits for what the others will never issue."""

from __future__ import annotations

from collections import Counter, defaultdict

from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.analysis.waits import collective_name, in_collective, is_idle, is_settled
from hangdoctor.case import Case, Member
from hangdoctor.model import Activity, FlightEntry
from hangdoctor.report import Cause, Confidence, Kind


def check(situation: Situation) -> Finding | None:
    """Fires when every rank waits for the others and they are not all in the same collective."""
    case = situation.case
    ranks = case.ranks
    if len(ranks) < 2 or not all(_waits_for_peers(m) for m in ranks):
        return None
    found = _by_recorder(case)
    if found is None and all(in_collective(m) for m in ranks):
        found = _by_name(case)
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


def _by_recorder(case: Case) -> Finding | None:
    """The Flight Recorder knows the operation, its number and its sizes in each process group."""
    current: dict[str, list[tuple[Member, FlightEntry]]] = defaultdict(list)
    for member in case.ranks:
        for group, entry in _current_entries(member).items():
            current[group].append((member, entry))
    for group, rows in current.items():
        kinds = Counter(_identity(entry) for _, entry in rows)
        if len(rows) < 2 or len(kinds) < 2 or all(entry.state in _DONE for _, entry in rows):
            continue
        odd = min(kinds.values())
        tied = odd == max(kinds.values())
        suspects = [m for m, entry in rows if tied or kinds[_identity(entry)] == odd]
        told = "; ".join(
            f"{fold_labels(m.label for m, e in rows if _identity(e) == kind)} at {' '.join(kind)}"
            for kind in kinds
        )
        return _finding(Confidence.CERTAIN, f"in group {group} {told}", suspects)
    return None


_DONE = ("completed", "retired")


def _current_entries(member: Member) -> dict[str, FlightEntry]:
    """For each group the oldest collective that is not over, else the newest."""
    chosen: dict[str, FlightEntry] = {}
    for entry in member.last.flight:
        if entry.sequence is None:
            continue
        known = chosen.get(entry.group)
        is_older = known is not None and entry.sequence < (known.sequence or 0)
        if known is None or (known.state in _DONE) > (entry.state in _DONE) or ((known.state in _DONE) == (entry.state in _DONE) and is_older == (entry.state not in _DONE)):
            chosen[entry.group] = entry
    return chosen


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
