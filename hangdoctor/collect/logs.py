"""The end of the server's log: behind fd 1 and 2, behind a ``tee`` they are piped into, or given by the user.

Files are opened without waiting and only when they are regular; at most the last 256 KiB are read. Callers stay
behind a deadline, for a log may lie on a dead file server.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hangdoctor.collect.procfs import text
from hangdoctor.model import Gap, LogTail, OpenFile, Process

MAX_TAIL_BYTES = 256 << 10
"""Some 1,000 lines, hours of a server that writes statistics every 10 s; read and sorted in 4 ms."""
MAX_LINES = 30
MAX_EARLIER = 40
MAX_LINE_CHARS = 2000
MAX_LOGS = 16
_OUTPUTS = (1, 2)
_RANK = re.compile(r"(?:[TPDE]P|[Rr]ank_?)\d+\b")
_NO_DIGITS = str.maketrans("", "", "0123456789")
_SAVE_IT = "save it and give it with --log FILE (docker logs, kubectl logs, journalctl)"


@dataclass(frozen=True, slots=True)
class LogSource:
    """A file to open and what to call it. ``path`` may be a link below /proc, ``name`` is what it leads to."""

    path: str
    name: str
    pids: tuple[int, ...] = ()


def find_logs(processes: Sequence[Process], given: Sequence[str]) -> tuple[LogSource, ...]:
    """Where to look, the user's own files first. Pure: uses the open files already read."""
    sources = {name: LogSource(name, name) for name in given}
    for process in processes:
        for file in process.files:
            if file.fd in _OUTPUTS and file.kind == "file" and file.access in ("w", "rw"):
                path = f"/proc/{process.pid}/fd/{file.fd}"
                known = sources.get(file.target, LogSource(path, file.target))
                pids = tuple(dict.fromkeys((*known.pids, process.pid)))
                sources[file.target] = LogSource(known.path, known.name, pids)
    return tuple(sources.values())[:MAX_LOGS]


def piped_outputs(processes: Sequence[Process]) -> Mapping[int, tuple[int, ...]]:
    """Pids at the far end of standard output and error → the processes that write there."""
    readers: dict[int, dict[int, None]] = {}
    for process in processes:
        for file in process.files:
            if file.fd in _OUTPUTS and file.kind == "pipe":
                for pid in file.other_end:
                    readers.setdefault(pid, {})[process.pid] = None
    return {pid: tuple(writers) for pid, writers in readers.items()}


def find_tee_logs(
    readers: Mapping[int, tuple[int, ...]], files: Mapping[int, Sequence[OpenFile]]
) -> list[LogSource]:
    """Files that the readers of our outputs write: ``server 2>&1 | tee server.log`` is how most are started."""
    return [
        LogSource(f"/proc/{pid}/fd/{file.fd}", file.target, readers[pid])
        for pid, opened in files.items()
        for file in opened
        if file.kind == "file" and file.access in ("w", "rw") and file.fd not in _OUTPUTS
    ]


def read_tail(source: LogSource) -> LogTail:
    """The last 30 lines, and one of each kind of those before.

    Raises ``OSError``; ``ValueError`` for what is no regular file.
    """
    fd = os.open(source.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        start = max(0, found.st_size - MAX_TAIL_BYTES)
        data = os.pread(fd, MAX_TAIL_BYTES, start)
    finally:
        os.close(fd)
    lines = split_lines(data, is_cut=start > 0)
    shown, before = lines[-MAX_LINES:], lines[:-MAX_LINES]
    return LogTail(
        source.name, found.st_size, found.st_mtime, shown, source.pids, earlier=last_of_each_kind(before)
    )


def split_lines(data: bytes, *, is_cut: bool) -> tuple[str, ...]:
    """The lines at the end of a log; of a progress bar, which rewrites its line, what it shows now."""
    lines = data.split(b"\n")
    if is_cut and len(lines) > 1:
        del lines[0]
    shown = (line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines)
    return tuple(text(line)[:MAX_LINE_CHARS] for line in shown if line.strip())


def last_of_each_kind(lines: Sequence[str]) -> tuple[str, ...]:
    """Lines that differ in their words or their rank, each at its last place: what is not repeated stays.

    A single word says nothing, and may be a line of a key whose first line was left out, so that nobody masks it.
    """
    last = {_kind(line): place for place, line in enumerate(lines) if " " in line or ":" in line}
    return tuple(lines[place] for place in sorted(last.values())[-MAX_EARLIER:])


def _kind(line: str) -> tuple[object, ...]:
    """Its plain words (ids and times are none), the ranks in it, and how much of it is nought.

    A server that computes and one that does not differ in the noughts of their statistics.
    """
    words = tuple(filter(str.isalpha, line.split()))
    if len(words) < 2:
        words = (line.translate(_NO_DIGITS),)
    return (words, *_RANK.findall(line, 0, 80), line.count(" 0.0"))


def no_log_gap(processes: Iterable[Process]) -> Gap | None:
    """Said when no log was found: where the output goes instead, and how to give the file."""
    outputs = {
        file.target.partition(":")[0]
        for process in processes
        for file in process.files
        if file.fd in _OUTPUTS
    }
    if not outputs:
        return None
    where = ", ".join(sorted(outputs))
    return Gap("log", "the target", f"no log file: its output goes to {where}", _SAVE_IT)
