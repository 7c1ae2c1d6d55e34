"""A report condensed for readers: names of processes, folded waits, folded gaps, facts for a header.

Shared by the formats for people; the JSON format lists everything instead.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hangdoctor.model import Gap, Rank
from hangdoctor.render._wording import clean, count, duration, fold_labels
from hangdoctor.report import Culprit, Group, Kind, Party, ProcessRow, Report, Strength, Wait

_Place = tuple[str | None, int | None]

VERDICT_WORDS: Mapping[Kind, str] = {
    Kind.HUNG: "HUNG",
    Kind.SLOW: "SLOW",
    Kind.READY: "READY",
    Kind.UNKNOWN: "CANNOT TELL",
}


@dataclass(frozen=True, slots=True)
class WaitLine:
    """All waits of one kind for one holder."""

    waiters: str
    holder: str
    reason: str
    object: str | None
    strength: Strength
    count: int


@dataclass(frozen=True, slots=True)
class GapLine:
    """All gaps with one cause."""

    source: str
    subjects: str
    reason: str
    remedy: str | None
    count: int


class Names:
    """How the processes of one report are called: ``TP1 (pid 4902)``, ``TP1 (node3, pid 4902)`` over many hosts."""

    def __init__(self, report: Report) -> None:
        """Index the processes of `report`; a pid alone finds its process only where all run on one host."""
        self._rows: dict[_Place, ProcessRow] = {(row.host, row.pid): row for row in report.processes}
        self._labels: dict[_Place, str] = {
            (party.host, party.pid): party.label
            for wait in report.waits
            for party in (wait.waiter, wait.holder)
            if party is not None and party.label
        }
        self.is_multi_host = len({row.host for row in report.processes}) > 1
        if not self.is_multi_host:
            self._rows.update({(None, row.pid): row for row in report.processes})

    def row(self, pid: int | None, host: str | None = None) -> ProcessRow | None:
        """The process with that pid, if the report has it."""
        return self._rows.get((host, pid)) or self._rows.get((None, pid))

    def short(
        self, pid: int | None, host: str | None = None, rank: Rank | None = None, role: str | None = None
    ) -> str:
        """The rank's label; without a rank what the process is and its pid; without either the pid."""
        row = self.row(pid, host)
        rank = rank or (row.rank if row else None)
        if rank is not None:
            # Without a global rank the label may be equal on two hosts ("local rank 0").
            is_ambiguous = self.is_multi_host and host and rank.global_rank is None
            return clean(f"{host} {rank.label}" if is_ambiguous else rank.label)
        role = self._labels.get((host, pid)) or role or (row.role if row else None)
        place = f"pid {pid}" if pid is not None else ""
        return clean(" ".join(filter(None, (role, place)))) or "an unknown process"

    def full(
        self, pid: int | None, host: str | None = None, rank: Rank | None = None, role: str | None = None
    ) -> str:
        """The short name with pid, and host where there are several."""
        short = self.short(pid, host, rank, role)
        details = []
        if host and self.is_multi_host and not short.startswith(f"{clean(host)} "):
            details.append(clean(host))
        if pid is not None and not short.endswith(f"pid {pid}"):
            details.append(f"pid {pid}")
        return f"{short} ({', '.join(details)})" if details else short

    def of_row(self, row: ProcessRow) -> str:
        """Full name of a process."""
        return self.full(row.pid, row.host, row.rank, row.role)

    def of_culprit(self, culprit: Culprit) -> str:
        """Full name of a culprit, with its thread unless that is the main one."""
        name = self.full(culprit.pid, culprit.host, culprit.rank, culprit.role)
        is_main = culprit.tid == culprit.pid or culprit.thread in (None, "MainThread")
        return name if is_main else f"{name}, thread {clean(culprit.thread or str(culprit.tid))}"

    def of_party(self, party: Party, *, full: bool = False) -> str:
        """Name of one end of a wait, with its thread unless that is the main one."""
        row = self.row(party.pid, party.host)
        if row is None and party.pid is None:
            return clean(party.label) if party.label else "an unknown process"
        name = (self.full if full else self.short)(party.pid, party.host)
        if party.tid is None or party.tid == party.pid or row is None:
            return name
        thread = next((thread.name for thread in row.threads if thread.tid == party.tid), None)
        return f"{name} thread {clean(thread) if thread else party.tid}"


