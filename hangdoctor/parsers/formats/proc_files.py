"""Excerpts of /proc: ``status``, ``stack``, ``wchan``, ``syscall`` of a process or of one of its threads."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.model import Thread
from hangdoctor.parsers.findings import Finding, Sighting
from hangdoctor.parsers.registry import BlockFormat, Opening

_STATUS = re.compile(
    r"(?P<key>Name|Umask|State|Tgid|Ngid|Pid|PPid|TracerPid|Threads|VmRSS|NSpid|voluntary_ctxt_switches"
    r"|nonvoluntary_ctxt_switches|[A-Z]\w{1,24}|x86_\w{1,24}|untag_mask):\s*(?P<value>\S.*)?$"
)
_KERNEL_FRAME = re.compile(
    r"\[<(?:0|[0-9a-f]{8,16})>\] (?P<symbol>[\w.]+)(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?(?: \[\w+\])?$"
)
_MOST_FRAMES = 200


class StatusReader:
    """``/proc/PID/status``."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._values: dict[str, str] = {}

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the file."""
        body = text.strip()
        found = _STATUS.match(body)
        if found is None or (found["key"] == "Name" and self._values) or len(self._values) > 200:
            return False
        if found["key"] == "State" and "State" in self._values:
            return False
        self._values[found["key"]] = (found["value"] or "").strip()
        return True

    def close(self) -> Iterable[Finding]:
        """The process, or the thread where the path was one of a thread."""
        values = self._values
        heading = self._opening.heading
        pid = _number(values.get("Tgid")) or _number(values.get("Pid")) or self._opening.pid
        tid = _number(values.get("Pid")) or (heading.tid if heading else None)
        state = values.get("State", "")[:1] or None
        if state is None or (pid is None and not self._opening.labels):
            return
        thread = Thread(
            tid=tid or pid,
            comm=values.get("Name"),
            state=state,
            voluntary_switches=_number(values.get("voluntary_ctxt_switches")),
            involuntary_switches=_number(values.get("nonvoluntary_ctxt_switches")),
        )
        is_process = tid is None or tid == pid
        rss = _number(values.get("VmRSS", "").split(" ")[0])
        yield Sighting(
            source="/proc status" if is_process else f"/proc status {tid}",
            where=self._opening.where,
            pid=pid,
            labels=self._opening.labels,
            host=self._opening.host,
            taken_at=self._opening.taken_at,
            threads=(thread,),
            comm=values.get("Name") if is_process else None,
            state=state if is_process else None,
            ppid=_number(values.get("PPid")),
            tracer_pid=_number(values.get("TracerPid")) or None,
            thread_count=_number(values.get("Threads")),
            rss_bytes=rss * 1024 if rss is not None else None,
        )


class KernelStackReader:
    """``/proc/PID/stack`` and ``/proc/PID/task/TID/stack``."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._symbols: list[str] = []

    def take(self, text: str, number: int) -> bool:
        """Whether a line is a kernel frame."""
        found = _KERNEL_FRAME.match(text.strip())
        if found is None or len(self._symbols) >= _MOST_FRAMES:
            return False
        self._symbols.append(found["symbol"])
        return True

    def close(self) -> Iterable[Finding]:
        """The thread it is of; nothing when nobody says whose stack it is and it ends nowhere."""
        opening = self._opening
        heading = opening.heading
        pid = opening.pid
        tid = (heading.tid if heading else None) or pid
        if not self._symbols:
            return
        yield Sighting(
            source=f"/proc stack {tid}" if tid is not None else "/proc stack",
            where=opening.where,
            pid=pid,
            labels=opening.labels,
            host=opening.host,
            taken_at=opening.taken_at,
            threads=(Thread(tid=tid, wchan=self._symbols[0], kernel_stack=tuple(self._symbols)),),
        )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) <= 18 else None


FORMATS = (
    BlockFormat(
        name="/proc status",
        summary="/proc/PID/status",
        first="NS",
        opens=re.compile(r"(?:Name|State):\s+\S|State:\s+[RSDTtZXI]\b"),
        reader=StatusReader,
        order=35,
    ),
    BlockFormat(
        name="/proc stack",
        summary="/proc/PID/stack: the kernel frames of a thread",
        first="[",
        opens=re.compile(r"\[<(?:0|[0-9a-f]{8,16})>\] \w"),
        reader=KernelStackReader,
        order=35,
    ),
)
