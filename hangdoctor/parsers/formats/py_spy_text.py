"""``py-spy dump``: with and without names, ``--native``, ``--locals``, ``--subprocesses``, retyped, cut.

Values of arguments and locals are skipped: they are users' prompts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from hangdoctor.model import Frame, Method, Stack, Thread
from hangdoctor.parsers.findings import Finding, Sighting, Where
from hangdoctor.parsers.frame_text import FrameTable
from hangdoctor.parsers.registry import BlockFormat, Opening

_PROCESS = re.compile(
    r"(?P<parent>Parent )?Process (?P<pid>\d{1,10})(?: \((?P<name>[^)]*)\))?:\s?(?P<command>.*)$"
)
_VERSION = re.compile(r"Python v?(?P<version>\d+\.\d+[\w.+]*)")
_TRAILING_VERSION = re.compile(r"\s+\(Python (?P<version>\d+\.\d+[\w.+]*)\)$")
_THREAD = re.compile(
    r"Thread (?:(?P<tid>\d{1,10}|0x[0-9A-Fa-f]{1,16}) ?)?(?:/ ?(?:0x[0-9A-Fa-f]+) ?)?"
    r"\((?P<state>active|idle)(?P<gil>\+gil)?(?:\+gc)?\)?:?\s*(?:\"(?P<name>[^\"]*)\"?)?"
)
_DUMP_FOR = re.compile(r"Py-?spy dump for PID (?P<pid>\d{1,10})(?: \((?P<tool>[^)]*)\))?:?", re.IGNORECASE)
_MOST_PROCESSES, _MOST_THREADS = 1000, 20_000
_MOST_FRAMES = 4096  # py-spy gives up on deeper stacks
_LOCALS = ("Arguments:", "Locals:")


class _Header(NamedTuple):
    tid: int | None
    name: str | None
    is_active: bool
    has_gil: bool


class _Draft:
    """The process being read."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.pid: int | None = None
        self.ppid: int | None = None
        self.command: tuple[str, ...] = ()
        self.version: str | None = None
        self.threads: list[Thread] = []
        self.is_headed = False