def fold_waits(report: Report, names: Names) -> list[WaitLine]:
    """Waits of one kind as one line, those furthest from the culprit first, so that the lines read as a chain."""
    distance = _distance_to_sink(report.waits)
    kinds: dict[_Kind, list[Wait]] = defaultdict(list)
    for wait in report.waits:
        kinds[wait.reason, wait.object, wait.strength].append(wait)
    lines = [
        (max(distance.get(_place(wait.waiter), 1 << 30) for wait in waits), line)
        for kind, all_waits in kinds.items()
        for line, waits in _fold_kind(kind, all_waits, names)
    ]
    return [line for _, line in sorted(lines, key=lambda pair: -pair[0])]


_Kind = tuple[str, str | None, Strength]


def _fold_kind(kind: _Kind, waits: list[Wait], names: Names) -> Iterator[tuple[WaitLine, list[Wait]]]:
    """Lines for waits with the same reason: everybody for each other, many for one, one for many."""
    reason, thing, strength = kind
    waiters = {_place(wait.waiter) for wait in waits}
    holders = {_place(wait.holder) for wait in waits if wait.holder is not None}
    parts: dict[tuple[str, ...], list[Wait]] = defaultdict(list)
    if len(waiters) > 2 and waiters == holders and 2 * len(waits) >= len(waiters) * (len(waiters) - 1):
        parts["",] = waits
    elif len(holders) > len(waiters):
        for wait in waits:
            parts["waiter", names.of_party(wait.waiter)].append(wait)
    else:
        for wait in waits:
            parts["holder", _holder(wait, names)].append(wait)
    for (what, *_), part in parts.items():
        who = fold_labels(dict.fromkeys(names.of_party(wait.waiter) for wait in part), limit=60)
        line = WaitLine(
            waiters=who,
            holder=_holders(part, names) if what else "each other",
            reason=clean(reason),
            object=clean(thing) if thing else None,
            strength=strength,
            count=len(part),
        )
        yield line, part


def _holder(wait: Wait, names: Names) -> str:
    return names.of_party(wait.holder, full=True) if wait.holder else "something that was not seen"


def _holders(waits: list[Wait], names: Names) -> str:
    full = dict.fromkeys(_holder(wait, names) for wait in waits)
    if len(full) == 1:
        return next(iter(full))
    return fold_labels(
        dict.fromkeys(names.of_party(wait.holder) if wait.holder else _holder(wait, names) for wait in waits),
        limit=60,
    )


def _place(party: Party) -> _Place:
    return party.host, party.pid


def _distance_to_sink(waits: Iterable[Wait]) -> dict[_Place, int]:
    # Breadth first from those who wait for nobody. Members of a cycle are never reached and sort first.
    waiters_of: dict[_Place, list[_Place]] = defaultdict(list)
    waiting: set[_Place] = set()
    holders: set[_Place] = set()
    for wait in waits:
        holder = _place(wait.holder) if wait.holder else (None, None)
        if holder != _place(wait.waiter):  # two threads of one process are one place
            waiting.add(_place(wait.waiter))
        holders.add(holder)
        waiters_of[holder].append(_place(wait.waiter))
    distance = dict.fromkeys(holders - waiting, 0)
    queue = deque(distance)
    while queue:
        place = queue.popleft()
        for waiter in waiters_of[place]:
            if waiter not in distance:
                distance[waiter] = distance[place] + 1
                queue.append(waiter)
    return distance


def fold_gaps(report: Report) -> list[GapLine]:
    """Gaps with the same source, reason and remedy (but for the pid in it) as one line, the most frequent first."""
    folded: dict[tuple[str, str, str | None], list[Gap]] = defaultdict(list)
    for gap in report.gaps:
        folded[gap.source, gap.reason, _without_pid(gap)].append(gap)
    lines = []
    for (source, reason, anybody), gaps in folded.items():
        # A command for one process can be copied as it stands; for many it says where the pid goes.
        remedy = gaps[0].remedy if len({gap.remedy for gap in gaps}) == 1 else anybody
        subjects = [gap.subject for gap in gaps]
        lines.append(
            GapLine(clean(source), _subjects(subjects), clean(reason), clean(remedy) if remedy else None, len(gaps))
        )  # fmt: skip
    return sorted(lines, key=lambda line: -line.count)


