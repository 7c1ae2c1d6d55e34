"""py-spy that could not look: its error instead of a dump, and what SGLang's watchdog says about it.

Not the cause of a hang. But a process that refuses even root is evidence: uninterruptible, stopped or traced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.model import Gap, LogMessage
from hangdoctor.parsers.findings import Finding, Sighting
from hangdoctor.parsers.registry import BlockFormat, Opening

_PID = re.compile(r"(?:PID |--pid[ =]|-p )(\d{1,10})", re.IGNORECASE)
_DETAIL = re.compile(r"(?:Error:|Reason:|Caused by:|\d{1,2}: |\(os error|Permission [Dd]enied)")
_GONE = re.compile(r"Check that the process is running|No such process|os error [23]\)")
_REFUSED = re.compile(r"Failed to suspend process|EPERM|unexpected waitpid", re.IGNORECASE)
_MISSING = re.compile(r"not found|No such file or directory: '?py-spy")
_MOST_LINES = 24


class ErrorReader:
    """Reads the error up to the next line that is no part of it."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._lines: list[str] = []

    def take(self, text: str, number: int) -> bool:
        """Whether a line is part of the error."""
        body = text.strip()
        if not self._lines:
            self._lines.append(body[:400])
            return True
        if len(self._lines) >= _MOST_LINES:
            return False
        if not body:
            return True
        if _DETAIL.match(body):
            self._lines.append(body[:400])
            return True
        return False

    def close(self) -> Iterable[Finding]:
        """A message, a gap with the remedy, and the process if it is known to exist."""
        text = " / ".join(self._lines)
        found = _PID.search(text)
        pid = int(found[1]) if found else self._opening.pid
        reason = _reason(text)
        who = f"pid {pid}" if pid is not None else str(self._opening.where)
        label = next(iter(self._opening.labels), None)
        fields = {"reason": reason}
        if pid is not None:
            fields["pid"] = str(pid)
        yield LogMessage("py-spy.failed", text[:600], label, fields, self._opening.where.line)
        yield Gap("py-spy", who, f"no stacks: {text[:200]}", _REMEDIES[reason])
        if pid is not None:
            yield Sighting(
                source="py-spy error",
                where=self._opening.where,
                pid=pid,
                labels=self._opening.labels,
                host=self._opening.host,
                taken_at=self._opening.taken_at,
                is_history=True,
                is_gone=reason == "gone",
            )


def _reason(text: str) -> str:
    if _MISSING.search(text):
        return "not installed"
    if _REFUSED.search(text):
        return "refused"
    if _GONE.search(text):
        return "gone"
    if "UNW_EBADREG" in text or "--nonblocking option" in text:
        return "native unwinding"
    if "ermission" in text or "os error 13" in text:
        return "permission"
    return "other"


_REMEDIES = {
    "not installed": "pip install py-spy in the container, or look from the host: hangdoctor attach PID",
    "refused": "read its state first: grep State /proc/PID/status (D: uninterruptible, T: stopped or traced)",
    "gone": "the process had ended: look for its exit code and the end of its log",
    "native unwinding": "py-spy dump without --native",
    "permission": "run as root with CAP_SYS_PTRACE (docker --cap-add SYS_PTRACE), or sysctl kernel.yama.ptrace_scope=0",
    "other": "py-spy dump --nonblocking --pid PID",
}

FORMATS = (
    BlockFormat(
        name="py-spy error",
        summary="why py-spy gave no stacks",
        first="EPFpA",
        opens=re.compile(
            r"Error: (?:Failed to |Permission |No such|Can't get|Process \d)|Permission [Dd]enied(?:: Try|.*os error)"
            r"|Failed to (?:suspend process|get stack traces|copy Py|find a? ?python)"
            r"|[Pp]y-?spy failed|All py-?spy dump attempts failed"
        ),
        reader=ErrorReader,
        order=15,
    ),
)
