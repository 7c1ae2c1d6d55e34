"""Reading what NCCL's RAS service said: which ranks are behind, missing, dead or still initialising.

RAS counts what the host has launched, not what the GPU has finished, and skips captured CUDA graphs, send and receive.
So equal counts prove nothing, and on a busy job counts differ for a moment all the time (10256 and 10253 on a healthy
SGLang). A difference means something where two answers, seconds apart, are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from hangdoctor.model import RasAnswer, RasCommunicator, RasCount


class RasKind(str, Enum):
    """What an answer can say about some ranks of a communicator."""

    BEHIND = "behind"
    MISSING = "missing"
    DEAD = "dead"
    INITIALISING = "initialising"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RasFinding:
    """A statement about ranks of one communicator, in that communicator's own numbering."""

    kind: RasKind
    communicator: str | None
    ranks: tuple[int, ...]
    """Empty where RAS gives only how many."""
    pids: tuple[int, ...]
    count: int
    text: str
    is_still: bool | None = None
    """The counts have not changed since an earlier answer; ``None`` with one answer."""
    lag: int | None = None
    """Operations between the last rank and the first, for ``BEHIND``."""


def is_answer_of(answer: RasAnswer, pids: Collection[int]) -> bool | None:
    """Whether the service belongs to the job with these pids (the ranks' own numbering); ``None``: it names none.

    All jobs of a user share port 28028, and any of them may answer.
    """
    named = {rank.pid for one in answer.communicators for rank in (*one.ranks, *one.missing)}
    named |= {rank.pid for rank in answer.lost}
    named.discard(None)
    return bool(named & set(pids)) if named else None


def read_ras(answers: Sequence[RasAnswer]) -> tuple[RasFinding, ...]:
    """Everything the last answer says, compared with the ones before it (oldest first)."""
    if not answers:
        return ()
    findings: list[RasFinding] = []
    earlier = {one.id: one for answer in answers[:-1] for one in answer.communicators}
    for communicator in answers[-1].communicators:
        findings += _behind(communicator, earlier.get(communicator.id))
        findings += _missing(communicator)
        findings += _states(communicator)
    findings += _lost(answers[-1])
    return tuple(findings)


def _counts(communicator: RasCommunicator) -> tuple[RasCount, ...]:
    """So many ranks at so many operations of a kind, however the answer came."""
    if communicator.counts:
        return communicator.counts
    found: dict[tuple[str, int], list[int]] = {}
    for rank in communicator.ranks:
        for operation, launched in rank.counts.items():
            found.setdefault((operation, launched), []).append(rank.rank)
    return tuple(RasCount(op, n, len(ranks), tuple(sorted(ranks))) for (op, n), ranks in found.items())


def _behind(communicator: RasCommunicator, before: RasCommunicator | None) -> list[RasFinding]:
    counts = _counts(communicator)
    is_still = None if before is None else set(_counts(before)) == set(counts)
    findings = []
    for operation in dict.fromkeys(count.operation for count in counts):
        own = [count for count in counts if count.operation == operation]
        first = max(count.launched for count in own)
        late = [count for count in own if count.launched < first]
        if late:
            findings.append(_lagging(communicator, operation, first, late, is_still))
    return findings


def _lagging(
    communicator: RasCommunicator, operation: str, first: int, late: list[RasCount], is_still: bool | None
) -> RasFinding:
    count = sum(one.rank_count for one in late)
    ranks = tuple(sorted(rank for one in late for rank in one.ranks))
    ranks = ranks if len(ranks) == count else ()
    last = min(one.launched for one in late)
    who = f"rank {', '.join(map(str, ranks))}" if ranks else f"{count} ranks (not named)"
    has = "has" if count == 1 else "have"
    still = {True: ", unchanged between two looks", False: ", and counts are moving", None: ""}[is_still]
    reached = f"{last}" if len({one.launched for one in late}) == 1 else f"{last} or more"
    text = f"{who} {has} launched {reached} {operation}, others {first}{still}"
    pids = _pids(communicator, ranks)
    return RasFinding(RasKind.BEHIND, communicator.id, ranks, pids, count, text, is_still, first - last)


def _missing(communicator: RasCommunicator) -> list[RasFinding]:
    if not communicator.missing_count:
        return []
    found = []
    dead = [rank for rank in communicator.missing if rank.is_dead]
    silent = [rank for rank in communicator.missing if not rank.is_dead]
    for kind, ranks, word in (
        (RasKind.DEAD, dead, "is given up as dead"),
        (RasKind.MISSING, silent, "gave no data"),
    ):
        if ranks:
            numbers = tuple(sorted(rank.rank for rank in ranks))
            pids = tuple(rank.pid for rank in ranks if rank.pid is not None)
            text = f"rank {', '.join(map(str, numbers))} {word}"
            found.append(RasFinding(kind, communicator.id, numbers, pids, len(ranks), text))
    unnamed = communicator.missing_count - len(communicator.missing)
    if unnamed > 0:
        text = f"{unnamed} more ranks gave no data" if found else f"{unnamed} ranks gave no data (not named)"
        found.append(RasFinding(RasKind.MISSING, communicator.id, (), (), unnamed, text))
    return found


def _states(communicator: RasCommunicator) -> list[RasFinding]:
    if communicator.status == "INIT" and not communicator.ranks:
        text = "the communicator is still being made"
        return [RasFinding(RasKind.INITIALISING, communicator.id, (), (), communicator.size or 0, text)]
    found = []
    for kind, states, word in (
        (RasKind.INITIALISING, ("INIT",), "is still initialising"),
        (RasKind.FAILED, ("error", "ABORT"), "has failed"),
    ):
        ranks = tuple(rank.rank for rank in communicator.ranks if (rank.status or "").startswith(states))
        if ranks:
            text = f"rank {', '.join(map(str, ranks))} {word}"
            found.append(
                RasFinding(kind, communicator.id, ranks, _pids(communicator, ranks), len(ranks), text)
            )
    return found


def _lost(answer: RasAnswer) -> list[RasFinding]:
    dead = tuple(rank.pid for rank in answer.lost if rank.is_dead and rank.pid is not None)
    if not answer.dead_count:
        return []
    names = f" (pid {', '.join(map(str, dead))})" if dead else ""
    text = f"{answer.dead_count} processes are given up as dead{names}"
    return [RasFinding(RasKind.DEAD, None, (), dead, answer.dead_count, text)]


def _pids(communicator: RasCommunicator, ranks: tuple[int, ...]) -> tuple[int, ...]:
    known = {rank.rank: rank.pid for rank in communicator.ranks}
    return tuple(pid for rank in ranks if (pid := known.get(rank)) is not None)