def _without_pid(gap: Gap) -> str | None:
    match = re.fullmatch(r"pid (\d+)", gap.subject)
    if gap.remedy is None or match is None:
        return gap.remedy
    return re.sub(rf"\b{match[1]}\b", "PID", gap.remedy)


def _subjects(subjects: list[str]) -> str:
    # Pids are no coordinates: a range of them ("pid 41-47") would be read as one, so they are listed and counted.
    unique = [clean(subject) for subject in dict.fromkeys(subjects)]
    shown = ", ".join(unique[:3])
    return shown if len(unique) <= 3 else f"{shown} and {len(unique) - 3:,} more"


_STATES = {
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "dead (zombie)",
    "X": "dead",
    "D": "in an uninterruptible wait",
    "gone": "gone",
}


def group_state(report: Report, group: Group) -> str | None:
    """``stopped``, ``gone`` …: what a group's state says beyond its stack; ``None`` for ordinary states."""
    states = {row.state for row in report.processes if row.rank is not None and row.rank.label in group.ranks}
    return _STATES.get(states.pop() or "") if len(states) == 1 else None


def heading(report: Report) -> str:
    """``vLLM 0.32.0, 8 ranks, pid 41822 on node3``."""
    target = report.target
    server = " ".join(filter(None, (target.server, target.server_version))) or "a Python job"
    ranks = sum(1 for row in report.processes if row.rank is not None)
    parts = [clean(server)]
    if target.world_size is not None and target.world_size > 1 and target.world_size != ranks:
        expected = count(target.world_size, "rank")
        parts.append(
            f"{ranks:,} of {expected} seen" if ranks else f"{expected} expected, none with a number yet"
        )
    elif ranks:
        parts.append(count(ranks, "rank"))
    place = f"pid {target.pid}" if target.pid is not None else ""
    hosts = {row.host for row in report.processes if row.host}
    if len(hosts) > 1:
        place = f"{place} on {len(hosts):,} hosts".strip()
    elif target.host:
        place = f"{place} on {clean(target.host)}".strip()
    return ", ".join(part for part in (*parts, place) if part)


def looks(report: Report) -> str:
    """``3 looks over 10 s, never paused``: what was done to the target, and for how long."""
    timings = report.timings
    parts = count(len(timings.snapshots), "look")
    times = [at for at in timings.snapshots if at is not None]
    if len(times) > 1:
        parts += f" over {duration(times[-1] - times[0])}"
    if timings.target_paused_s is None:
        return parts
    paused = duration(timings.target_paused_s)
    return f"{parts}, {'never paused' if timings.target_paused_s == 0 else f'paused for {paused}'}"


def reasoning(report: Report, names: Names) -> str:
    """One paragraph: who does what, who waits for it, and the evidence; text for people, not escaped."""
    sentences = [_culprit_sentence(culprit, names) for culprit in report.verdict.culprits[:4]]
    if len(report.verdict.culprits) > 4:
        sentences.append(f"{len(report.verdict.culprits) - 4:,} more do the same or similar.")
    if report.verdict.victims:
        victims = (names.short(v.pid, v.host, v.rank, v.role) for v in report.verdict.victims)
        verb = "waits" if len(report.verdict.victims) == 1 else "wait"
        sentences.append(f"{fold_labels(victims, limit=120)} only {verb}.")
    return " ".join(sentences)


def _culprit_sentence(culprit: Culprit, names: Names) -> str:
    cited = f" ({', '.join(culprit.evidence)})" if culprit.evidence else ""
    name = names.of_culprit(culprit)
    comma = "," if ", thread " in name else ""
    return f"{name}{comma} {clean(culprit.doing).rstrip('.')}{cited}."
