"""``strace -p``: the system call each thread sits in, and strace that was refused."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.model import Gap, Syscall, Thread
from hangdoctor.parsers.findings import Finding, Sighting
from hangdoctor.parsers.registry import BlockFormat, Opening

_REFUSED = re.compile(r"strace: attach: ptrace\(PTRACE_SEIZE, (?P<pid>\d{1,10})\): (?P<why>.*)$")
_ATTACHED = re.compile(r"strace: Process (?P<pid>\d{1,10}) attached")
_CALL = re.compile(
    r"(?:\[pid +(?P<pid>\d{1,10})\] |(?P<tid>\d{1,10}) +)?(?P<name>[a-z_][a-z0-9_]{1,30})\((?P<args>.*)$"
)
_FD = re.compile(r"(\d{1,7})(?:<([^>]{1,200})>)?")
_FD_FIRST = (
    "read",
    "recv",
    "recvfrom",
    "recvmsg",
    "write",
    "send",
    "sendto",
    "ioctl",
    "epoll_wait",
    "fsync",
    "pread64",
)


class StraceReader:
    """Reads the end of a trace: of each thread the last call."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._calls: dict[int | None, Syscall] = {}
        self._pid: int | None = None
        self._gaps: list[Gap] = []
        self._refused: list[int] = []

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the trace."""
        body = text.strip()
        tid: int | None
        refused = _REFUSED.match(body)
        if refused is not None:
            remedy = "read its state first: grep State /proc/PID/status (D: uninterruptible, T: traced)"
            if len(self._gaps) < 100:
                self._gaps.append(Gap("strace", f"pid {refused['pid']}", refused["why"][:200], remedy))
                self._refused.append(int(refused["pid"]))
            return True
        attached = _ATTACHED.match(body)
        if attached is not None:
            self._pid = self._pid or int(attached["pid"])
            return True
        call = _CALL.match(body)
        if call is not None:
            numbered = call["pid"] or call["tid"]
            tid = int(numbered) if numbered else self._pid
            if tid in self._calls or len(self._calls) < 10_000:
                self._calls[tid] = _syscall(call["name"], call["args"])
            return True
        return body.startswith(("strace: ", "<... ", "--- SIG", "^C")) or "resumed>" in body[:120]

    def close(self) -> Iterable[Finding]:
        """The process with the calls of its threads, and the refusals."""
        yield from self._gaps
        opening = self._opening
        for refused in self._refused:
            yield Sighting(
                "strace error", opening.where, refused, opening.labels, opening.host, is_history=True
            )
        pid = self._pid or opening.pid
        threads = tuple(Thread(tid=tid, syscall=call) for tid, call in self._calls.items())
        if threads:
            yield Sighting(
                source="strace",
                where=opening.where,
                pid=pid,
                labels=opening.labels,
                host=opening.host,
                taken_at=opening.taken_at,
                threads=threads,
            )


def _syscall(name: str, args: str) -> Syscall:
    detail = f"{name}({args[:160].split(' <')[0]}"
    fd, target = None, None
    if name in _FD_FIRST:
        found = _FD.match(args)
        if found is not None:
            fd, target = int(found[1]), found[2]
    is_timed: bool | None = None
    if name == "futex":
        is_timed = "NULL" not in args
    elif name in ("poll", "epoll_wait"):
        is_timed = ", -1" not in args
    return Syscall(name=name, fd=fd, target=target, is_timed=is_timed, detail=detail)


FORMATS = (
    BlockFormat(
        name="strace",
        summary="strace -p: the system call each thread sits in",
        first="[sferpwc0123456789",
        opens=re.compile(
            r"strace: (?:attach: ptrace|Process \d+ attached)|\[pid +\d{1,10}\] [a-z_][a-z0-9_]{1,30}\("
            r"|(?:\d{1,10} +)?(?:futex|epoll_wait|p?poll|select|restart_syscall|read|recvfrom|ioctl|wait4"
            r"|clock_nanosleep)\([^)]{0,2000}?(?:<unfinished|<detached|$)"
        ),
        reader=StraceReader,
        order=65,
    ),
)
