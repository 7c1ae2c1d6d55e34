"""The kernel's log: hung tasks (``blocked for more than 122 seconds``) with their stacks, GPU errors, memory kills."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.model import LogMessage, Thread
from hangdoctor.parsers.findings import Finding, Sighting, Where
from hangdoctor.parsers.registry import BlockFormat, LineFormat, Opening

_HUNG = re.compile(
    r"INFO: task (?P<comm>\S.{0,30}?):(?P<pid>\d{1,10}) (?P<how>blocked|is blocked on a \w+.{0,60}?) "
    r"(?:for more than|likely owned by) (?:(?P<seconds>\d{1,9}) seconds)?"
)
_TASK = re.compile(
    r"task:(?P<comm>\S.{0,30}?)\s+state:(?P<state>[A-Z])\s.*?\bpid:\s*(?P<pid>\d{1,10})"
    r"(?:.*?\bppid:\s*(?P<ppid>\d{1,10}))?"
)
_FRAME = re.compile(r"(?:\? )?(?P<symbol>[A-Za-z_][\w.]{1,120})\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[[\w ]+\])?$")
_CONTINUES = re.compile(
    r"Tainted:|Not tainted|Workqueue:|Call Trace:|</?TASK>|RIP: |R[A-Z0-9]{2,3}: |\"echo 0 >|task:|\? "
)
_PATTERNS = (
    (
        "gpu.xid",
        re.compile(
            r"NVRM: Xid \((?P<bus>[^)]{1,40})\): (?P<code>\d{1,4})(?:, pid=['\"]?(?P<pid>\d{1,10}))?"
            r"(?:,? (?P<what>.{0,200}))?"
        ),
    ),
    (
        "kernel.oom-kill",
        re.compile(r"ut of memory: Killed process (?P<pid>\d{1,10}) \((?P<comm>[^)]{1,40})\)"),
    ),
    ("kernel.nfs", re.compile(r"nfs: server (?P<server>\S{1,200}) not responding(?:, (?P<what>.{1,60}))?")),
)
_MOST_FRAMES = 100


class HungTaskReader:
    """Reads one hung task with its stack: a thread in an uninterruptible wait."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._found: re.Match[str] | None = None
        self._symbols: list[str] = []
        self._ppid: int | None = None

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the task."""
        body = text.strip()
        if self._found is None:
            self._found = _HUNG.match(body)
            return self._found is not None
        task = _TASK.match(body)
        if task is not None:
            self._ppid = int(task["ppid"]) if task["ppid"] else None
            return task["pid"] == self._found["pid"]
        frame = _FRAME.match(body)
        if frame is not None:
            if len(self._symbols) < _MOST_FRAMES and not body.startswith("? "):
                self._symbols.append(frame["symbol"])
            return True
        return not body or bool(_CONTINUES.match(body))

    def close(self) -> Iterable[Finding]:
        """The thread, and the message with how long it has been blocked."""
        if self._found is None:
            return
        tid, comm = int(self._found["pid"]), self._found["comm"]
        fields = {"pid": str(tid), "comm": comm}
        if self._found["seconds"]:
            fields["seconds"] = self._found["seconds"]
        line = self._opening.where.line
        yield LogMessage("kernel.hung-task", self._found[0][:300], None, fields, line)
        # The kernel numbers threads; of a main thread that is the process. Scheduler frames come first.
        wait = next(
            (s for s in self._symbols if s not in ("__schedule", "schedule", "schedule_timeout")), None
        )
        yield Sighting(
            source=f"kernel log {tid}",
            where=Where(self._opening.where.file, line),
            pid=tid,
            host=self._opening.host,
            ppid=self._ppid,
            comm=comm,
            state="D",
            threads=(Thread(tid=tid, comm=comm, state="D", wchan=wait, kernel_stack=tuple(self._symbols)),),
        )


class KernelLines:
    """Single lines that say why a process or a GPU is gone."""

    def read(self, text: str, where: Where, label: str | None) -> Iterable[Finding] | None:
        """The message in a line, if any."""
        for kind, pattern in _PATTERNS:
            found = pattern.search(text)
            if found is not None:
                fields = {n: v for n, v in found.groupdict().items() if v is not None}
                return (LogMessage(kind, text[:400], label, fields, where.line),)
        return None

    def close(self) -> Iterable[Finding]:
        """Nothing."""
        return ()


FORMATS = (
    BlockFormat(
        name="kernel log",
        summary="dmesg: hung tasks with their stacks, GPU errors, out-of-memory kills",
        first="I",
        opens=re.compile(r"INFO: task \S.{0,30}:\d{1,10} (?:blocked for|is blocked on)"),
        reader=HungTaskReader,
        order=35,
    ),
    LineFormat(
        name="kernel log",
        summary="dmesg: hung tasks with their stacks, GPU errors, out-of-memory kills",
        hints=("NVRM: Xid", "ut of memory: Killed", "not responding"),
        reader=KernelLines,
        order=40,
    ),
)
