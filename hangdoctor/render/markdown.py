"""The report for a ticket: verdict and reasoning first, everything long folded, never more than GitHub accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hangdoctor.model import Frame
from hangdoctor.render._base import Renderer, RenderOptions
from hangdoctor.render._digest import (
    VERDICT_WORDS,
    Names,
    fold_gaps,
    fold_waits,
    group_state,
    heading,
    looks,
    reasoning,
)
from hangdoctor.render._log_words import said_in_log
from hangdoctor.render._markdown_text import cell, code, details, escape, fence, table
from hangdoctor.render._wording import (
    call,
    clean,
    clip,
    count,
    fold_values,
    gpu_text,
    location,
    progress_text,
    to_ascii,
    utc,
)
from hangdoctor.report import ProcessRow, ProgressClass, Report, ThreadRow

LIMIT = 60_000
"""GitHub refuses a body of more than 65,536 characters; what people write around the report needs room, too."""
_CELL = 160
_SENTENCE = 600
_FOOTER = 2_000


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the page in variants, longest first; the last may be empty. Dropped in the order of `weight`."""

    name: str
    weight: int
    variants: tuple[Callable[[], str], ...]


def render(report: Report, options: RenderOptions) -> str:
    """Write `report` as CommonMark with GFM tables and HTML ``<details>``."""
    sections = _sections(report, Names(report), options.detail)
    texts, shortened = _fit(sections, LIMIT - _FOOTER)
    page = "\n\n".join([*filter(None, texts), _footer(report, shortened)]) + "\n"
    return to_ascii(page) if options.ascii else page


RENDERER = Renderer("markdown", "md", render)


def _sections(report: Report, names: Names, detail: bool) -> list[_Section]:
    def section(name: str, weight: int, *variants: Callable[[], str]) -> _Section:
        return _Section(name, weight, variants)

    def none() -> str:
        return ""

    threads: list[Callable[[], str]] = [
        lambda: _threads(report.processes, names, 1 << 30),
        lambda: _threads(report.processes, names, 12),
        lambda: _threads(_culprit_rows(report, names), names, 40),
        none,
    ]
    return [
        section("the verdict", 99, lambda: _verdict(report, names, _SENTENCE), lambda: _verdict(report, names, 100)),
        section("groups of ranks", 90, lambda: _groups(report, 40), lambda: _groups(report, 12), none),
        section("waits", 80, lambda: _waits(report, names, 20), lambda: _waits(report, names, 8), none),
        section("the culprits' stacks", 85, lambda: _culprit_stacks(report, names, 4, 60),
                lambda: _culprit_stacks(report, names, 1, 24), none),
        section("the environment", 60, lambda: _environment(report, 40), lambda: _environment(report, 8), none),
        section("versions", 70, lambda: _versions(report), none),
        section("what was not seen", 75, lambda: _gaps(report, 20), lambda: _gaps(report, 6), none),
        section("next steps", 95, lambda: _next_steps(report), none),
        section("evidence", 65, lambda: _evidence(report, 100), lambda: _evidence(report, 20), none),
        section("the table of ranks", 30, lambda: _ranks(report, names, 1024), lambda: _ranks(report, names, 64), none),
        section("stacks of groups", 40, lambda: _group_stacks(report, 100), lambda: _group_stacks(report, 12), none),
        section("stacks of threads", 10, *(threads if detail else threads[2:])),
        section("common variables", 35, lambda: _common_environment(report), none),
        section("the log", 20, lambda: _log(report, 40), lambda: _log(report, 4), none),
    ]  # fmt: skip


