"""Waiting for a state of the kernel, which no handshake can announce: a thread says "ready" before it blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LIMIT_S = 30.0


def eventually(look: Callable[[], T], *, limit_s: float = LIMIT_S) -> T:
    """Look until something true comes back; fails with the last answer."""
    end = time.monotonic() + limit_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < end, f"never came true; last answer: {seen!r}"
        time.sleep(0.01)


def words_of(line: str) -> dict[str, str]:
    """``name=value`` words of a handshake line."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def read_syscall(pid: int, tid: int) -> str:
    with open(f"/proc/{pid}/task/{tid}/syscall") as file:
        return file.read()


def read_wchan(pid: int, tid: int) -> str:
    with open(f"/proc/{pid}/task/{tid}/wchan") as file:
        return file.read()
