"""Waiting for a state of the kernel, which no handshake can announce: a thread says "ready" before it blocks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from hangdoctor.collect.syscalls import decode_syscall
from hangdoctor.model import Thread
from tests.conftest import PROGRAMS, Stuck, stuck

T = TypeVar("T")
LIMIT_S = 30.0
IPC_RMID = 0


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


def list_pythons() -> list[str]:
    """This interpreter, and one of every other minor version from 3.10 on that the machine has.

    ``HANGDOCTOR_TEST_PYTHONS`` (paths joined by ``:``) adds more.
    """
    found = {sys.version_info[:2]: sys.executable}
    for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3")):
        numbers = path.parts[-3].split(".")
        if len(numbers) > 1 and numbers[1].isdigit() and int(numbers[1]) >= 10:
            found.setdefault((3, int(numbers[1])), str(path))
    extra = [path for path in os.environ.get("HANGDOCTOR_TEST_PYTHONS", "").split(":") if path]
    return [*found.values(), *extra]


def read_threads(pid: int) -> list[Thread]:
    """The threads of a process with their system calls, as the collectors see them."""
    threads = []
    for name in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            line, wchan = read_syscall(pid, int(name)), read_wchan(pid, int(name))
            threads.append(Thread(int(name), syscall=decode_syscall(pid, line, wchan=wchan)))
    return threads


@contextlib.contextmanager
def blocked(folder: Path) -> Iterator[tuple[Stuck, dict[str, str]]]:
    """``b_blocked.py`` with the words that it said; its semaphore is removed afterwards."""
    with stuck("b_blocked.py", folder) as program:
        words = words_of(program.said[0])
        try:
            yield program, words
        finally:
            program.popen.kill()
            ctypes.CDLL(None).semctl(int(words["semaphores"]), 0, IPC_RMID)


def build(source: str, output: Path, *flags: str) -> Path:
    """Compile ``tests/programs/SOURCE`` with the C++ compiler; skips the test where there is none."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    command = [compiler, "-O1", "-pthread", *flags, "-o", str(output), str(PROGRAMS / source)]
    subprocess.run(command, check=True)
    return output