def _fit(sections: Sequence[_Section], limit: int) -> tuple[list[str], list[str]]:
    """The longest variants that fit together, and the names of the sections that had to be shortened.

    The least informative sections are shortened first; what then turns out to fit after all (a short log beside a
    long table that went) is put back, the most informative first.
    """
    made: dict[tuple[int, int], str] = {}
    levels = [0] * len(sections)

    def text(index: int, level: int) -> str:
        if (index, level) not in made:
            made[index, level] = sections[index].variants[level]()
        return made[index, level]

    def total() -> int:
        return sum(len(text(index, level)) + 2 for index, level in enumerate(levels))

    order = sorted(range(len(sections)), key=lambda index: sections[index].weight)
    for index in order:
        while total() > limit and levels[index] + 1 < len(sections[index].variants):
            levels[index] += 1
    for index in reversed(order):
        wanted = levels[index]
        for level in range(wanted):
            levels[index] = level
            if total() <= limit:
                break
            levels[index] = wanted
    texts = [text(index, level) for index, level in enumerate(levels)]
    return texts, [section.name for section, level in zip(sections, levels, strict=True) if level]


def _verdict(report: Report, names: Names, limit: int) -> str:
    verdict = report.verdict
    cause = f" · {verdict.cause.value}" if verdict.cause else ""
    lines = [
        f"## {VERDICT_WORDS[verdict.kind]} · {verdict.confidence.value}{cause}",
        f"**{escape(clip(verdict.summary, limit)).rstrip('.')}.**",
    ]
    sentences = [f"{heading(report)}; {looks(report)}."]
    sentences.append(reasoning(report, names))
    if verdict.progress is not None and verdict.progress.kind is not ProgressClass.NONE:
        sentences.append(f"Progress: {progress_text(verdict.progress)}.")
    sentences += [f"Or {alternative}." for alternative in verdict.alternatives[:4]]
    if verdict.refuted_by:
        sentences.append(f"This would be refuted by {'; or '.join(verdict.refuted_by[:4])}.")
    lines.append(" ".join(escape(clip(sentence, limit)) for sentence in sentences if sentence))
    return "\n\n".join(lines)


def _groups(report: Report, limit: int) -> str:
    rows = []
    for group in report.groups[:limit]:
        moved = {True: "yes", False: "no", None: "?"}[group.moved]
        words = ", ".join(filter(None, (group_state(report, group), group.phase)))
        frame = group.frame or next((frame for frame in group.stack if not frame.is_native), None)
        place = cell(clip(call(frame, brief=True), _CELL), is_code=True) if frame else "no stack"
        label = cell(clip(group.label, _CELL))
        rows.append((label, str(group.count), cell(clip(words or "?", _CELL)), place, moved))
    if not rows:
        return ""
    text = table(("ranks", "count", "phase", "in", "moved"), rows)
    return text + _more(len(report.groups) - limit, "group")


def _waits(report: Report, names: Names, limit: int) -> str:
    lines = fold_waits(report, names)
    if not lines:
        return ""
    items = []
    for line in lines[:limit]:
        thing = (
            f" ({code(clip(line.object, _CELL))})" if line.object and line.object not in line.reason else ""
        )
        waiters, holder = escape(clip(line.waiters, _CELL)), escape(clip(line.holder, _CELL))
        reason = escape(clip(line.reason, _CELL))
        items.append(f"- {waiters} → **{holder}**: {reason}{thing}, {line.strength.value}")
    return "### Who waits for whom\n\n" + "\n".join(items) + _more(len(lines) - limit, "wait")


def _culprit_stacks(report: Report, names: Names, limit: int, frames: int) -> str:
    culprits = [culprit for culprit in report.verdict.culprits if culprit.stack]
    parts = []
    for culprit in culprits[:limit]:
        name = escape(clip(names.of_culprit(culprit), _CELL))
        parts.append(f"### Stack of {name}\n\n{fence(_frames(culprit.stack, frames, culprit.frame))}")
    return "\n\n".join(parts) + _more(len(culprits) - limit, "culprit")


def _frames(stack: Sequence[Frame], limit: int, named: Frame | None = None) -> list[str]:
    # Innermost first. The outermost frames are the interpreter's own and go first when space is short.
    lines = []
    for frame in stack[:limit]:
        native = "  [native]" if frame.is_native else ""
        mark = "→ " if frame == named else "  "
        lines.append(clip(f"{mark if named else ''}{clean(frame.function)}  {location(frame)}{native}", 240))
    if len(stack) > limit:
        lines.append(f"… {count(len(stack) - limit, 'outer frame')}")
    return lines


