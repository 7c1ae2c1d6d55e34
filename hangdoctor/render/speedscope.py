"""Stacks for https://www.speedscope.app (or a local copy of it): one profile per process, a sample per thread."""

from __future__ import annotations

import json
from collections.abc import Iterable

from hangdoctor.model import Frame
from hangdoctor.render._base import Renderer, RenderOptions
from hangdoctor.render._digest import Names
from hangdoctor.render._wording import clean, short_path
from hangdoctor.report import ProcessRow, Report, ThreadRow

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class _Frames:
    """The table of frames that all profiles share."""

    def __init__(self) -> None:
        self.table: list[dict[str, str | int]] = []
        self._indices: dict[tuple[str, str, int | None], int] = {}

    def index(self, name: str, file: str = "", line: int | None = None) -> int:
        key = name, file, line
        if key not in self._indices:
            self._indices[key] = len(self.table)
            entry: dict[str, str | int] = {"name": name}
            if file:
                entry["file"] = file
            if line is not None:
                entry["line"] = line
            self.table.append(entry)
        return self._indices[key]

    def sample(self, thread: ThreadRow) -> list[int]:
        """Outermost first; the thread's name is its root."""
        root = self.index(clean(thread.name or f"thread {thread.tid}"))
        return [root, *(self._of_frame(frame) for frame in reversed(thread.stack))]

    def _of_frame(self, frame: Frame) -> int:
        return self.index(clean(frame.function), short_path(frame.file or frame.module or ""), frame.line)


def render(report: Report, options: RenderOptions) -> str:
    """One sampled profile a process; threads of library pools only with ``options.detail``."""
    names, frames = Names(report), _Frames()
    profiles = []
    for row in report.processes:
        samples = [frames.sample(thread) for thread in _shown(row, everything=options.detail)]
        if samples:
            profiles.append(
                {
                    "type": "sampled",
                    "name": names.of_row(row),
                    "unit": "none",
                    "startValue": 0,
                    "endValue": len(samples),
                    "samples": samples,
                    "weights": [1] * len(samples),
                }
            )
    content = {
        "$schema": _SCHEMA,
        "name": clean(report.verdict.summary),
        "exporter": f"hangdoctor {clean(report.tool_version)}",
        "shared": {"frames": frames.table},
        "profiles": profiles,
    }
    return json.dumps(content, ensure_ascii=options.ascii) + "\n"


RENDERER = Renderer("speedscope", "speedscope.json", render)


def _shown(row: ProcessRow, *, everything: bool) -> Iterable[ThreadRow]:
    return (thread for thread in row.threads if thread.stack and (everything or not thread.is_machinery))
