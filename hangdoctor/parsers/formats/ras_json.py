"""``ncclras -f json`` (NCCL 2.28.7 and later), also with the comma that 2.28.7 to 2.28.9 leave out."""

from __future__ import annotations

import re

from hangdoctor.model import Gap
from hangdoctor.parsers.findings import Finding, Where
from hangdoctor.parsers.json_value import as_int, as_list, as_mapping, as_text
from hangdoctor.parsers.ras import Communicator, RasRank, findings_of
from hangdoctor.parsers.registry import JsonFormat

_NO_COMMA = re.compile(r'("nvml_dev"\s{0,9}:\s{0,9}-?\d{1,9})(\s{0,200}"status")')


def read(value: object, where: Where) -> tuple[Finding, ...]:
    """The processes and communicators in one answer; empty when this is none."""
    answer = as_mapping(value)
    if "communicators" not in answer or not (
        "nccl_version" in answer or "ras" in answer or "communicators_count" in answer
    ):
        return ()
    communicators = [_communicator(as_mapping(row)) for row in as_list(answer["communicators"])]
    found = tuple(findings_of(communicators, as_text(answer.get("nccl_version")), where))
    timeouts = as_int(as_mapping(answer.get("ras")).get("timeouts_count"))
    if timeouts:
        found += (
            Gap("ncclras", str(where), f"{timeouts} time-outs while collecting: the picture has holes"),
        )
    return found


def _communicator(row: dict[str, object]) -> Communicator:
    name = (as_text(row.get("hash")) or "?").removeprefix("0x")
    missing = as_int(row.get("missing_ranks_count")) or len(as_list(row.get("missing_ranks")))
    ranks = [_rank(as_mapping(r), False) for r in as_list(row.get("ranks"))]
    ranks += [_rank(as_mapping(r), True) for r in as_list(row.get("missing_ranks"))]
    operations = {op for rank in ranks for op in rank.counts}
    answered = [rank for rank in ranks if rank.missing is None]
    differ = any(len({rank.counts.get(op) for rank in answered}) > 1 for op in operations)
    errors = ",".join(word for word, holds in (("INCOMPLETE", missing), ("MISMATCH", differ)) if holds)
    return Communicator(name, as_int(row.get("size")), ranks, errors=errors or "OK")


def _rank(row: dict[str, object], is_missing: bool) -> RasRank:
    status = as_mapping(row.get("status"))
    why = None
    if is_missing:
        why = "no data"
        if status.get("considered_dead") is True:
            why = "dead"
        elif status.get("unresponsive") is True:
            why = "unresponsive"
    device = as_int(row.get("cuda_dev"))
    counts = {
        op: number
        for op, count in as_mapping(row.get("collective_counts")).items()
        if (number := as_int(count)) is not None
    }
    rank = as_int(row.get("rank"))
    return RasRank(
        rank if rank is not None else -1,
        as_int(row.get("pid")),
        as_text(row.get("host")),
        str(device) if device is not None else None,
        counts,
        why,
    )


def mend(text: str) -> str:
    """Put in the comma after ``nvml_dev``."""
    return _NO_COMMA.sub(r"\1,\2", text)


FORMATS = (
    JsonFormat(
        name="ncclras",
        summary="ncclras (NCCL RAS), text or JSON",
        keys=("nccl_version", "communicators", "communicators_count", "collective_counts"),
        read=read,
        repair=mend,
    ),
)
