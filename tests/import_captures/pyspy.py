"""What py-spy printed, as stacks by thread."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from hangdoctor.model import Frame, Method, Stack

_HEADER = re.compile(r"Python v(\S+) \((.*)\)")
_THREAD = re.compile(r'Thread (0x[0-9A-Fa-f]+|\d+) \(([^)]*)\)(?:: "(.*)")?$')
_FRAME = re.compile(r"    (.*) \((.*?)(?::(\d+))?\)$")


class _JsonFrame(TypedDict):
    name: str
    filename: str
    module: str | None
    line: int


class JsonThread(TypedDict):
    """One element of ``py-spy dump --json``."""

    os_thread_id: int | None
    thread_name: str | None
    active: bool
    owns_gil: bool
    frames: Sequence[_JsonFrame]


@dataclass(frozen=True, slots=True)
class PythonThread:
    """py-spy's half of a thread."""

    tid: int | None
    name: str | None
    stack: Stack
    owns_gil: bool | None
    is_active: bool


@dataclass(frozen=True, slots=True)
class TextDump:
    """``py-spy dump`` without --json."""

    version: str | None
    exe: str | None
    threads: tuple[PythonThread, ...]
    error: str | None


def from_json(threads: Sequence[JsonThread]) -> tuple[PythonThread, ...]:
    """``py-spy dump --json``."""
    return tuple(
        PythonThread(
            tid=thread["os_thread_id"],
            name=thread["thread_name"] or None,
            stack=Stack(
                tuple(
                    Frame(frame["name"], frame["filename"], frame["line"] or None, frame["module"])
                    for frame in thread["frames"]
                ),
                Method.PY_SPY_BLOCKING,
            ),
            owns_gil=thread["owns_gil"],
            is_active=thread["active"],
        )
        for thread in threads
    )


def from_text(text: str) -> TextDump:
    """``py-spy dump``: file names are shortened there, and the interpreter is named."""
    version = exe = error = None
    threads: list[PythonThread] = []
    frames: list[Frame] = []
    head: re.Match[str] | None = None

    def finish() -> None:
        if head is not None:
            tid = head[1]
            threads.append(
                PythonThread(
                    tid=int(tid) if tid.isdigit() else None,
                    name=head[3],
                    stack=Stack(tuple(frames), Method.PY_SPY_BLOCKING),
                    owns_gil="gil" in head[2].split("+"),
                    is_active=head[2].startswith("active"),
                )
            )
        frames.clear()

    for line in text.splitlines():
        if found := _HEADER.match(line):
            version, exe = found[1], found[2]
        elif line.startswith("Error: "):
            error = line.removeprefix("Error: ")
        elif error is not None:
            if cause := re.match(r" +1: (.*)", line):
                error = f"{error} ({cause[1]})"
                break
        elif found := _THREAD.match(line):
            finish()
            head = found
        elif found := _FRAME.match(line):
            frames.append(Frame(found[1], found[2], int(found[3]) if found[3] else None))
    finish()
    return TextDump(version, exe, tuple(threads), error)
