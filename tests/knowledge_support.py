"""What the tests of the knowledge share: the built-in knowledge, and stacks and processes from compact text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from hangdoctor.knowledge import Knowledge, load_knowledge
from hangdoctor.knowledge.frames import parse_stack, split_name
from hangdoctor.model import Frame, Method, Process, Stack, Thread


@lru_cache(maxsize=1)
def built_in() -> Knowledge:
    """The knowledge that ships, read once for all tests."""
    return load_knowledge()


def stack(text: str, *, method: Method = Method.PY_SPY_NONBLOCKING) -> Stack:
    """``func file | func file``, innermost first."""
    return Stack(parse_stack(text), method)


def bare(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """The frames as py-spy prints them before Python 3.11: functions without their class."""
    return tuple(
        Frame(
            f.function if "::" in f.function else split_name(f.function)[0],
            f.file,
            f.line,
            f.module,
            f.is_native,
        )
        for f in frames
    )


def thread(*, name: str | None = None, comm: str | None = None, frames: str | None = None) -> Thread:
    """A thread with a Python name, a kernel name or a stack."""
    return Thread(tid=17, name=name, comm=comm, stack=stack(frames) if frames else None)


_VARIABLE = re.compile(r"^([A-Z][A-Z0-9_]*)=(\S+)\s+")


def process(text: str) -> Process:
    """``RANK=3 python train.py``: environment, then title or command line; ``comm:pt_data_worker`` for a bare comm."""
    environ = {}
    while (found := _VARIABLE.match(text)) is not None:
        environ[found[1]] = found[2]
        text = text[found.end() :]
    if text.startswith("comm:"):
        return Process(pid=4711, comm=text[5:], environ=environ)
    command = tuple(text.split(" ")) if not re.match(r"^\[|^[\w.]+::", text) else (text,)
    return Process(pid=4711, command=command, environ=environ)
