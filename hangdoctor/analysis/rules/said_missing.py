"""The job itself has written who did not come: a monitored barrier, a desynchronisation report, a mismatch check.

These are statements of the program about numbers that it compared; no guess is involved. The ranks named are looked
up among the processes seen; without one the rank stands for itself.
"""

from __future__ import annotations

import re

from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.case import Case, Member
from hangdoctor.model import LogMessage, Rank
from hangdoctor.report import Cause, Confidence, Kind

_NAMES_MISSING = ("torch.barrier-missing", "torch.missing-ranks", "torch.desync")
_MISMATCH = "torch.collective-mismatch"


def check(situation: Situation) -> Finding | None:
    """Fires on messages of torch that name missing ranks, or two ranks in different collectives."""
    case = situation.case
    messages = [m for snapshot in case.capture.snapshots for m in snapshot.messages]
    numbers = sorted({n for m in messages if m.kind in _NAMES_MISSING for n in _numbers(m, "missing")})
    if numbers:
        return _missing(case, numbers)
    mismatch = next((m for m in messages if m.kind == _MISMATCH), None)
    return _different(case, mismatch) if mismatch is not None else None


def _numbers(message: LogMessage, field: str) -> list[int]:
    return [int(text) for text in re.findall(r"\d+", message.fields.get(field, ""))]


def _missing(case: Case, numbers: list[int]) -> Finding:
    seen = [m for m in case.ranks if m.rank is not None and m.rank.global_rank in numbers]
    known = {m.rank.global_rank for m in seen if m.rank is not None}
    labels = fold_labels(f"rank {n}" for n in numbers)
    return Finding(
        Kind.HUNG,
        Confidence.LIKELY,
        Cause.MISSING_PEER,
        f"{labels} did not come to where the others waited: torch compared them and says so",
        tuple(Suspect(m, m.lead) for m in seen),
        waiting=tuple(m for m in case.ranks if m not in seen),
        absent=tuple(Rank(global_rank=n) for n in numbers if n not in known),
        needs_no_second_look=True,
    )


def _different(case: Case, message: LogMessage) -> Finding | None:
    fields = message.fields
    pairs = [(fields.get("rank"), fields.get("op")), (fields.get("other_rank"), fields.get("other_op"))]
    ranks = [(int(rank), op or "?") for rank, op in pairs if rank is not None and rank.isdigit()]
    if len(ranks) < 2:
        return None
    seen: list[Member] = [m for m in case.ranks if m.rank is not None and m.rank.global_rank in dict(ranks)]
    known = {m.rank.global_rank for m in seen if m.rank is not None}
    told = " and ".join(f"rank {number} is in {op}" for number, op in ranks)
    return Finding(
        Kind.HUNG,
        Confidence.LIKELY,
        Cause.COLLECTIVE_MISMATCH,
        f"torch found ranks in different collectives: {told}",
        tuple(Suspect(m, m.lead) for m in seen),
        absent=tuple(Rank(global_rank=number) for number, _ in ranks if number not in known),
        needs_no_second_look=True,
    )


RULE = Rule(
    id="said-missing",
    order=35,
    summary="The job's own log names the ranks that did not come, or that called something else.",
    refuted_by="the message being of an earlier run in the same log",
    check=check,
)
