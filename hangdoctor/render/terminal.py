"""The report on a terminal: the most important lines last, where the eye is when the prompt comes back.

Words are wrapped, never cut: a path that is longer than the line hangs over, so that it can be copied. rich colours
the lines; its tables are not used, because they shorten cells with an ellipsis where the width is unknown.
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from hangdoctor.model import Frame
from hangdoctor.render._base import Renderer, RenderOptions
from hangdoctor.render._digest import VERDICT_WORDS, Names, fold_gaps, fold_waits, group_state, heading, looks
from hangdoctor.render._log_words import said_in_log
from hangdoctor.render._wording import (
    bar,
    brief_stack,
    call,
    clean,
    clip,
    count,
    duration,
    fold_labels,
    fold_values,
    gpu_text,
    location,
    progress_text,
    to_ascii,
    without_reasons,
)
from hangdoctor.report import Culprit, Group, Kind, ProcessRow, Report, ThreadRow

_KIND_STYLE = {Kind.HUNG: "red", Kind.SLOW: "yellow", Kind.READY: "green", Kind.UNKNOWN: "magenta"}
_SHOWN_FRAMES = 7
_SHOWN_WAITS = 6
_SHOWN_EVIDENCE = 5
_SHOWN_GAPS = 3
_SHOWN_GROUPS = 12
_SHOWN_STEPS = 3
_ALL = 1 << 30
_WORDS = re.compile(r"\s*\S+")


def render(report: Report, options: RenderOptions) -> str:
    """Draw `report` for a terminal of ``options.width`` columns (40 at least)."""
    page = _Page(report, options)
    text = page.draw()
    return to_ascii(text) if options.ascii else text


RENDERER = Renderer("terminal", "txt", render)


def wrap(text: Text, width: int) -> list[Text]:
    """Break at blanks only: a word longer than `width` cells keeps its line to itself and hangs over."""
    breaks, used = [], 0
    for word in _WORDS.finditer(text.plain):
        blanks = len(word[0]) - len(word[0].lstrip())
        size = cell_len(word[0])
        if used and used + size > width:
            breaks.append(word.start() + blanks)
            used = size - blanks
        else:
            used += size
    lines = list(text.divide(breaks))
    for line in lines:
        line.rstrip()
    return lines


class _Page:
    def __init__(self, report: Report, options: RenderOptions) -> None:
        self.report = report
        self.names = Names(report)
        self.detail = options.detail
        # Beyond 120 columns lines become hard to follow with the eye, and tables fall apart.
        self.width = min(max(options.width, 40), 120)
        self.lines: list[Text] = []
        # Everything that rich would otherwise ask the environment for is given: rendering is a pure function.
        self._console = Console(
            file=io.StringIO(),
            width=self.width,
            color_system="standard" if options.color else None,
            force_terminal=options.color,
            no_color=not options.color,
            markup=False,
            highlight=False,
            emoji=False,
            legacy_windows=False,
            _environ={},
        )

    def draw(self) -> str:
        self._heading()
        self._groups()
        self._waits()
        self._evidence()
        self._not_seen()
        self._environment()
        self._stacks()
        self._log()
        if self.detail:
            self._processes()
        self._next_steps()
        self._verdict()
        if self._console.no_color:
            return "".join(f"{line.plain}\n" for line in self.lines)
        with self._console.capture() as captured:
            for line in self.lines:
                self._console.print(line, soft_wrap=True)
        return captured.get()

    # -- layout -----------------------------------------------------------------------------------

    def blank(self) -> None:
        if self.lines and self.lines[-1].plain:
            self.lines.append(Text())

    def put(self, *parts: str | tuple[str, str], indent: int = 0, hanging: int | None = None) -> None:
        """A paragraph of styled parts; continuation lines are indented by `hanging`."""
        hanging = indent if hanging is None else hanging
        text = Text.assemble(*parts)
        wrapped = wrap(text, self.width - max(indent, hanging))
        for number, line in enumerate(wrapped):
            self.lines.append(Text(" " * (hanging if number else indent)).append_text(line))

    def row(self, cells: Iterable[Text], widths: Iterable[int], indent: int = 2) -> None:
        """Cells side by side, each wrapped in its own column."""
        sizes = list(widths)
        columns = [wrap(cell, size) for cell, size in zip(cells, sizes, strict=True)]
        for parts in zip_longest(*columns, fillvalue=None):
            line = Text(" " * indent)
            for part, size in zip(parts, sizes, strict=True):
                cell = part or Text()
                line.append_text(cell).append(" " * (max(size - cell_len(cell.plain), 0) + 2))
            line.rstrip()
            self.lines.append(line)

    def limit(self, shown: int) -> int:
        return _ALL if self.detail else shown

    def rest(self, hidden: int, noun: str, indent: int = 2) -> None:
        if hidden > 0:
            self.put((f"… {count(hidden, f'more {noun}')} (--detail)", "dim"), indent=indent)

    # -- sections ---------------------------------------------------------------------------------

    def _heading(self) -> None:
        left, right = heading(self.report), looks(self.report)
        space = self.width - cell_len(left) - cell_len(right)
        if space >= 2:
            self.put((left, "bold"), " " * space, (right, "dim"))
        else:
            self.put((left, "bold"))
            self.put((right, "dim"))
        if self.detail and self.report.target.command:
            self.put((clean(self.report.target.command), "dim"), indent=2, hanging=4)
        if self.detail and self.report.target.versions:
            versions = (f"{clean(k)} {clean(v)}" for k, v in sorted(self.report.target.versions.items()))
            self.put((", ".join(versions), "dim"), indent=2, hanging=4)

    def _groups(self) -> None:
        groups = self.report.groups
        if not groups:
            return
        self.blank()
        culprits = {culprit.rank.label for culprit in self.report.verdict.culprits if culprit.rank}
        labels = [clip(group.label, 60) for group in groups]
        first = min(max(map(cell_len, labels), default=5), self.width // 4)
        first = max(first, len("ranks"))
        widths = (first, self.width - first - 12, 6)
        self.row((Text("ranks", "dim"), Text("doing", "dim"), Text("moved", "dim")), widths)
        shown = self.limit(_SHOWN_GROUPS)
        for group, label in list(zip(groups, labels, strict=True))[:shown]:
            is_culprit = not culprits.isdisjoint(group.ranks)
            style = _KIND_STYLE[self.report.verdict.kind] if is_culprit else ""
            moved = {True: "yes", False: "no", None: "?"}[group.moved]
            self.row((Text(label, style), self._doing(group, style), Text(moved, style)), widths)
        self.rest(len(groups) - shown, "group")

    def _doing(self, group: Group, style: str) -> Text:
        state = group_state(self.report, group)
        words = ", ".join(clean(word) for word in (state, group.phase) if word)
        parts = [(words, style)] if words else []
        frame = group.frame or next((frame for frame in group.stack if not frame.is_native), None)
        if frame is None and group.stack:
            frame = group.stack[0]
        if frame is not None:
            parts.append((f"{'  ' if parts else ''}{call(frame, brief=True)}", "dim" if parts else style))
        return Text.assemble(*parts) if parts else Text("no stack", "dim")

    def _waits(self) -> None:
        lines = fold_waits(self.report, self.names)
        if not lines:
            return
        self.blank()
        shown = self.limit(_SHOWN_WAITS)
        for line in lines[:shown]:
            thing = f" ({line.object})" if line.object and line.object not in line.reason else ""
            sure = "" if line.strength.value == "certain" else f" [{line.strength.value}]"
            self.put(
                (line.waiters, "bold"), " ──waits for──▶ ", (line.holder, "bold"),
                (f"  {line.reason}{thing}{sure}", "dim"),
                indent=2, hanging=6,
            )  # fmt: skip
        self.rest(len(lines) - shown, "wait")

    def _evidence(self) -> None:
        evidence = self.report.evidence
        if not evidence:
            return
        self.blank()
        # What the verdict cites comes first; the rest is there for --detail.
        cited = {name for culprit in self.report.verdict.culprits for name in culprit.evidence}
        ordered = sorted(evidence, key=lambda piece: piece.id not in cited)
        chosen = {piece.id for piece in ordered[: self.limit(_SHOWN_EVIDENCE)]}
        margin = max(map(len, chosen)) + 2
        subject = None
        for piece in (piece for piece in evidence if piece.id in chosen):
            # The subject is named once for all that follows about it.
            who = "" if piece.subject == subject else f"{clean(piece.subject)}: "
            subject = piece.subject
            look = f", look {piece.snapshot + 1}" if piece.snapshot is not None else ""
            text = clean(piece.text) if self.detail else clip(brief_stack(piece.text), 240)
            source = (f" ({clean(piece.source)}{look})", "dim")
            self.put((piece.id.ljust(margin), "cyan"), who, text, source, hanging=margin)
        self.rest(len(evidence) - len(chosen), "observation", 0)

    def _not_seen(self) -> None:
        gaps = fold_gaps(self.report)
        if not gaps:
            return
        self.blank()
        self.put(("Not seen", "bold"))
        shown = self.limit(_SHOWN_GAPS)
        for gap in gaps[:shown]:
            remedy = f" → {gap.remedy}" if gap.remedy else ""
            self.put(f"{gap.source} on {gap.subjects}: {gap.reason}", (remedy, "cyan"), indent=2, hanging=4)
        self.rest(len(gaps) - shown, "gap")

    def _environment(self) -> None:
        environment = self.report.nccl_env
        if not (environment.differs or environment.notes or (self.detail and environment.common)):
            return
        self.blank()
        self.put(("Communication environment", "bold"))
        for name, values in sorted(environment.differs.items())[: self.limit(4)]:
            self.put((f"{clean(name)} differs: ", "yellow"), fold_values(values), indent=2, hanging=4)
        # A note on a variable that was just shown says nothing new on a screen that is short of lines.
        notes = [
            n for n in environment.notes if self.detail or not any(name in n for name in environment.differs)
        ]
        for note in notes[: self.limit(3)]:
            self.put(clean(note), indent=2, hanging=4)
        if self.detail:
            for name, value in sorted(environment.common.items()):
                self.put(f"{clean(name)}={clean(value)}", indent=2, hanging=4)

    def _stacks(self) -> None:
        alike: dict[tuple[Frame, ...], list[Culprit]] = defaultdict(list)
        for culprit in self.report.verdict.culprits:
            if culprit.stack:
                alike[culprit.stack].append(culprit)
        shown = self.limit(2 if self.report.verdict.kind is Kind.HUNG and len(alike) == 2 else 1)
        for stack, culprits in list(alike.items())[:shown]:
            self.blank()
            names = [self.names.of_culprit(culprit) for culprit in culprits[:2]]
            more = f" and {len(culprits) - 2:,} more" if len(culprits) > 2 else ""
            self.put((f"Stack of {' and '.join(names)}{more}", "bold"), (", innermost first", "dim"))
            self._frames(stack, culprits[0].frame, self.limit(_SHOWN_FRAMES))
        self.rest(len(alike) - shown, "stack", 0)

    def _frames(self, stack: tuple[Frame, ...], named: Frame | None, limit: int, indent: int = 2) -> None:
        shown = list(folded_frames(stack, named, limit))
        margin = min(
            max((cell_len(clean(f.function)) for _, f in shown if f is not None), default=0), self.width // 3
        )
        for number, frame in shown:
            if frame is None:
                self.put((f"… {count(number, 'frame')} (--detail)", "dim"), indent=indent)
                continue
            function = clean(frame.function)
            function += " " * (max(margin - cell_len(function), 0) + 2)
            native = "  [native]" if frame.is_native else ""
            style = "bold" if frame == named else ""
            self.put(
                (function, style), (f"{location(frame)}{native}", "dim"), indent=indent, hanging=indent + 4
            )

    def _log(self) -> None:
        tail = self.report.log_tail
        self.blank()
        for head, line in said_in_log(self.report, with_newest=not self.detail):
            self.put((f"{clean(head)}  ", "bold"), clip(line, 2 * self.width), hanging=2)
        if not tail or not self.detail:
            return
        self.put(("End of the log", "bold"))
        for line in tail:
            self.put(clean(line), indent=2, hanging=4)

    def _processes(self) -> None:
        self.blank()
        self.put(("All processes", "bold"))
        for row in self.report.processes:
            self._process(row)

    def _process(self, row: ProcessRow) -> None:
        cpu = f"CPU {row.cpu_percent:.0f} %" if row.cpu_percent is not None else ""
        facts = [f"state {row.state}" if row.state else "", row.phase or "", row.activity or "", cpu]
        self.put(
            (self.names.of_row(row), "bold"), ": ", clean(", ".join(filter(None, facts))), indent=2, hanging=6
        )
        if row.command:
            self.put((clean(row.command), "dim"), indent=4, hanging=6)
        if row.progress is not None:
            self.put(progress_text(row.progress), indent=4, hanging=6)
        for gpu in row.gpu:
            self.put((gpu_text(gpu), "dim"), indent=4, hanging=6)
        idle = [thread for thread in row.threads if thread.is_machinery]
        alike: dict[object, list[ThreadRow]] = defaultdict(list)
        for thread in row.threads:
            if not thread.is_machinery:
                # Pools of equal threads wait on objects of their own; that is no difference worth a stack each.
                alike[thread.stack, thread.state, thread.activity, thread.phase].append(thread)
        for threads in alike.values():
            self._threads(threads)
        if idle:
            self.put((f"and {count(len(idle), 'helper thread')} of its libraries", "dim"), indent=4)

    def _threads(self, threads: list[ThreadRow]) -> None:
        """One thread, or several of the same stack under all their names."""
        thread = threads[0]
        names = fold_labels(clean(thread.name or f"thread {thread.tid}") for thread in threads)
        waits = thread.waits_on if len({thread.waits_on for thread in threads}) == 1 else None
        facts = [thread.state or "", thread.activity or "", thread.phase or "", waits or ""]
        self.put((names, "cyan"), ": ", clean(", ".join(filter(None, facts))), indent=4, hanging=8)
        self._frames(thread.stack, None, _ALL, indent=6)

    def _next_steps(self) -> None:
        if not self.report.next_steps and not self.report.matches:
            return
        self.blank()
        self.put(("Next", "bold"))
        for match in self.report.matches[: self.limit(2)]:
            text = clean(match) if self.detail else clip(without_reasons(match), 150)
            self.put(f"Fits a known hang: {text}", indent=2, hanging=4)
        for step in self.report.next_steps[: self.limit(_SHOWN_STEPS)]:
            self.put(clean(step.text), indent=2, hanging=4)
            if step.command:
                self.put(("$ " + clean(step.command), "cyan"), indent=4, hanging=6)

    def _verdict(self) -> None:
        verdict = self.report.verdict
        style = _KIND_STYLE[verdict.kind]
        self.blank()
        if self.report.bundle:
            self.put(("capture ", "dim"), clean(self.report.bundle))
        self.lines.append(Text("─" * self.width, style))
        cause = f" · {verdict.cause.value}" if verdict.cause else ""
        word = f" {VERDICT_WORDS[verdict.kind]} "
        self.put((word, f"bold white on {style}" if style == "red" else f"bold black on {style}"),
                 (f" {verdict.confidence.value}{cause}", style))  # fmt: skip
        if verdict.progress is not None and verdict.progress.percent is not None:
            left = verdict.progress.eta_s
            eta = f"  about {duration(left)} left" if left is not None else ""
            self.put(
                (f"{bar(verdict.progress.percent)} {verdict.progress.percent:.0f} %{eta}", style), indent=1
            )
        self.put((clip(verdict.summary, 600), "bold"), indent=1)
        for alternative in verdict.alternatives[: self.limit(2)]:
            self.put(("or ", "dim"), clean(alternative), indent=1, hanging=4)
        if verdict.refuted_by:
            self.put(
                ("Would be refuted by: ", "dim"), clean("; or ".join(verdict.refuted_by)), indent=1, hanging=3
            )


def folded_frames(
    stack: tuple[Frame, ...], named: Frame | None, limit: int
) -> Iterator[tuple[int, Frame | None]]:
    """The frames worth a line each: innermost ones, the one that is named, the outermost; gaps as ``(n, None)``."""
    if len(stack) <= limit + 1:
        yield from enumerate(stack)
        return
    kept = set(range(limit - 2)) | {len(stack) - 1}
    kept.add(stack.index(named) if named in stack else limit - 2)
    previous = -1
    for index in sorted(kept):
        if index > previous + 1:
            yield index - previous - 1, None
        yield index, stack[index]
        previous = index
