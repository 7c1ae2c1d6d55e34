"""Ranks of one group that stand in different collectives: each waits for what the others will never issue."""

from __future__ import annotations

from collections import Counter, defaultdict

from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.analysis.waits import collective_name, in_collective, is_idle, is_settled
from hangdoctor.case import Case, Member
from hangdoctor.report import Cause, Confidence, Kind


def check(situation: Situation) -> Finding | None:
    """Fires when every rank waits in a collective and they are not all the same one."""
    case = situation.case
    ranks = case.ranks
    if len(ranks) < 2 or not all(in_collective(m) and is_settled(m.lead) and not is_idle(m) for m in ranks):
        return None
    return _by_recorder(case) or _by_name(case)


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
    """The Flight Recorder knows the operation and its number in each process group."""
    newest: dict[str, dict[str, tuple[Member, int, str]]] = defaultdict(dict)
    for member in case.ranks:
        for entry in member.last.flight:
            if entry.sequence is None:
                continue
            known = newest[entry.group].get(member.label)
            if known is None or entry.sequence >= known[1]:
                newest[entry.group][member.label] = (member, entry.sequence, entry.op)
    for group, rows in newest.items():
        seen = list(rows.values())
        operations = Counter((sequence, op) for _, sequence, op in seen)
        if len(seen) < 2 or len(operations) < 2:
            continue
        odd = min(operations.values())
        tied = odd == max(operations.values())
        suspects = [m for m, sequence, op in seen if tied or operations[(sequence, op)] == odd]
        told = "; ".join(
            f"{fold_labels(m.label for m, s, o in seen if (s, o) == key)} at #{key[0]} {key[1]}"
            for key in operations
        )
        return _finding(Confidence.CERTAIN, f"in group {group} {told}", suspects)
    return None


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
