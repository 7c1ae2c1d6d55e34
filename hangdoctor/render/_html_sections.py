"""What the sections of the HTML page show, prepared from a report: plain records, no markup."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hangdoctor.render._digest import Names
from hangdoctor.render._wording import clean, fold_labels, progress_text
from hangdoctor.report import Progress, Report

_MOST_ROWS = 48
_MOST_LOOKS = 40
_MOST_GPUS = 64
COLOURS = 8


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of the reasoning and the evidence that it rests on."""

    text: str
    evidence: tuple[str, ...] = ()


def sentences(report: Report, names: Names) -> tuple[Sentence, ...]:
    """Who does what, and who only waits."""
    verdict = report.verdict
    known = {piece.id for piece in report.evidence}
    found = []
    for culprit in verdict.culprits:
        name = names.of_culprit(culprit)
        comma = "," if ", thread " in name else ""
        cited = tuple(piece for piece in culprit.evidence if piece in known)
        found.append(Sentence(f"{name}{comma} {culprit.doing.rstrip('.')}", cited))
    if verdict.victims:
        labels = [
            names.short(victim.pid, victim.host, victim.rank, victim.role) for victim in verdict.victims
        ]
        verb = "waits" if len(labels) == 1 else "wait"
        of_culprits = {piece for culprit in verdict.culprits for piece in culprit.evidence}
        others = tuple(piece.id for piece in report.evidence if piece.id not in of_culprits)
        found.append(Sentence(f"{fold_labels(labels, limit=160)} only {verb}", others[:4]))
    return tuple(found)


# -- timeline -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Segment:
    """A phase over one or more looks."""

    phase: str | None
    span: int
    colour: int | None


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """Processes that went through the same phases."""

    label: str
    count: int
    segments: tuple[Segment, ...]
    is_culprit: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rows of phases over the times of the looks."""

    times: tuple[str, ...]
    rows: tuple[TimelineRow, ...]
    hidden_rows: int
    every: int
    """Only every n-th look is shown."""


def timeline(report: Report, names: Names) -> Timeline | None:
    """Ranks by time; processes without a rank follow. ``None`` where nobody's phases are known."""
    looks = max((len(row.phases) for row in report.processes), default=0)
    if looks == 0 or not any(phase for row in report.processes for phase in row.phases):
        return None
    every = -(-looks // _MOST_LOOKS)
    shown = list(range(0, looks, every))
    colours: dict[str, int] = {}
    culprits = {(culprit.host, culprit.pid) for culprit in report.verdict.culprits}
    folded: dict[tuple[bool, bool, tuple[str | None, ...]], list[str]] = defaultdict(list)
    for row in report.processes:
        if not any(row.phases) and (row.rank is None or not row.phases):
            continue  # helpers, of which nothing is known and nothing is wanted
        phases = tuple(row.phases[index] if index < len(row.phases) else None for index in shown)
        is_culprit = (row.host, row.pid) in culprits
        label = names.short(row.pid, row.host, row.rank, row.role)
        folded[not is_culprit, row.rank is None, phases].append(label)
    rows = []
    for (is_other, _, phases), labels in sorted(folded.items(), key=lambda item: item[0][:2]):
        segments = tuple(_segments(phases, colours))
        rows.append(TimelineRow(fold_labels(labels, limit=40), len(labels), segments, not is_other))
    return Timeline(_times(report, shown), tuple(rows[:_MOST_ROWS]), max(len(rows) - _MOST_ROWS, 0), every)


def _segments(phases: Sequence[str | None], colours: dict[str, int]) -> Iterable[Segment]:
    start = 0
    for index in range(1, len(phases) + 1):
        if index == len(phases) or phases[index] != phases[start]:
            phase = phases[start]
            colour = colours.setdefault(phase, len(colours) % COLOURS) if phase else None
            yield Segment(phase, index - start, colour)
            start = index


def _times(report: Report, shown: Sequence[int]) -> tuple[str, ...]:
    times = report.timings.snapshots
    first = next((time for time in times if time is not None), None)
    words = []
    for index in shown:
        time = times[index] if index < len(times) else None
        words.append(f"look {index + 1}" if time is None or first is None else f"+{time - first:.3g} s")
    return tuple(words)


# -- numbers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """Processes with the same progress."""

    label: str
    progress: Progress
    text: str


def progress_lines(report: Report, names: Names) -> tuple[ProgressLine, ...]:
    """What moved, by process; equal answers together, the strongest class first."""
    folded: dict[Progress, list[str]] = defaultdict(list)
    for row in report.processes:
        if row.progress is not None:
            folded[row.progress].append(names.short(row.pid, row.host, row.rank, row.role))
    order = list(type(next(iter(folded)).kind)) if folded else []
    ranked = sorted(folded.items(), key=lambda item: order.index(item[0].kind))
    return tuple(
        ProgressLine(fold_labels(labels, limit=60), progress, progress_text(progress))
        for progress, labels in ranked
    )


@dataclass(frozen=True, slots=True)
class GpuLine:
    """GPUs of one process, or of many that look alike."""

    label: str
    index: str
    utilization: float | None
    power: float | None
    limit: float | None
    memory: float | None
    note: str


def gpu_lines(report: Report, names: Names) -> tuple[GpuLine, ...]:
    """One line a process and GPU; many that read alike are one line."""
    lines = [
        _gpu_line(names.short(row.pid, row.host, row.rank, row.role), gpu)
        for row in report.processes
        for gpu in row.gpu
    ]
    if len(lines) <= _MOST_GPUS:
        return tuple(lines)
    alike: dict[object, list[GpuLine]] = defaultdict(list)
    for line in lines:
        # Equal to within what the eye can tell in a bar: 5 %, 25 W, 2 GB.
        steps = ((line.utilization, 5), (line.power, 25), (line.memory, 2e9))
        key = tuple(None if value is None else round(value / step) for value, step in steps)
        alike[line.note, key].append(line)
    folded = [
        replace(
            same[0], label=fold_labels((line.label for line in same), limit=60), index=f"{len(same):,} alike"
        )
        for same in alike.values()
    ]
    return tuple(
        sorted(folded, key=lambda line: line.utilization if line.utilization is not None else -1.0)[
            :_MOST_GPUS
        ]
    )


def _gpu_line(label: str, gpu: object) -> GpuLine:
    values = gpu if isinstance(gpu, dict) else dict(gpu)  # type: ignore[call-overload]

    def number(key: str) -> float | None:
        value = values.get(key)
        return float(value) if isinstance(value, int | float) else None

    utilization, power, limit = number("utilization_percent"), number("power_w"), number("power_limit_w")
    note = ""
    if utilization is not None and power is not None and limit and utilization > 90 and power < 0.3 * limit:
        note = "busy at idle watts: it spins, it does not compute"
    return GpuLine(
        label, clean(str(values.get("index", "?"))), utilization, power, limit, number("memory_bytes"), note
    )