def _environment(report: Report, limit: int) -> str:
    environment = report.nccl_env
    if not environment.differs and not environment.notes:
        return ""
    parts = ["### Communication environment"]
    if environment.differs:
        rows = [
            (cell(clip(name, _CELL), is_code=True), cell(clip(fold_values(values), 2 * _CELL)))
            for name, values in sorted(environment.differs.items())[:limit]
        ]
        parts.append(table(("differs", "values"), rows) + _more(len(environment.differs) - limit, "variable"))
    notes = [f"- {escape(clip(note, _SENTENCE))}" for note in environment.notes[:limit]]
    if notes:
        parts.append("\n".join(notes))
    return "\n\n".join(parts)


def _common_environment(report: Report) -> str:
    common = report.nccl_env.common
    if not common:
        return ""
    lines = [clip(f"{name}={value}", 240) for name, value in sorted(common.items())[:200]]
    return details(f"{count(len(common), 'variable')} equal on all ranks", fence(lines))


def _versions(report: Report) -> str:
    target = report.target
    facts = [f"{clean(name)} {clean(version)}" for name, version in sorted(target.versions.items())[:40]]
    if target.server and target.server not in target.versions:
        facts.insert(0, " ".join(filter(None, (target.server, target.server_version))))
    if target.started_at is not None:
        facts.append(f"started {utc(target.started_at)}")
    command = f"\n\n{fence([clip(target.command, 1500)])}" if target.command else ""
    return f"### Versions\n\n{escape(clip(', '.join(facts), 2000))}{command}" if facts or command else ""


def _gaps(report: Report, limit: int) -> str:
    gaps = fold_gaps(report)
    if not gaps:
        return ""
    items = []
    for gap in gaps[:limit]:
        remedy = f" → {escape(clip(gap.remedy, 2 * _CELL))}" if gap.remedy else ""
        subject = escape(clip(f"{gap.source} on {gap.subjects}", _CELL))
        items.append(f"- {subject}: {escape(clip(gap.reason, 2 * _CELL))}{remedy}")
    return "### Not seen\n\n" + "\n".join(items) + _more(len(gaps) - limit, "gap")


def _next_steps(report: Report) -> str:
    items = [f"Fits a known hang: {escape(clip(match, 2 * _CELL))}" for match in report.matches[:4]]
    for step in report.next_steps[:8]:
        command = f"\n   {code(clip(step.command, _SENTENCE))}" if step.command else ""
        items.append(escape(clip(step.text, _SENTENCE)) + command)
    return (
        "### Next steps\n\n" + "\n".join(f"{n}. {item}" for n, item in enumerate(items, 1)) if items else ""
    )


def _evidence(report: Report, limit: int) -> str:
    if not report.evidence:
        return ""
    items = []
    for piece in report.evidence[:limit]:
        look = f", look {piece.snapshot + 1}" if piece.snapshot is not None else ""
        source = escape(clip(f"{piece.source}{look}", _CELL))
        text = escape(clip(f"{piece.subject}: {piece.text}", _SENTENCE))
        items.append(f"- **{escape(clip(piece.id, 12))}** {text} ({source})")
    body = "\n".join(items) + _more(len(report.evidence) - limit, "piece of evidence", "pieces of evidence")
    return details(f"Evidence ({len(report.evidence)})", body)


