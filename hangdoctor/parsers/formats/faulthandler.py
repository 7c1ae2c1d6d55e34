"""Python's ``faulthandler``: threads without numbers, the main thread last, the innermost frame first."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.model import Frame, LogMessage, Method, Stack, Thread
from hangdoctor.parsers.findings import Finding, Sighting
from hangdoctor.parsers.registry import BlockFormat, Opening

_HEADER = re.compile(
    r"(?P<current>Current t|T)hread (?P<id>0x[0-9A-Fa-f]{1,16})(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
_STACK_HEADER = re.compile(
    r"(?:(?P<python>Stack)|Current thread's C stack trace) \(most recent call first\):"
)
_FRAME = re.compile(r"File \"?(?P<file>[^\"]*?)\"?, line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.+)$")
_C_FRAME = re.compile(r"Binary file \"(?P<file>[^\"]*)\"(?:, at (?P<function>[^+\[]+)?(?:\+0x[0-9a-f]+)?)?")
_NO_FRAME = ("<no Python frame>", "...", "<truncated rest of calls>")
_FATAL = re.compile(r"Fatal Python error: (?P<what>.*)|Timeout \((?P<after>[\d:.]+)\)!")


class FaulthandlerReader:
    """Reads all threads of one dump. A second ``Current thread`` begins the next dump."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._threads: list[Thread] = []
        self._name: str | None = None
        self._is_open = False
        self._is_native = False
        self._frames: list[Frame] = []
        self._fatal: str | None = None

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the dump."""
        body = text.strip()
        if not body:
            return True
        header = _HEADER.match(body)
        if header is not None:
            return self._begin(header)
        bare = _STACK_HEADER.match(body)
        if bare is not None:
            self._end_thread()
            self._is_open, self._is_native, self._name = True, bare["python"] is None, None
            return True
        fatal = _FATAL.match(body)
        if fatal is not None:
            if self._threads or self._is_open:
                return False
            self._fatal = body
            return True
        if not self._is_open:
            return body.startswith(("Python runtime state", "Extension modules:", "<Cannot show", "Enable "))
        return self._take_frame(body)

    def _take_frame(self, body: str) -> bool:
        found = _FRAME.match(body)
        if found is not None:
            line = int(found["line"]) if found["line"].isdecimal() else None
            self._frames.append(Frame(found["function"], found["file"], line or None))
            return True
        native = _C_FRAME.match(body)
        if native is not None:
            file = native["file"]
            self._frames.append(
                Frame((native["function"] or "?").strip() or "?", file, None, file, is_native=True)
            )
            return True
        if body.startswith("Extension modules:"):
            self._end_thread()
            return True
        return body in _NO_FRAME

    def _begin(self, header: re.Match[str]) -> bool:
        name = f"thread {header['id'].lower()}"
        self._end_thread()
        if any(thread.name == name for thread in self._threads):
            return False  # the same thread again: the next dump of a repeating faulthandler
        self._is_open, self._is_native = True, False
        self._name = name
        if header["name"]:
            self._name = header["name"]
        return True

    def _end_thread(self) -> None:
        if not self._is_open:
            return
        frames = tuple(self._frames)
        if not self._is_native:
            is_main = bool(frames) and frames[-1].function == "<module>"
            stack = Stack(frames, Method.FAULTHANDLER) if frames else None
            self._threads.append(Thread(tid=None, name="MainThread" if is_main else self._name, stack=stack))
        self._is_open, self._frames = False, []

    def close(self) -> Iterable[Finding]:
        """The process, and what ended it."""
        self._end_thread()
        if self._fatal is not None:
            label = next(iter(self._opening.labels), None)
            yield LogMessage("python.fatal", self._fatal[:400], label, {}, self._opening.where.line)
        if self._threads:
            yield Sighting(
                source="faulthandler",
                where=self._opening.where,
                pid=self._opening.pid,
                labels=self._opening.labels,
                host=self._opening.host,
                taken_at=self._opening.taken_at,
                command=self._opening.command,
                threads=tuple(sorted(_named_main(self._threads), key=lambda t: t.name != "MainThread")),
            )


def _named_main(threads: list[Thread]) -> list[Thread]:
    """Threads are printed newest first: the last one is the main thread, unless it was started as a thread."""
    last = threads[-1]
    if any(t.name == "MainThread" for t in threads) or last.stack is None or len(threads) < 2:
        return threads
    if last.stack.frames[-1].function in ("_bootstrap", "_bootstrap_inner"):
        return threads
    return [*threads[:-1], Thread(tid=None, name="MainThread", stack=last.stack)]


FORMATS = (
    BlockFormat(
        name="faulthandler",
        summary="faulthandler.dump_traceback, dump_traceback_later, or a fatal Python error",
        first="CTFS",
        opens=re.compile(
            r"(?:Current t|T)hread 0x[0-9A-Fa-f]{1,16}(?: \[[^\]]*\])? \(most recent call first\)"
            r"|Fatal Python error: |Timeout \([\d:.]+\)!$|Stack \(most recent call first\):"
        ),
        reader=FaulthandlerReader,
        order=18,
    ),
)
