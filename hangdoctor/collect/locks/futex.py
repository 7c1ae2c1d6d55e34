"""The futex a thread waits on, from its decoded system call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hangdoctor.model import Thread

WAIT, LOCK_PI, WAIT_BITSET, LOCK_PI2 = 0, 6, 9, 13
_PRIVATE, _COMMAND = 128, 127


@dataclass(frozen=True, slots=True)
class FutexWait:
    """``expected`` is the value the thread saw before it went to sleep."""

    tid: int
    address: int
    command: int
    is_private: bool
    expected: int
    is_timed: bool


def list_waits(threads: Iterable[Thread]) -> list[FutexWait]:
    """The threads that wait on a futex; others are left out."""
    waits = []
    for thread in threads:
        call = thread.syscall
        if thread.tid is None or call is None or call.name != "futex" or len(call.args) < 4:
            continue
        operation = call.args[1] & 0xFFFFFFFF
        command = operation & _COMMAND
        if command in (WAIT, LOCK_PI, WAIT_BITSET, LOCK_PI2):
            waits.append(
                FutexWait(
                    thread.tid,
                    call.args[0],
                    command,
                    bool(operation & _PRIVATE),
                    call.args[2] & 0xFFFFFFFF,
                    bool(call.args[3]),
                )
            )
    return waits


def still_waits(pid: int, wait: FutexWait) -> bool:
    """Whether the thread is in the same wait now: what was read in between then belongs together."""
    try:
        with open(f"/proc/{pid}/task/{wait.tid}/syscall", "rb") as file:
            words = file.read(256).split()
    except OSError:
        return False
    return len(words) > 1 and words[0] not in (b"running", b"-1") and int(words[1], 16) == wait.address