def _ranks(report: Report, names: Names, limit: int) -> str:
    if not report.processes:
        return ""
    # Where not all fit, those that the reader looks for come first.
    first = _culprit_rows(report, names) if len(report.processes) > limit else []
    rows = []
    for row in sorted(report.processes, key=lambda row: row not in first)[:limit]:
        cpu = f"{row.cpu_percent:.0f} %" if row.cpu_percent is not None else "?"
        gpu = "; ".join(gpu_text(gpu).removeprefix("GPU ") for gpu in row.gpu[:8]) or "–"
        frame = cell(clip(call(row.frame, brief=True), 80), is_code=True) if row.frame else "–"
        title = f" {cell(clip(row.title, 40), is_code=True)}" if row.title else ""
        name, phase = cell(clip(names.of_row(row), 80)) + title, cell(clip(row.phase or "?", 80))
        rows.append((name, cell(clip(row.state or "?", 20)), phase, frame, cpu, cell(clip(gpu, 80))))
    text = table(("process", "state", "phase", "in", "CPU", "GPU"), rows)
    more = _more(len(report.processes) - limit, "process", "processes")
    return details(f"All processes ({len(report.processes):,})", text + more)


def _group_stacks(report: Report, frames: int) -> str:
    blocks = [
        f"{escape(clip(group.label, _CELL))}{_alike(group.count)}\n\n{fence(_frames(group.stack, frames))}"
        for group in report.groups[:40]
        if group.stack
    ]
    return details(f"Stack of each group ({len(blocks)})", "\n\n".join(blocks)) if blocks else ""


def _alike(number: int) -> str:
    return f" ({number:,} alike)" if number > 1 else ""


def _culprit_rows(report: Report, names: Names) -> list[ProcessRow]:
    rows = (names.row(culprit.pid, culprit.host) for culprit in report.verdict.culprits[:4])
    return [row for row in rows if row is not None]


def _threads(rows: Sequence[ProcessRow], names: Names, frames: int) -> str:
    blocks = []
    for row in rows:
        lines = [
            line for thread in row.threads if not thread.is_machinery for line in _thread(thread, frames)
        ]
        helpers = sum(thread.is_machinery for thread in row.threads)
        if helpers:
            lines.append(f"and {count(helpers, 'helper thread')} of its libraries")
        if lines:
            blocks.append(f"{escape(clip(names.of_row(row), _CELL))}\n\n{fence(lines)}")
    return (
        details(f"Threads of {count(len(blocks), 'process', 'processes')}", "\n\n".join(blocks))
        if blocks
        else ""
    )


def _thread(thread: ThreadRow, frames: int) -> list[str]:
    facts = filter(None, (thread.state, thread.activity, thread.phase, thread.waits_on))
    name = thread.name or f"thread {thread.tid}"
    head = clip(f"{clean(name)}: {clean(', '.join(facts))}", 240)
    return [head, *(f"  {line}" for line in _frames(thread.stack, frames))]


def _log(report: Report, limit: int) -> str:
    said = "".join(
        f"{escape(clip(head, _CELL))}:\n\n{fence([clip(line, 400)])}\n\n"
        for head, line in said_in_log(report, with_newest=False)
    )
    lines = [clip(line, 400) for line in report.log_tail[-limit:]]
    tail = details(f"End of the log ({count(len(lines), 'line')})", fence(lines)) if lines else ""
    return (said + tail).rstrip()


def _footer(report: Report, shortened: Sequence[str]) -> str:
    lines = []
    if shortened:
        where = f"the bundle {code(clip(report.bundle, _CELL))}" if report.bundle else "the JSON report"
        lines.append(
            f"Shortened to stay below {LIMIT:,} characters: {', '.join(shortened)}. All of it is in {where}."
        )
    knowledge = f", knowledge {escape(clip(report.knowledge, 40))}" if report.knowledge else ""
    bundle = f" · capture {code(clip(report.bundle, _CELL))}" if report.bundle else ""
    masked = f" · masked: {escape(', '.join(report.redacted))}" if report.redacted else ""
    lines.append(f"hangdoctor {escape(clip(report.tool_version, 40))}{knowledge}{bundle}{masked}")
    return "---\n\n" + "\n\n".join(lines)


def _more(hidden: int, noun: str, plural: str | None = None) -> str:
    return (
        f"\n\n… and {count(hidden, f'more {noun}', f'more {plural}' if plural else None)}"
        if hidden > 0
        else ""
    )
