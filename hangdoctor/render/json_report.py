"""The report for programs: ``hangdoctor.report/1``, documented in docs/report.md, described by report.schema.json.

This format is the stable interface; the dataclasses behind it are not. A key is always present, ``null`` when its
value is unknown.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import TypeAlias

from hangdoctor.model import Frame, Rank
from hangdoctor.render._base import Renderer, RenderOptions
from hangdoctor.report import (
    SCHEMA,
    Culprit,
    Evidence,
    Group,
    LogLine,
    NcclEnv,
    Party,
    ProcessRow,
    Progress,
    Report,
    Series,
    TargetInfo,
    ThreadRow,
    Timings,
    Verdict,
    Victim,
    Wait,
)

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class _Calls:
    """A stack, to be written as a list of frames."""

    frames: tuple[Frame, ...]


Json: TypeAlias = "bool | int | float | str | _Calls | Iterable[Json] | Mapping[str, Json] | None"


def render(report: Report, options: RenderOptions) -> str:
    """Write `report` as one JSON object; ``options.ascii`` escapes everything else as ``\\uXXXX``."""
    writer = _Writer(options.ascii)
    writer.write(_report(report), "")
    writer.parts.append("\n")
    return "".join(writer.parts)


class _Writer:
    """Writes as ``json.dumps`` with an indent of 2 does, and each stack once.

    The threads of a thousand ranks share some hundred stacks. json's own writer, which is slow and hungry with an
    indent, took 4.4 s and 680 MB for 1,024 ranks of 40 threads (93 MB of text).
    """

    def __init__(self, is_ascii: bool) -> None:
        self.parts: list[str] = []
        self._is_ascii = is_ascii
        self._quoted: dict[str, str] = {}
        self._stacks: dict[tuple[int, str], str] = {}
        """By identity and indent: the report outlives the writer, so no identity is used again."""

    def write(self, value: Json, indent: str) -> None:
        """Add `value`. No NaN, which JSON does not have: what is no number is unknown."""
        if isinstance(value, str):
            self.parts.append(self._quote(value))
        elif value is None or isinstance(value, bool):
            self.parts.append({None: "null", True: "true", False: "false"}[value])
        elif isinstance(value, int | float):
            self.parts.append(repr(value) if math.isfinite(value) else "null")
        elif isinstance(value, _Calls):
            self.parts.append(self._calls(value, indent))
        elif isinstance(value, Mapping):
            self._enclose("{", ((f"{self._quote(key)}: ", item) for key, item in value.items()), "}", indent)
        else:
            self._enclose("[", (("", item) for item in value), "]", indent)

    def _enclose(self, head: str, items: Iterable[tuple[str, Json]], tail: str, indent: str) -> None:
        inner = f"{indent}  "
        before = head
        for key, item in items:
            self.parts.append(
                sys.intern(f"{before}\n{inner}{key}")
            )  # some hundred different ones, a million in all
            self.write(item, inner)
            before = ","
        self.parts.append(head + tail if before == head else f"\n{indent}{tail}")

    def _calls(self, calls: _Calls, indent: str) -> str:
        key = id(calls.frames), indent
        if key not in self._stacks:
            writer = _Writer(self._is_ascii)
            writer.write([_frame(frame) for frame in calls.frames], indent)
            self._stacks[key] = "".join(writer.parts)
        return self._stacks[key]

    def _quote(self, text: str) -> str:
        """A string of JSON. No lone surrogate, which UTF-8 does not have."""
        known = self._quoted.get(text)
        if known is None:
            known = self._quoted[text] = self._quote_anew(text)
        return known

    def _quote_anew(self, text: str) -> str:
        if not text.isascii():
            text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        quoted = encode_basestring_ascii(text) if self._is_ascii else encode_basestring(text)
        return quoted if quoted.isprintable() else "".join(map(_visible, quoted))


def _visible(character: str) -> str:
    """json escapes C0 only. A C1 control is a command to a terminal that somebody may print this on, a right-to-left
    override turns the line round, and tag characters hide a text within a text."""
    return (
        character
        if character.isprintable()
        else encode_basestring_ascii(character)[1:-1].replace("\x7f", "\\u007f")
    )


RENDERER = Renderer("json", "json", render)


def _report(report: Report) -> Json:
    return {
        "schema": SCHEMA,
        "tool": {"version": report.tool_version, "knowledge": report.knowledge},
        "target": _target(report.target),
        "verdict": _verdict(report.verdict),
        # Made one by one: all of them at once would be as large as their text.
        "processes": map(_process, sorted(report.processes, key=_position)),
        "groups": [_group(group) for group in report.groups],
        "waits": [_wait(wait) for wait in report.waits],
        "nccl_env": _nccl_env(report.nccl_env),
        "evidence": [
            _evidence(piece) for piece in sorted(report.evidence, key=lambda piece: _natural(piece.id))
        ],
        "gaps": [
            {"source": gap.source, "subject": gap.subject, "reason": gap.reason, "remedy": gap.remedy}
            for gap in report.gaps
        ],
        "next_steps": [{"text": step.text, "command": step.command} for step in report.next_steps],
        "matches": list(report.matches),
        "log_tail": list(report.log_tail),
        "log_line": _log_line(report.log_line) if report.log_line is not None else None,
        "timings": _timings(report.timings),
        "bundle": report.bundle,
        "redacted": list(report.redacted),
    }


def _log_line(line: LogLine) -> Json:
    return {
        "text": line.text,
        "age_s": line.age_s,
        "is_failure": line.is_failure,
        "is_newest": line.is_newest,
        "newest": line.newest,
        "newest_age_s": line.newest_age_s,
        "path": line.path,
        "host": line.host,
    }


def _target(target: TargetInfo) -> Json:
    return {
        "pid": target.pid,
        "host": target.host,
        "server": target.server,
        "server_version": target.server_version,
        "started_at": target.started_at,
        "command": target.command,
        "world_size": target.world_size,
        "versions": dict(sorted(target.versions.items())),
    }


def _verdict(verdict: Verdict) -> Json:
    return {
        "kind": verdict.kind.value,
        "confidence": verdict.confidence.value,
        "cause": verdict.cause.value if verdict.cause else None,
        "summary": verdict.summary,
        "culprits": [_culprit(culprit) for culprit in verdict.culprits],
        "victims": [_victim(victim) for victim in verdict.victims],
        "progress": _progress(verdict.progress),
        "refuted_by": list(verdict.refuted_by),
        "alternatives": list(verdict.alternatives),
        "rule": verdict.rule,
    }


def _culprit(culprit: Culprit) -> Json:
    return {
        "pid": culprit.pid,
        "tid": culprit.tid,
        "thread": culprit.thread,
        "role": culprit.role,
        "rank": _rank(culprit.rank),
        "phase": culprit.phase,
        "frame": _frame(culprit.frame),
        "doing": culprit.doing,
        "evidence": list(culprit.evidence),
        "stack": _stack(culprit.stack),
        "host": culprit.host,
    }


def _victim(victim: Victim) -> Json:
    return {
        "pid": victim.pid,
        "role": victim.role,
        "rank": _rank(victim.rank),
        "waits_for": list(victim.waits_for),
        "phase": victim.phase,
        "frame": _frame(victim.frame),
        "host": victim.host,
    }


def _rank(rank: Rank | None) -> Json:
    if rank is None:
        return None
    return {
        "global": rank.global_rank,
        "tp": rank.tp,
        "pp": rank.pp,
        "dp": rank.dp,
        "ep": rank.ep,
        "cp": rank.cp,
        "local": rank.local,
        "host": rank.host,
        "label": rank.label,
    }


def _frame(frame: Frame | None) -> Json:
    if frame is None:
        return None
    return {
        "function": frame.function,
        "file": frame.file,
        "line": frame.line,
        "module": frame.module,
        "native": frame.is_native,
    }


def _stack(stack: tuple[Frame, ...]) -> Json:
    return _Calls(stack)


def _progress(progress: Progress | None) -> Json:
    if progress is None:
        return None
    return {
        "class": progress.kind.value,
        "what": progress.what,
        "rate": progress.rate,
        "unit": progress.unit,
        "percent": progress.percent,
        "eta_s": progress.eta_s,
    }


def _process(row: ProcessRow) -> Json:
    return {
        "pid": row.pid,
        "role": row.role,
        "rank": _rank(row.rank),
        "state": row.state,
        "phase": row.phase,
        "frame": _frame(row.frame),
        "progress": _progress(row.progress),
        "activity": row.activity,
        "cpu_percent": row.cpu_percent,
        "phases": list(row.phases),
        "series": [_series(series) for series in row.series],
        "gpu": [dict(gpu) for gpu in row.gpu],
        "host": row.host,
        "command": row.command,
        "title": row.title,
        "threads": [_thread(thread) for thread in row.threads],
    }


def _series(series: Series) -> Json:
    return {
        "name": series.name,
        "class": series.kind.value,
        "unit": series.unit,
        "values": list(series.values),
    }


def _thread(thread: ThreadRow) -> Json:
    return {
        "tid": thread.tid,
        "name": thread.name,
        "state": thread.state,
        "activity": thread.activity,
        "phase": thread.phase,
        "waits_on": thread.waits_on,
        "cpu_percent": thread.cpu_percent,
        "machinery": thread.is_machinery,
        "stack": _stack(thread.stack),
    }


def _group(group: Group) -> Json:
    return {
        "ranks": list(group.ranks),
        "label": group.label,
        "phase": group.phase,
        "count": group.count,
        "moved": group.moved,
        "stack": _stack(group.stack),
    }


def _wait(wait: Wait) -> Json:
    return {
        "from": _party(wait.waiter),
        "to": _party(wait.holder) if wait.holder is not None else None,
        "reason": wait.reason,
        "object": wait.object,
        "strength": wait.strength.value,
    }


def _party(party: Party) -> Json:
    return {"pid": party.pid, "tid": party.tid, "label": party.label, "host": party.host}


def _nccl_env(environment: NcclEnv) -> Json:
    return {
        "common": dict(sorted(environment.common.items())),
        "differs": {name: dict(values) for name, values in sorted(environment.differs.items())},
        "notes": list(environment.notes),
    }


def _evidence(piece: Evidence) -> Json:
    return {
        "id": piece.id,
        "subject": piece.subject,
        "snapshot": piece.snapshot,
        "source": piece.source,
        "text": piece.text,
    }


def _timings(timings: Timings) -> Json:
    return {
        "snapshots": list(timings.snapshots),
        "skew_s": timings.skew_s,
        "wall_s": timings.wall_s,
        "target_paused_s": timings.target_paused_s,
        "clocks": dict(timings.clocks),
        "start_skew_s": timings.start_skew_s,
    }


def _position(row: ProcessRow) -> tuple[bool, tuple[int, ...], str, int]:
    # Ranks in the order of their coordinates, then everything without a rank.
    rank = row.rank
    parts = (rank.global_rank, rank.dp, rank.pp, rank.cp, rank.tp, rank.ep, rank.local) if rank else ()
    return rank is None, tuple(-1 if part is None else part for part in parts), row.host or "", row.pid


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(number), name) for number in _NUMBER.findall(name)] or [(0, name)]
