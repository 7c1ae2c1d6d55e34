"""What is shown after each look: ranks × phase × progress × since when. Pure, except for remembering since when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hangdoctor.case import Case, Key, Member
from hangdoctor.render._wording import clean, duration, fold_labels, progress_text
from hangdoctor.report import Report
from hangdoctor.watching.cost import Cost

MOST_ROWS = 16
"""More ranks than that are folded by what they do."""


@dataclass(frozen=True, slots=True)
class Row:
    """A rank or supervisor, or several that do the same."""

    label: str
    pid: int | None
    phase: str
    where: str
    progress: str
    since_s: float
    """How long it has been seen in this phase and function."""
    is_culprit: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything a view needs."""

    at: float
    """Unix time of the look."""
    target: str
    verdict: str
    """``hung (certain, lock-cycle)``"""
    summary: str
    rows: tuple[Row, ...]
    stopped_s: float | None
    """Seconds without proof of progress; ``None`` while it moves."""
    probe: str | None
    cost: Cost


Doing = tuple[str | None, str | None]


class Since:
    """Remembers for each process how long it has been doing what it does."""

    def __init__(self) -> None:
        self._began: dict[Key, tuple[Doing, float]] = {}

    def rows(self, case: Case, report: Report, at: float) -> tuple[Row, ...]:
        """One row a rank and supervisor, culprits first; ``at`` in monotonic seconds."""
        guilty = {culprit.pid for culprit in report.verdict.culprits}
        began: dict[Key, tuple[Doing, float]] = {}
        rows = []
        for member in case.principals:
            doing = (
                member.phase.id if member.phase else None,
                member.frame.function if member.frame else None,
            )
            known = self._began.get(member.key)
            began[member.key] = known if known is not None and known[0] == doing else (doing, at)
            rows.append(_row(member, case, at - began[member.key][1], member.pid in guilty))
        self._began = began
        rows.sort(key=lambda row: not row.is_culprit)
        return tuple(rows) if len(rows) <= MOST_ROWS else fold(rows)


def _row(member: Member, case: Case, since_s: float, is_culprit: bool) -> Row:
    state = "gone" if member.is_gone else member.last.state
    phase = member.phase.id if member.phase else "?"
    return Row(
        label=clean(member.label),
        pid=member.pid,
        phase={"gone": "gone", "T": "stopped", "t": "traced", "Z": "dead (zombie)"}.get(state or "", phase),
        where=clean(member.frame.function) if member.frame else "",
        progress=progress_text(member.progress) if case.look_count > 1 else "",
        since_s=since_s,
        is_culprit=is_culprit,
    )


def fold(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows of the same phase, function and kind of progress as one, the culprits' first."""
    classes: dict[tuple[bool, str, str, str], list[Row]] = {}
    for row in rows:
        kind = row.progress.partition(":")[0]
        classes.setdefault((row.is_culprit, row.phase, row.where, kind), []).append(row)
    return tuple(
        members[0]
        if len(members) == 1
        else replace(
            members[0],
            label=fold_labels((row.label for row in members), limit=40),
            pid=None,
            since_s=min(row.since_s for row in members),
        )
        for members in classes.values()
    )


def cost_text(cost: Cost) -> str:
    """``watching takes 2.1 % of a core, 0.31 s a look; the target was not stopped``."""
    parts = []
    if cost.cpu_share is not None:
        parts.append(f"watching takes {100 * cost.cpu_share:.1f} % of a core")
    if cost.look_s is not None:
        parts.append(f"{duration(cost.look_s)} a look")
    paused = f"was stopped for {duration(cost.paused_s)}" if cost.paused_s else "was not stopped"
    return f"{', '.join(parts)}; the target {paused}"
