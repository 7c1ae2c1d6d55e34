"""Outside programs with a deadline, several at once: start, drain, retry, kill.

Programs are started by posix_spawn (no fork of our memory), write to a memfd (a full pipe would stall them), and
are noticed by the end of their stderr. One that cannot be killed is left behind.
"""

from __future__ import annotations

import os
import select
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from hangdoctor.collect.deadline import LOW_PRIORITY, adopt, kill

Key = TypeVar("Key")

MAX_OUTPUT_BYTES = 256 << 20
_MAX_STDERR_BYTES = 1 << 16

# Ends itself when we are gone or its time is up, whatever state we are in: both survive the exec.
_GUARD = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]): sys.exit(1)
signal.alarm(int(sys.argv[2]))
os.execv(sys.argv[3], sys.argv[3:])
"""


@dataclass(frozen=True, slots=True)
class Job(Generic[Key]):
    """One run of a program on behalf of ``key``."""

    key: Key
    command: tuple[str, ...]
    deadline_s: float
    attempt: int = 1
    not_before: float = 0.0
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True)
class Result(Generic[Key]):
    """How a run ended. ``returncode`` as subprocess has it; ``None``: killed by us at its deadline."""

    job: Job[Key]
    returncode: int | None
    stdout: bytes
    stderr: str
    started_at: float
    """Unix time."""
    duration_s: float


def guarded(command: Sequence[str], deadline_s: float) -> tuple[str, ...]:
    """A command that dies with us and after ``deadline_s`` at the latest, for programs that stop the target."""
    start = (sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), str(int(deadline_s) + 1))
    return (*start, *command)


def run(command: Sequence[str], deadline_s: float) -> Result[None]:
    """One program, waited for."""
    job: Job[None] = Job(None, tuple(command), deadline_s)
    return next(iter(run_all([job], width=1, total_s=deadline_s + 1, again=lambda result: None)))


def run_all(
    jobs: Sequence[Job[Key]],
    *,
    width: int,
    total_s: float,
    again: Callable[[Result[Key]], float | None],
    is_nice: bool = False,
) -> Iterator[Result[Key]]:
    """Runs all jobs, at most ``width`` at once, and yields each final result as soon as it is there.

    ``again(result)``: seconds after which to try once more, or ``None`` to accept. After ``total_s`` seconds
    everything still running is killed, and the jobs that never ran are reported as killed after 0 s.
    """
    end = time.monotonic() + total_s
    waiting, running = list(jobs), dict[int, _Running[Key]]()
    poll = select.poll()
    try:
        while waiting or running:
            now = time.monotonic()
            if now >= end:
                waiting, left = [], waiting
                yield from (_never_ran(job, "no time was left") for job in left)
            waiting, refused = _start(waiting, running, poll, width, now, is_nice)
            yield from refused
            for done in _wait(waiting, running, poll, min(end, now + 1.0), is_over=now >= end):
                pause = again(done)
                if pause is None or time.monotonic() >= end:
                    yield done
                else:
                    job = done.job
                    again_at = time.monotonic() + pause
                    waiting.append(replace(job, attempt=job.attempt + 1, not_before=again_at))
    finally:
        for child in running.values():
            child.end(is_killed=True)


def _start(
    waiting: list[Job[Key]],
    running: dict[int, _Running[Key]],
    poll: select.poll,
    width: int,
    now: float,
    is_nice: bool,
) -> tuple[list[Job[Key]], list[Result[Key]]]:
    """Starts what is due; returns what still waits, and what the system refuses to start."""
    later: list[Job[Key]] = []
    refused: list[Result[Key]] = []
    for job in waiting:
        if len(running) >= width or job.not_before > now:
            later.append(job)
            continue
        try:
            child = _Running(job, is_nice)
        except OSError as error:
            refused.append(_never_ran(job, f"{job.command[0]} could not be started: {error.strerror}"))
            continue
        running[child.stderr] = child
        poll.register(child.stderr, select.POLLIN)
    return later, refused


def _wait(
    waiting: Sequence[Job[Key]],
    running: dict[int, _Running[Key]],
    poll: select.poll,
    until: float,
    *,
    is_over: bool,
) -> list[Result[Key]]:
    """Sleeps until something ends, must be killed or may start; returns what ended."""
    moments = [until, *(job.not_before for job in waiting), *(child.deadline for child in running.values())]
    pause = 0.0 if is_over else max(0.0, min(moment for moment in moments if moment) - time.monotonic())
    done = []
    for fd, _ in poll.poll(pause * 1000 + 1):
        child = running[fd]
        if child.drain():
            done.append((child, False))
    now = time.monotonic()
    late = [child for child in running.values() if is_over or now >= child.deadline]
    done.extend((child, True) for child in late if all(child is not other for other, _ in done))
    for child, _ in done:
        poll.unregister(child.stderr)
        del running[child.stderr]
    return [child.end(is_killed=is_killed) for child, is_killed in done]


def _never_ran(job: Job[Key], why: str) -> Result[Key]:
    return Result(job, None, b"", why, time.time(), 0.0)


class _Running(Generic[Key]):
    """A program that runs."""

    def __init__(self, job: Job[Key], is_nice: bool) -> None:
        self.job = job
        self.started_at = time.time()
        self._began = time.monotonic()
        self.deadline = self._began + job.deadline_s
        self._said = b""
        self._stdout = _open_memory()
        self.stderr, stderr_write = os.pipe()
        try:
            self.pid = os.posix_spawn(
                job.command[0],
                job.command,
                _environment(),
                file_actions=(
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, self._stdout, 1),
                    (os.POSIX_SPAWN_DUP2, stderr_write, 2),
                ),
                setpgroup=0,  # Ctrl-C is for us; we end our helpers ourselves
            )
        except OSError:
            os.close(self.stderr)
            os.close(self._stdout)
            raise
        finally:
            os.close(stderr_write)
        adopt(self.pid)
        if is_nice:
            os.setpriority(os.PRIO_PROCESS, self.pid, max(LOW_PRIORITY, os.getpriority(os.PRIO_PROCESS, 0)))

    def drain(self) -> bool:
        """Takes what was said on stderr; ``True`` at its end."""
        chunk = os.read(self.stderr, 4096)
        self._said = (self._said + chunk)[:_MAX_STDERR_BYTES]
        return not chunk

    def end(self, *, is_killed: bool) -> Result[Key]:
        """Reaps the program, killed first where needed, and collects what it wrote."""
        duration = time.monotonic() - self._began
        status = kill(self.pid) if is_killed else _reap(self.pid)
        size = min(os.fstat(self._stdout).st_size, MAX_OUTPUT_BYTES)
        stdout = os.pread(self._stdout, size, 0) if not is_killed else b""
        os.close(self._stdout)
        os.close(self.stderr)
        code = None if is_killed or status is None else os.waitstatus_to_exitcode(status)
        said = self._said.decode("utf-8", "backslashreplace")
        return Result(self.job, code, stdout, said, self.started_at, duration)


def _reap(pid: int) -> int | None:
    """Its stderr has ended, so it is leaving; one that does not within a second is abandoned."""
    return kill(pid, after_s=1.0)


def _open_memory() -> int:
    try:
        return os.memfd_create("hangdoctor")
    except OSError:  # sandboxes without memfd
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def _environment() -> dict[str, str]:
    """RUST_BACKTRACE, where some base image sets it, adds ten lines to every error of py-spy."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RUST_")}
