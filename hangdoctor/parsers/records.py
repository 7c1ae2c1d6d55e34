"""The head of one log record: when, and by whose logger. Unlike a prefix it stands on the first line only."""

from __future__ import annotations

import re
from typing import NamedTuple

_SGLANG = r"\[(?P<sglang>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)(?P<label>(?: [A-Z_]{1,8}\d+){0,8})\] "
_RECORD = re.compile(
    "|".join(
        (
            _SGLANG,
            r"\[(?P<torch>[IWEF]\d{3,4} \d\d:\d\d:\d\d\.\d+) [\w.\-]+:\d+\] ?",
            r"(?P<vllm>(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d) \[[\w./\-]+:\d+\] ?",
            r"(?P<glog>[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+) +\d+ [\w.\-]+:\d+\] ",
            r"\[?(?P<plain>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\]? ?",
        )
    )
)
_FIRST = frozenset("[IWED0123456789C")
_GLUED = re.compile(_SGLANG)


class Record(NamedTuple):
    """A record head and the message after it."""

    stamp: str
    label: str | None
    """``TP0``, ``DP3 TP7``, where the logger says so."""
    text: str


def split_record(line: str) -> Record | None:
    """The head of the record that begins with this line; ``None`` for any other line.

    A record glued to the end of a progress bar (``0/23 [00:00<?][2025-03-03 18:46:44 TP3] Capture …``) counts.
    """
    found = _RECORD.match(line) if line[:1] in _FIRST else None
    if found is None and "[20" in line:
        found = _GLUED.search(line, max(0, line.find("[20")))
    if found is None:
        return None
    kind = found.lastgroup or ""
    if kind == "label":
        return Record(found["sglang"], found["label"].strip() or None, line[found.end() :])
    return Record(found[kind], None, line[found.end() :])
