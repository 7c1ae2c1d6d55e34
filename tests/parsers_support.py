"""What the tests of the parsers share: the dumps, and short ways to look into a capture."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

from hangdoctor.knowledge import Knowledge, load_knowledge
from hangdoctor.model import Capture, LogMessage, Process, Thread
from hangdoctor.parsers import read_files

DUMPS = Path(__file__).parent / "data" / "dumps"


@cache
def knowledge() -> Knowledge:
    """The built-in knowledge, read once."""
    return load_knowledge()


@cache
def reports() -> dict[str, str]:
    """The evidence of the public reports by id."""
    rows = json.loads(gzip.decompress((DUMPS / "reports.json.gz").read_bytes()))
    return {row["id"]: row["evidence"] for row in rows}


def read_dump(*names: str) -> Capture:
    """Some of the dumps, as ``hangdoctor analyze`` would read them."""
    return read_files([str(DUMPS / name) for name in names], knowledge())


def only_process(capture: Capture) -> Process:
    """The one process of the one look."""
    assert len(capture.snapshots) == 1
    (process,) = capture.snapshots[0].processes
    return process


def processes(capture: Capture, look: int = 0) -> dict[str, Process]:
    """Processes of one look by the name a person would use: rank, title, else pid."""
    return {name_of(p): p for p in capture.snapshots[look].processes}


def name_of(process: Process) -> str:
    """``TP1``, ``sglang::scheduler_DP3``, ``4711``."""
    if process.rank_hint:
        return process.rank_hint
    if len(process.command) == 1:
        return process.command[0]
    return str(process.pid)


def thread(process: Process, name: str | int) -> Thread:
    """A thread by its name or number."""
    (found,) = [t for t in process.threads if name in (t.name, t.tid)]
    return found


def functions(of: Thread) -> list[str]:
    """Names of the frames, innermost first."""
    return [frame.function for frame in of.stack.frames] if of.stack else []


def messages(capture: Capture, kind: str) -> list[LogMessage]:
    """The messages of one kind, in order."""
    return [m for m in capture.snapshots[-1].messages if m.kind == kind]


def bugs(capture: Capture) -> list[str]:
    """What a reader failed on: there must be none, whatever the input."""
    return [gap.reason for gap in capture.gaps if "hangdoctor failed" in gap.reason]
