"""``ncclras -f json`` (NCCL 2.28.7 and later), also with the comma that 2.28.7 to 2.28.9 leave out."""

from __future__ import annotations

import json
import re

from hangdoctor.collect.ras_answers import NotAnAnswer, read_json
from hangdoctor.parsers.findings import Finding, Where
from hangdoctor.parsers.json_value import as_mapping
from hangdoctor.parsers.ras import findings_of
from hangdoctor.parsers.registry import JsonFormat

_NO_COMMA = re.compile(r'("nvml_dev"\s{0,9}:\s{0,9}-?\d{1,9})(\s{0,200}"status")')


def read(value: object, where: Where) -> tuple[Finding, ...]:
    """The answer and its processes; empty when this is no answer."""
    fields = as_mapping(value)
    if "communicators" not in fields or not {"nccl_version", "ras", "communicators_count"} & fields.keys():
        return ()
    try:
        # The reader of live answers takes text; by now it is small and whole.
        answer = read_json(json.dumps(value), address=str(where), is_partial=False)
    except (NotAnAnswer, ValueError):
        return ()
    return tuple(findings_of(answer, where))


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
