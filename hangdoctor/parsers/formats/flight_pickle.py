"""A Flight Recorder dump as written to ``/tmp/nccl_trace_rank_N``: a pickle, read without unpickling anything."""

from __future__ import annotations

import re

from hangdoctor.model import Gap
from hangdoctor.parsers.findings import Finding, Where
from hangdoctor.parsers.flight import read_flight
from hangdoctor.parsers.pickle_containers import PickleRefused, read_containers
from hangdoctor.parsers.registry import BinaryFormat

_REMEDY = "convert it to JSON where it was written: torch._C._distributed_c10d._dump_fr_trace_json()"


def read(data: bytes, where: Where) -> tuple[Finding, ...]:
    """The process of one dump; a Gap for a pickle that holds anything but containers, numbers and text."""
    try:
        value, problem = read_containers(data)
    except PickleRefused as refused:
        return (Gap("flight recorder", str(where), f"the pickle was not read: {refused}", _REMEDY),)
    found = read_flight(value, where)
    if not found:
        return (Gap("flight recorder", str(where), "a pickle, but no Flight Recorder dump", _REMEDY),)
    if problem:
        return (*found, Gap("flight recorder", str(where), problem))
    return found


FORMATS = (
    BinaryFormat(
        name="flight recorder",
        summary="PyTorch Flight Recorder dump as a pickle",
        magic=re.compile(rb"\x80[\x02-\x05]"),
        read=read,
    ),
)
