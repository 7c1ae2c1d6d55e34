"""ProcessGroupNCCL's watchdog (also XCCL, HCCL): which work did not finish, and how far each rank had come.

``[rank13]:`` is the global rank, ``[Rank 1]`` the rank within the group; ``PG ID`` is local and not unique, so groups
are named by ``PG GUID``. The line with the operation has no group: it is found in the next line of the same rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from hangdoctor.knowledge.clock import Clock
from hangdoctor.model import FlightEntry, LogMessage
from hangdoctor.parsers.findings import Finding, Sighting, Where
from hangdoctor.parsers.registry import LineFormat

_GROUP_RANK = re.compile(r"\[Rank (\d{1,9})\] $")
_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout: Work\w*\("
    r"(?:SeqNum=(?P<sequence>-?\d{1,18}), )?OpType=(?P<op>\w{1,60})"
    r"(?:, NumelIn=(?P<numel_in>\d{1,18}), NumelOut=(?P<numel_out>\d{1,18}))?"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]{0,200})\])?"
    r"(?:, Timeout\(ms\)=(?P<timeout_ms>\d{1,12}))?\)(?: ran for (?P<elapsed_ms>\d{1,12}) milliseconds)?"
)
_GROUP = re.compile(
    r"\[PG (?:ID (?P<id>\d{1,9}) PG GUID (?P<guid>[^\s()\]]{1,120})(?:\((?P<description>[^)\]]{0,200})\))?"
    r"|(?P<old>[^\s\]]{1,120}))"
    r" Rank (?P<group_rank>\d{1,9})\]\s?"
)
_AT_WORK = re.compile(
    r"(?:at|by watchdog at|Timeout at NCCL) work(?: sequence id)?: (?P<sequence>-?\d{1,18})"
)
_COUNTERS = re.compile(
    r"last enqueued (?:\w+ )?work: (?P<enqueued>-?\d{1,18}), last completed (?:\w+ )?work: (?P<completed>-?\d{1,18})",
    re.IGNORECASE,
)
_SIGNAL_FROM = re.compile(
    r"(?:dump signal|timeout)[^.]{0,80}? from {1,2}(?:rank (?P<rank>\d{1,9})|this local rank)"
)
_STUCK = re.compile(r"watchdog got stuck for (?P<seconds>\d{1,9}) seconds")
_SINGLE = (
    ("nccl.signal-seen", "Observed flight recorder dump signal from another rank"),
    ("nccl.first-to-signal", "First PG on this rank to signal dumping"),
    ("nccl.no-recorder", "Stack trace of the failed collective not found"),
    ("nccl.watchdog-ended", "watchdog thread terminated with exception"),
)
_MOST_RANKS, _MOST_WORKS = 200_000, 16


@dataclass(slots=True)
class _Group:
    """How far one rank has come in one process group."""

    description: str | None = None
    completed: int | None = None
    enqueued: int | None = None
    pending: FlightEntry | None = None


@dataclass(slots=True)
class _Rank:
    line: int
    groups: dict[str, _Group] = field(default_factory=dict)
    timeouts: list[LogMessage] = field(default_factory=list)
    """Still without their group."""
    works: set[str] = field(default_factory=set)


class WatchdogReader:
    """Reads all watchdog lines of an input."""

    def __init__(self) -> None:
        self._ranks: dict[str, _Rank] = {}
        self._done: list[LogMessage] = []
        self._clock = Clock()
        self._file = ""

    def read(self, text: str, where: Where, label: str | None) -> Iterable[Finding] | None:
        """Take one line; time-outs are reported at the end, when their group is known."""
        self._file = where.file
        start = text.find("Watchdog caught")
        timeout = _TIMEOUT.match(text, start) if start >= 0 else None
        if timeout is not None:
            before = _GROUP_RANK.search(text[max(0, start - 20) : start])
            return self._timeout(timeout, before[1] if before else None, text, where, label)
        group = _GROUP.search(text)
        counters = _COUNTERS.search(text)
        if group is None and counters is None:
            return None
        if label is None and group is not None:
            label = f"rank {int(group['group_rank'])}"
        fields = _group_fields(group, label)
        if counters is not None:
            return (self._status(counters, group, fields, text, where, label),)
        stuck = _STUCK.search(text)
        if stuck is not None:
            fields["seconds"] = stuck["seconds"]
            return (LogMessage("nccl.watchdog-stuck", text[:600], label, fields, where.line),)
        for kind, words in _SINGLE:
            if words in text:
                return (LogMessage(kind, text[:600], label, fields, where.line),)
        if label is not None and group is not None:
            self._group(label, fields["group"], where.line or 0).description = group["description"]
        return ()

    # -- lines -------------------------------------------------------------------------------------

    def _timeout(
        self, found: re.Match[str], group_rank: str | None, text: str, where: Where, label: str | None
    ) -> tuple[Finding, ...]:
        if label is None and group_rank is not None:
            label = f"rank {int(group_rank)}"
        fields = {name: value for name, value in found.groupdict().items() if value is not None}
        if group_rank is not None:
            fields["group_rank"] = group_rank
        if label is not None and label.startswith("rank "):
            fields["rank"] = label.removeprefix("rank ")
        moment = self._clock.read(text)
        if moment is not None:
            fields["time_s"] = f"{moment.seconds:.6f}"
            if found["elapsed_ms"]:
                fields["started_s"] = f"{moment.seconds - int(found['elapsed_ms']) / 1000:.6f}"
        message = LogMessage("nccl.timeout", text[:600], label, fields, where.line)
        rank = self._rank(label, where.line or 0)
        if rank is None:
            return (message,)
        # The watchdog repeats itself when its thread ends; the same work is told once.
        work = f"{fields.get('sequence')} {fields['op']}"
        if work not in rank.works and len(rank.works) < _MOST_WORKS:
            rank.works.add(work)
            rank.timeouts.append(message)
        return ()

    def _status(
        self,
        counters: re.Match[str],
        group: re.Match[str] | None,
        fields: dict[str, str],
        text: str,
        where: Where,
        label: str | None,
    ) -> LogMessage:
        at = _AT_WORK.search(text)
        fields["last_enqueued"], fields["last_completed"] = counters["enqueued"], counters["completed"]
        signal = _SIGNAL_FROM.search(text)
        if at is not None:
            fields["sequence"] = at["sequence"]
        if signal is not None and at is None:
            fields["reason"] = "signal"
            if signal["rank"]:
                fields["signalled_by"] = signal["rank"]
        if label is not None and "group" in fields:
            state = self._group(label, fields["group"], where.line or 0)
            state.description = group["description"] if group else None
            state.enqueued, state.completed = int(counters["enqueued"]), int(counters["completed"])
            self._link(self._ranks[label], state, fields)
        return LogMessage("nccl.status", text[:600], label, fields, where.line)

    def _link(self, rank: _Rank, state: _Group, fields: dict[str, str]) -> None:
        """Give the time-out that was told just before its group."""
        for message in rank.timeouts:
            if message.fields.get("sequence") == fields.get("sequence"):
                rank.timeouts.remove(message)
                self._settle(message, state, fields["group"], fields.get("group_id"))
                return

    def _settle(self, message: LogMessage, state: _Group, group: str, group_id: str | None) -> None:
        fields = {**message.fields, "group": group}
        if group_id is not None:
            fields["group_id"] = group_id
        self._done.append(replace(message, fields=fields))
        state.pending = _pending(message, group)

    def _rank(self, label: str | None, line: int) -> _Rank | None:
        if label is None or (label not in self._ranks and len(self._ranks) >= _MOST_RANKS):
            return None
        return self._ranks.setdefault(label, _Rank(line))

    def _group(self, label: str, group: str, line: int) -> _Group:
        rank = self._rank(label, line) or _Rank(line)
        return rank.groups.setdefault(group, _Group())

    # -- result ------------------------------------------------------------------------------------

    def close(self) -> Iterator[Finding]:
        """The time-outs, and one process a rank with what it had completed, begun and enqueued in each group."""
        known = {group for rank in self._ranks.values() for group in rank.groups}
        descriptions = {
            name: group.description
            for rank in self._ranks.values()
            for name, group in rank.groups.items()
            if group.description
        }
        only = next(iter(known)) if len(known) == 1 else "?"
        for rank in self._ranks.values():
            for message in rank.timeouts:
                own = next(iter(rank.groups)) if len(rank.groups) == 1 else only
                self._settle(message, rank.groups.setdefault(own, _Group()), own, None)
            rank.timeouts = []
        yield from self._done
        for label, rank in self._ranks.items():
            flight = tuple(
                entry
                for name, group in rank.groups.items()
                for entry in _entries(name, group, descriptions.get(name))
            )
            if flight:
                yield Sighting(
                    "NCCL watchdog",
                    Where(self._file, rank.line),
                    labels=(label,),
                    flight=flight,
                    is_history=True,
                )


def _group_fields(group: re.Match[str] | None, label: str | None) -> dict[str, str]:
    fields = {}
    if label is not None and label.startswith("rank "):
        fields["rank"] = label.removeprefix("rank ")
    if group is not None:
        fields["group"] = group["guid"] or group["old"]
        fields["group_rank"] = group["group_rank"]
        if group["id"] is not None:
            fields["group_id"] = group["id"]
        if group["description"]:
            fields["group_description"] = group["description"]
    return fields


def _pending(message: LogMessage, group: str) -> FlightEntry:
    fields = message.fields
    sequence, timeout, elapsed = fields.get("sequence"), fields.get("timeout_ms"), fields.get("elapsed_ms")
    return FlightEntry(
        group=group,
        op=fields["op"],
        sequence=int(sequence) if sequence is not None else None,
        state="started",
        age_s=int(elapsed) / 1000 if elapsed else None,
        input_sizes=fields.get("numel_in") or fields.get("shape"),
        output_sizes=fields.get("numel_out"),
        timeout_s=int(timeout) / 1000 if timeout else None,
    )


def _entries(name: str, group: _Group, description: str | None) -> Iterator[FlightEntry]:
    """In order of issue. An operation that the log does not name is ``?``."""
    if group.completed is not None and group.completed >= 0:
        yield FlightEntry(name, "?", group.completed, "completed", group_description=description)
    if group.pending is not None:
        yield replace(group.pending, group_description=description)
    last = max(group.completed or -1, (group.pending.sequence or -1) if group.pending else -1)
    if group.enqueued is not None and group.enqueued > last:
        yield FlightEntry(name, "?", group.enqueued, "scheduled", group_description=description)


FORMATS = (
    LineFormat(
        name="NCCL watchdog",
        summary="ProcessGroupNCCL's watchdog: time-outs and how far each rank had come",
        hints=("Watchdog caught", "[PG ", " work: "),
        reader=WatchdogReader,
        order=10,
        reads_all=True,
    ),
)
