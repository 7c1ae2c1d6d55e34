"""What the sections of the HTML page show, prepared from a report: plain records, no markup."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hangdoctor.model import Frame
from hangdoctor.render._digest import Names
from hangdoctor.render._stack_tree import Branch, build_tree, first_difference, lead_stack
from hangdoctor.render._wording import clean, fold_labels, progress_text
from hangdoctor.report import Group, ProcessRow, Progress, Report, ThreadRow

_MOST_ROWS = 48
_MOST_LOOKS = 40
_MOST_COLUMNS = 6
_MOST_TREE_LINES = 300
_MOST_GPUS = 64
_MOST_THREADS = 240
"""Threads are most of the page: 8 ranks of 200 threads would be 4 MB of stacks that are nearly all alike."""
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


# -- stacks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StackLine:
    """A frame in a column, outermost frames at the bottom."""

    frame: Frame
    is_different: bool
    """The outermost frame that the column does not share with the one it is compared to."""
    is_shared: bool


@dataclass(frozen=True, slots=True)
class StackColumn:
    """The stack of one group."""

    group: Group
    lines: tuple[StackLine, ...]
    is_culprit: bool


def stack_columns(report: Report) -> tuple[StackColumn, ...]:
    """Stacks side by side: the culprits' first, then the largest groups of ranks, each compared to the first."""
    ranks = {row.rank.label for row in report.processes if row.rank is not None}
    culprits = {culprit.rank.label for culprit in report.verdict.culprits if culprit.rank is not None}
    groups = [group for group in report.groups if group.stack and not ranks.isdisjoint(group.ranks)]
    groups = groups or [group for group in report.groups if group.stack]
    groups.sort(key=lambda group: (culprits.isdisjoint(group.ranks), -group.count))
    columns = []
    for position, group in enumerate(groups[:_MOST_COLUMNS]):
        other = groups[0] if position else (groups[1] if len(groups) > 1 else group)
        split = first_difference(group.stack, other.stack)
        lines = tuple(
            StackLine(frame, index == split, split is None or index > split)
            for index, frame in enumerate(group.stack)
        )
        columns.append(StackColumn(group, lines, not culprits.isdisjoint(group.ranks)))
    return tuple(columns)


@dataclass(frozen=True, slots=True)
class TreeLine:
    """Calls of the prefix tree that share a set of ranks."""

    depth: int
    frames: tuple[Frame, ...]
    label: str
    count: int
    is_leaf: bool


def tree_lines(report: Report, names: Names) -> tuple[TreeLine, ...]:
    """The prefix tree of all ranks' leading stacks, outermost first, larger branches first."""
    ranked = [row for row in report.processes if row.rank is not None] or list(report.processes)
    tree = build_tree((names.short(row.pid, row.host, row.rank, row.role), lead_stack(row)) for row in ranked)
    lines: list[TreeLine] = []
    work: list[tuple[int, Branch]] = [(0, branch) for branch in sorted(tree, key=lambda b: len(b.labels))]
    while work and len(lines) < _MOST_TREE_LINES:
        depth, branch = work.pop()
        label = fold_labels(branch.labels, limit=60)
        lines.append(TreeLine(depth, tuple(branch.frames), label, len(branch.labels), not branch.children))
        work += [(depth + 1, child) for child in sorted(branch.children, key=lambda b: len(b.labels))]
    return tuple(lines)


@dataclass(frozen=True, slots=True)
class ThreadsOfProcess:
    """Threads of a process, those with equal stacks together."""

    name: str
    row: ProcessRow
    threads: tuple[tuple[ThreadRow, int], ...]
    """A thread and how many have its stack."""
    helpers: int


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads of the processes that there is room for."""

    processes: tuple[ThreadsOfProcess, ...]
    hidden: int


def threads(report: Report, names: Names, *, everything: bool) -> Threads:
    """Culprits first, then one process of each shape until there is no room; with `everything` all."""
    culprits = {(culprit.host, culprit.pid) for culprit in report.verdict.culprits}
    shapes: Counter[object] = Counter()
    ordered = []
    for row in report.processes:
        shape = (row.role, row.phase, row.frame)
        shapes[shape] += 1
        ordered.append(((row.host, row.pid) not in culprits, shapes[shape] > 1, row))
    ordered.sort(key=lambda item: item[:2])
    room = len(report.processes) * 10_000 if everything else _MOST_THREADS
    shown = []
    for _, _, row in ordered:
        process = _threads_of(row, names)
        if len(process.threads) > room:
            break
        room -= max(len(process.threads), 1)
        shown.append(process)
    return Threads(tuple(shown), len(ordered) - len(shown))


def _threads_of(row: ProcessRow, names: Names) -> ThreadsOfProcess:
    alike: dict[object, list[ThreadRow]] = defaultdict(list)
    for thread in row.threads:
        if not thread.is_machinery:
            # A thread without a stack is only like another one of the same name and state.
            alike[thread.stack or (thread.name, thread.state, thread.waits_on)].append(thread)
    folded = tuple((same[0], len(same)) for same in alike.values())
    helpers = sum(thread.is_machinery for thread in row.threads)
    return ThreadsOfProcess(names.of_row(row), row, folded, helpers)


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