class ThreadDumpReader:
    """Reads process headers, thread headers and frames, all of them optional."""

    def __init__(self, opening: Opening, source: str = "py-spy text", bare: bool = False) -> None:
        self._opening, self._source, self._bare = opening, source, bare
        self._frames: FrameTable = opening.frames
        self._file = opening.where.file
        self._dumped_pid: int | None = None
        self._draft = _Draft(opening.where.line or 0)
        self._drafts = [self._draft]
        self._header: _Header | None = None
        self._stack: list[Frame] = []
        self._in_locals = False
        self._frame_indent = 0
        self._is_native = "--native" in ((opening.heading.tool if opening.heading else None) or "")

    # -- lines -------------------------------------------------------------------------------------

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the dump."""
        if self._in_locals:
            return self._take_in_locals(text, number)
        frame = self._frames.read(text)
        if frame is not None:
            if len(self._stack) < _MOST_FRAMES:
                self._stack.append(frame)
            if not self._frame_indent:
                self._frame_indent = _indent(text)
            return True
        body = text.strip()
        if not body:
            return True
        if body in _LOCALS:
            self._in_locals = True
            return True
        return self._take_header(body, number)

    def _take_in_locals(self, text: str, number: int) -> bool:
        body = text.strip()
        if not body or _indent(text) > self._frame_indent:
            return True
        if body.startswith(("Thread ", "Process ")) or self._frames.read(text) is not None:
            self._in_locals = False
            return self.take(text, number)
        return body not in ("```", "</details>", "</pre>")  # the repr of a value may span lines

    def _take_header(self, body: str, number: int) -> bool:
        if len(self._drafts) > _MOST_PROCESSES or len(self._draft.threads) > _MOST_THREADS:
            return False
        if body.startswith("Thread "):
            found = _THREAD.match(body)
            if found is None:
                return False
            self._begin_thread(found, number)
            return True
        if body.startswith(("Process ", "Parent ")):
            return self._take_process(body, number)
        if body.startswith("Python v"):
            found = _VERSION.match(body)
            if found is None or self._stack:
                return False
            self._draft.version = found["version"]
            return True
        if self._bare:
            return False
        found = _DUMP_FOR.search(body)
        if found is not None and not self._stack and not self._draft.threads and not self._draft.is_headed:
            self._dumped_pid = self._draft.pid = int(found["pid"])
            self._is_native = self._is_native or "--native" in (found["tool"] or "")
            return True
        return False

    def _take_process(self, body: str, number: int) -> bool:
        found = _PROCESS.match(body)
        if found is None:
            return False
        if found["parent"]:
            self._draft.ppid = int(found["pid"])
            return True
        if self._stack or self._header is not None or self._draft.is_headed or self._draft.threads:
            self._begin_process(number)
        command = found["command"].strip()
        trailing = _TRAILING_VERSION.search(command)
        if trailing is not None:
            self._draft.version = trailing["version"]
            command = command[: trailing.start()]
        self._draft.pid = int(found["pid"])
        self._draft.is_headed = True
        self._draft.command = split_command(command)
        return True

    def _begin_process(self, number: int) -> None:
        self._end_thread()
        self._draft = _Draft(number)
        self._drafts.append(self._draft)

    def _begin_thread(self, found: re.Match[str], number: int) -> None:
        tid = int(found["tid"]) if found["tid"] and found["tid"].isdecimal() else None
        name = found["name"]
        self._end_thread()
        is_main = name == "MainThread" or (name is None and tid is not None and tid == self._draft.pid)
        if is_main and self._draft.threads:
            self._begin_process(number)  # py-spy prints the main thread first
        if is_main and self._draft.pid is None:
            self._draft.pid = tid
        elif not self._draft.threads and tid is not None and tid != self._draft.pid:
            self._adopt(tid)
        if name is None and found["tid"] and not found["tid"].isdecimal():
            name = f"thread {found['tid'].lower()}"
        self._header = _Header(
            tid, name if not is_main else "MainThread", found["state"] == "active", bool(found["gil"])
        )

    def _adopt(self, tid: int) -> None:
        """Headers of two processes may come before either's threads: the main thread has its process' pid."""
        for draft in self._drafts:
            if draft.pid == tid and not draft.threads:
                self._draft = draft

    def _end_thread(self) -> None:
        header, frames = self._header, tuple(self._stack)
        if header is None and not frames:
            return
        stack = Stack(frames, self._method(frames, header is not None)) if frames else None
        if header is None:
            thread = Thread(tid=None, name="MainThread" if _is_main_root(frames) else None, stack=stack)
        else:
            thread = Thread(
                tid=header.tid,
                name=header.name,
                stack=stack,
                owns_gil=header.has_gil or None,
                is_active_hint=header.is_active,
            )
        self._draft.threads.append(thread)
        self._header, self._stack, self._in_locals = None, [], False

    def _method(self, frames: tuple[Frame, ...], has_header: bool) -> Method:
        if self._bare and not has_header:
            return Method.PASTED
        if self._is_native or any(frame.is_native for frame in frames):
            return Method.PY_SPY_NATIVE
        return Method.PY_SPY_BLOCKING

    # -- result ------------------------------------------------------------------------------------

    def close(self) -> Iterable[Finding]:
        """One sighting a process."""
        self._end_thread()
        for position, draft in enumerate(self._drafts):
            if draft.threads or draft.is_headed or draft.pid is not None:
                yield self._sighting(draft, position == 0)

    def _sighting(self, draft: _Draft, is_first: bool) -> Sighting:
        opening = self._opening
        pid = draft.pid
        if pid is None and is_first:
            pid = opening.pid
        # A heading speaks for the process that comes next, a prefix for all of its stream.
        speaks = is_first or opening.stream is not None
        has_main = any(t.name == "MainThread" for t in draft.threads)
        return Sighting(
            source=self._source,
            where=Where(self._file, draft.line),
            pid=pid,
            labels=opening.labels if speaks else (),
            host=opening.host if speaks or opening.heading is None else None,
            taken_at=opening.taken_at,
            threads=_with_gil(draft.threads),
            command=draft.command or (opening.command if is_first else ()),
            ppid=draft.ppid,
            versions={"python": draft.version} if draft.version else {},
            is_continuation=not draft.is_headed and not has_main and draft.pid is None and not opening.labels,
        )


def split_command(text: str) -> tuple[str, ...]:
    """A command line as py-spy and ps print it; a title (``VLLM::Worker_TP0``) stays one element."""
    words = text.split()
    if words and ("::" in words[0] or not words[1:]):
        return (text.strip(),)
    return tuple(words)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _is_main_root(frames: tuple[Frame, ...]) -> bool:
    """Only the main thread has module code at its root."""
    python = [frame for frame in frames[-4:] if not frame.is_native]
    return bool(python) and python[-1].function == "<module>"


def _with_gil(threads: list[Thread]) -> tuple[Thread, ...]:
    """Where one thread is marked as the holder the others are known not to hold it."""
    if not any(thread.owns_gil for thread in threads):
        return tuple(threads)
    return tuple(thread if thread.owns_gil else replace(thread, owns_gil=False) for thread in threads)


FORMATS = (
    BlockFormat(
        name="py-spy text",
        summary="py-spy dump, also inside a watchdog's log, with --native or --locals, cut or retyped",
        first="PTp",
        opens=re.compile(
            r"(?:Parent )?Process \d{1,10}(?: \([^)]*\))?:|Python v\d+\.\d+[\w.+]* \(/"
            r"|Thread (?:(?:\d{1,10}|0x[0-9A-Fa-f]{1,16}) ?)?(?:/ ?0x[0-9A-Fa-f]+ ?)?\((?:active|idle)"
            r"|[Pp]y-?spy dump for PID \d"
        ),
        reader=ThreadDumpReader,
        order=20,
    ),
)
