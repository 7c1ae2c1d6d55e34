"""An answer of NCCL's RAS service → the answer itself, and the processes that it names.

What the counts mean is for the analysis; text answers list only outliers, so listed does not mean guilty.
"""

from __future__ import annotations

from collections.abc import Iterator

from hangdoctor.model import Gap, RasAnswer
from hangdoctor.parsers.findings import Finding, Sighting, Where


def findings_of(answer: RasAnswer, where: Where) -> Iterator[Finding]:
    """The answer, one sighting for each process that it names, and a gap where it has holes."""
    yield answer
    world = max(answer.communicators, key=lambda c: c.size or len(c.ranks), default=None)
    everybody = [rank for c in answer.communicators for rank in (*c.ranks, *c.missing)]
    # The numbers of the largest communicator are the global ranks in all but exotic jobs.
    numbers = {(r.host, r.pid): r.rank for r in (*world.ranks, *world.missing)} if world is not None else {}
    seen = set()
    for rank in (*everybody, *answer.lost):
        process = (rank.host, rank.pid)
        if rank.pid is None or process in seen:
            continue
        seen.add(process)
        number = numbers.get(process)
        yield Sighting(
            source="ncclras",
            where=where,
            pid=rank.pid,
            host=rank.host,
            labels=(f"rank {number}",) if number is not None and number >= 0 else (),
            versions={"nccl": answer.nccl_version} if answer.nccl_version else {},
            is_history=True,
        )
    if answer.is_partial:
        yield Gap("ncclras", str(where), "the answer is cut short; the complete parts were read")
    if answer.timeouts:
        yield Gap(
            "ncclras", str(where), f"{answer.timeouts} time-outs while collecting: the picture has holes"
        )
