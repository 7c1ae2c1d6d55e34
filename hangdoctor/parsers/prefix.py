"""Prefixes that collectors of output put before every line: whose line is it, and what did it say?

docker compose, kubectl and stern, container runtimes, journald, srun, mpirun, pdsh and clush, torchrun, Ray, vLLM.
Prefixes nest (a time stamp, then a rank), so they are taken off one after the other.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_MOST_LAYERS = 4
_MOST_STREAMS = 4096


class Stream(NamedTuple):
    """Lines that one process, container or rank wrote, between those of others."""

    label: str | None = None
    pid: int | None = None
    host: str | None = None


class Split(NamedTuple):
    """A line without its prefixes."""

    stream: Stream | None
    text: str
    stamp: str
    """The time stamp that stood before it, or ""."""


# What a line of a dump begins with. The prefixes that could be anything ("3: ", "node3: ") need it behind them.
_DUMP = r"(?=Thread |Process \d|Python v\d|Traceback|Current thread|  +\S|#\d|\[|$)"
_STAMP = (
    # 2025-03-10T16:29:01.123456789Z stdout F   (container runtimes), or a bare stamp
    r"(?P<stamp>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
    r"(?: std(?:out|err) [FP])?(?: (?=\S)| ?(?=  )| ?$)"
)
_TASK = r"(?P<task>\d{1,6}): " + _DUMP
_COMPOSE = r"(?P<compose>[\w.\-]{1,80}) {0,40}\| ?"
_SYSLOG = (
    r"(?P<syslog>(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d{1,2} \d\d:\d\d:\d\d)"
    r" (?P<loghost>[\w.\-]+) [\w.\-/()@]{1,60}(?:\[\d+\])?: "
)
_SSH_HOST = r"(?P<shost>[A-Za-z][\w.]*(?:-[\w.\-]+|\d[\w.]*)): " + _DUMP
_POD = r"\[(?:pod/)?(?P<pod>[\w.\-]+/[\w.\-]+)\] "
_RANK = r"\[(?:rank|default)(?P<rank>\d{1,7})\]:(?: |(?=\[)|$)"
_MPI = r"\[\d{1,7},(?P<mpi>\d{1,7})\]<std(?:out|err)>: ?"
_NAMED = r"\((?P<name>[A-Za-z][\w.]{0,80}) pid=(?P<pid>\d{1,10})(?:, ip=(?P<ip>[\w.:\-]+))?\) "
_DMESG = r"\[ {0,8}\d{1,9}\.\d{6}\] |\[[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4}\] "
_KERNEL = rf"(?P<kernel>{_DMESG})"
_QUOTE = r"(?P<quote>> ?)"


def _alternatives(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_BRACKET, _DIGIT, _WORD = (
    _alternatives(_RANK, _MPI, _POD, _KERNEL),
    _alternatives(_STAMP, _TASK, _COMPOSE),
    _alternatives(_COMPOSE, _SYSLOG, _SSH_HOST),
)
_BY_FIRST = {
    "[": _BRACKET,
    "(": _alternatives(_NAMED),
    ">": _alternatives(_QUOTE),
    **dict.fromkeys("0123456789", _DIGIT),
}
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]{0,200}\x07")
# Beginnings that no prefix has; most lines of a dump.
_PLAIN = ("    ", "\t", "Thread ", "  File ", "Process ", "#")


class Splitter:
    """Takes prefixes off. One object an input: it bounds how many streams there can be."""

    def __init__(self) -> None:
        self._streams: dict[Stream, Stream] = {}

    def split(self, line: str) -> Split:
        """The line without prefixes, whose it is, and when it was written."""
        if line.startswith(_PLAIN) or not line:
            return Split(None, line, "")
        if "\x1b" in line:
            line = _ANSI.sub("", line)
        position, stamp = 0, ""
        label: str | None = None
        pid: int | None = None
        host: str | None = None
        if line.startswith(" "):
            position = len(line) - len(line.lstrip(" "))
        start = position
        for _ in range(_MOST_LAYERS):
            found = _BY_FIRST.get(line[position : position + 1], _WORD).match(line, position)
            if found is None or found.end() == position:
                break
            position = found.end()
            kind = found.lastgroup or ""
            if kind == "stamp":
                stamp = stamp or found["stamp"]
            elif kind == "loghost":
                stamp, host = stamp or found["syslog"], host or found["loghost"]
            elif kind in ("rank", "mpi", "task"):
                label = label or f"rank {int(found[kind])}"
            elif kind in ("pid", "ip"):
                label, pid, host = label or found["name"], int(found["pid"]), host or found["ip"]
            elif kind not in ("quote", "kernel"):
                host = host or found[kind]
        if position == start:
            return Split(None, line, "")
        stream = self._known(Stream(label, pid, host)) if label or pid or host else None
        return Split(stream, line[position:], stamp)

    def _known(self, stream: Stream) -> Stream | None:
        known = self._streams.get(stream)
        if known is None and len(self._streams) < _MOST_STREAMS:
            known = self._streams[stream] = stream
        return known
