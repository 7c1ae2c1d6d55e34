"""NCCL's RAS (``ncclras``): what each rank has launched, who is missing, in terms of processes.

Counts are launches on the host. Equal counts do not mean that anything completed, a difference of a few is normal
while a job runs, and text output lists only outliers: listed does not mean guilty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hangdoctor.model import FlightEntry, LogMessage
from hangdoctor.parsers.findings import Finding, Sighting, Where


@dataclass(slots=True)
class RasRank:
    """A rank of one communicator, with the process behind it."""

    rank: int
    pid: int | None
    host: str | None
    gpu: str | None
    counts: dict[str, int] = field(default_factory=dict)
    missing: str | None = None
    """``unresponsive``, ``dead``, ``no data``; ``None`` for a rank that answered."""


@dataclass(slots=True)
class Communicator:
    """One communicator and those of its ranks that were listed."""

    name: str
    size: int | None
    ranks: list[RasRank] = field(default_factory=list)
    summaries: list[tuple[str, int, int]] = field(default_factory=list)
    """Operation, count, and how many unlisted ranks have launched up to it."""
    errors: str | None = None
    status: str | None = None


def findings_of(
    communicators: Iterable[Communicator], version: str | None, where: Where
) -> Iterator[Finding]:
    """One sighting a process, and the messages that no process can carry."""
    rows = list(communicators)
    yield from _messages(rows, where)
    # The numbers of the largest communicator are the global ranks in all but exotic jobs.
    world = max(rows, key=lambda c: c.size or len(c.ranks), default=None)
    names = {(r.host, r.pid): r.rank for r in world.ranks} if world is not None else {}
    processes: dict[tuple[str | None, int], list[tuple[Communicator, RasRank]]] = {}
    for communicator in rows:
        for rank in communicator.ranks:
            if rank.pid is not None:
                processes.setdefault((rank.host, rank.pid), []).append((communicator, rank))
    for (host, pid), seen in processes.items():
        number = names.get((host, pid))
        yield Sighting(
            source="ncclras",
            where=where,
            pid=pid,
            host=host,
            labels=(f"rank {number}",) if number is not None else (),
            flight=tuple(entry for communicator, rank in seen for entry in _entries(communicator, rank)),
            versions={"nccl": version} if version else {},
        )


def _entries(communicator: Communicator, rank: RasRank) -> Iterator[FlightEntry]:
    for operation, count in rank.counts.items():
        if count > 0:
            yield FlightEntry(
                # One counter an operation: numbers of different operations do not compare.
                group=f"{communicator.name} {operation}",
                op=operation,
                sequence=count,
                state="launched",
                group_description=f"NCCL communicator of {communicator.size or '?'} ranks",
            )


def _messages(communicators: Iterable[Communicator], where: Where) -> Iterator[LogMessage]:
    for communicator in communicators:
        group = {"group": communicator.name}
        if communicator.size is not None:
            group["size"] = str(communicator.size)
        if communicator.errors and communicator.errors != "OK":
            fields = {**group, "errors": communicator.errors}
            if communicator.status:
                fields["status"] = communicator.status
            yield LogMessage(
                "ras.problem", f"{communicator.name}: {communicator.errors}", None, fields, where.line
            )
        for operation, count, ranks in communicator.summaries:
            text = f"{communicator.name}: {ranks} ranks have launched up to {operation} {count}"
            fields = {**group, "op": operation, "sequence": str(count), "ranks": str(ranks)}
            yield LogMessage("ras.counts", text, None, fields, where.line)
        for rank in communicator.ranks:
            if rank.missing is not None:
                fields = {**group, "rank": str(rank.rank), "why": rank.missing}
                fields.update(
                    {k: str(v) for k, v in (("pid", rank.pid), ("host", rank.host), ("gpu", rank.gpu)) if v}
                )
                text = f"{communicator.name}: rank {rank.rank} did not answer ({rank.missing})"
                yield LogMessage("ras.missing", text, f"rank {rank.rank}", fields, where.line)
