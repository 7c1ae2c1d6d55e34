"""Doing what the kernel may block for ever in a child that can be abandoned.

A read of ``/proc/PID/maps`` waits while the target's mmap lock is held, ``stat`` waits for a dead NFS server, NVML
waits for a wedged driver; the reader may then be in a state that not even SIGKILL ends. A thread in that state
would keep hangdoctor from ever exiting. A child is killed, not waited for, and costs one :class:`Trouble`.

Children are forked (about 1 ms), answer through a pipe, ignore Ctrl-C, run at low priority, hold none of our
descriptors (or a reader of our output would wait for them), and die with us.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import pickle
import select
import signal
import struct
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from hangdoctor.collect.packing import pack

T = TypeVar("T")
Item = TypeVar("Item")

_HEADER = struct.Struct("<?I")
CHUNK_BYTES = 1 << 16
"""Read from a pipe at once: most messages whole, and often the next one."""
_PR_SET_PDEATHSIG = 1
LOW_PRIORITY = 10
"""Our niceness: the job's own threads come first. Not lower, or a busy machine would let no look end in time."""
_F_SETPIPE_SZ = 1031
"""fcntl.F_SETPIPE_SZ is in Python since 3.10, but not in all builds of it."""
_PIPE_BYTES = 1 << 20
"""The most that an ordinary user may have: a child works on while we read the answers of another."""
_REAP_S = 0.2
_MAX_PATIENCE = 4.0
_MAX_READERS = 8
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_helpers: set[int] = set()
_abandoned: set[int] = set()
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there is no answer: a deadline that passed, or an error in the child."""

    reason: str
    is_timeout: bool = False


def helper_pids() -> frozenset[int]:
    """Our own children that still exist; abandoned ones that could leave by now are reaped."""
    for pid in tuple(_abandoned):
        with contextlib.suppress(ChildProcessError):
            found, _ = os.waitpid(pid, os.WNOHANG)
            if not found:
                continue
        _abandoned.discard(pid)
        _helpers.discard(pid)
    return frozenset(_helpers)


def helpers_cpu_s() -> float:
    """CPU seconds that those have used which still exist; what has ended counts with our own children."""
    used = 0.0
    for pid in helper_pids():
        with contextlib.suppress(OSError):  # it has just ended
            used += time.clock_gettime((~pid << 3) | 2)  # the CPU clock of a process (clock_getcpuclockid)
    return used


def reader_count() -> int:
    """How many children may read processes at once, so that the looks at all ranks lie close together.

    One for each CPU that we may run on: in a container those can be two of a hundred.
    """
    return min(_MAX_READERS, len(os.sched_getaffinity(0)))


def patience() -> float:
    """By how much deadlines are stretched on a busy host: runnable tasks a core, 1 to 4."""
    try:
        return min(_MAX_PATIENCE, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    except OSError:
        return 1.0


class Clock:
    """A budget of seconds that several steps share."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())


def call(function: Callable[[], T], deadline_s: float) -> T | Trouble:
    """``function()`` in a child, or why not. Whatever it returns must be picklable. Never raises for the child."""
    pending = Pending(function, deadline_s)
    try:
        return pending.result()
    finally:
        pending.end()


class Pending(Generic[T]):
    """``function()`` in a child, begun now and asked for later; the deadline counts from now."""

    def __init__(self, function: Callable[[], T], deadline_s: float) -> None:
        self._end = time.monotonic() + deadline_s
        self._child: Child[T] = Child.fork(lambda _: function(), (None,))

    def result(self) -> T | Trouble:
        """Waits for the rest of the deadline. Ask once."""
        return self._child.answer(max(0.0, self._end - time.monotonic()))

    def end(self) -> None:
        """Kills the child if it still runs. Needed in every case."""
        self._child.end()


def each(
    function: Callable[[Item], T],
    items: Sequence[Item],
    *,
    item_s: float,
    total_s: float,
    width: int = 1,
) -> Iterator[tuple[Item, T | Trouble]]:
    """``function(item)`` for all items in ``width`` children; a new child goes on behind an item that blocks.

    No item takes longer than ``item_s`` seconds and all of them no longer than ``total_s``. Every item is yielded once,
    in order when there is one child.
    """
    end = time.monotonic() + total_s
    shards = [list(shard) for number in range(width) if (shard := items[number::width])]
    children: list[Child[T]] = []
    try:
        children.extend(Child.fork(function, shard) for shard in shards)
        for shard, first in zip(shards, children, strict=True):
            yield from _relay(function, shard, first, item_s, end)
    finally:
        for child in children:
            child.end()


def _relay(
    function: Callable[[Item], T], rest: list[Item], child: Child[T], item_s: float, end: float
) -> Iterator[tuple[Item, T | Trouble]]:
    """The answers of one child, and of those that take over from it."""
    while rest:
        try:
            while rest and not child.is_lost:
                item = rest.pop(0)
                yield item, child.answer(min(item_s, end - time.monotonic()))
        finally:
            child.end()
        if not child.is_lost:
            return
        if time.monotonic() >= end:
            yield from ((later, Trouble("did not get its turn in time", True)) for later in rest)
            return
        if rest:
            child = Child.fork(function, rest)


class Child(Generic[T]):
    """A forked process that answers one item after the other."""

    def __init__(self, pid: int, fd: int, refusal: str | None = None) -> None:
        """``refusal``: why there is no process; every answer is that."""
        self._pid = pid
        self._fd = fd
        self._refusal = refusal
        self._received = b""
        self._poll = select.poll()
        if fd >= 0:
            self._poll.register(fd, select.POLLIN)
        self.is_lost = False

    @classmethod
    def refused(cls, why: str) -> Child[T]:
        """No process at all."""
        return cls(0, -1, why)

    @classmethod
    def fork(
        cls, function: Callable[[Item], T], items: Iterable[Item], keeps: Collection[int] = ()
    ) -> Child[T]:
        """``keeps``: those of our descriptors that it needs. It has none of the others.

        A child that stays for long, or is stuck for ever, must not hold the pipes and connections of others open.
        """
        try:
            read_fd, write_fd = os.pipe()
        except OSError as error:
            return cls.refused(f"had no pipe to a helper ({error.strerror})")
        with contextlib.suppress(OSError):  # over the user's limit for pipes
            fcntl.fcntl(write_fd, _F_SETPIPE_SZ, _PIPE_BYTES)
        parent = os.getpid()
        # A Ctrl-C between fork and _serve would unwind the child into our own callers.
        signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            with warnings.catch_warnings():
                # 3.12 warns when other threads exist (a progress display): the child takes none of their locks.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                _serve(function, items, write_fd, parent, keeps)
        except OSError as error:
            os.close(read_fd)
            return cls.refused(f"had no helper process ({error.strerror}: is a limit on processes reached?)")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
            os.close(write_fd)
        _helpers.add(pid)
        return cls(pid, read_fd)

    def is_alive(self) -> bool:
        """Whether it can be asked; of one that owes no answer, for then nothing but its end is news."""
        return self._fd >= 0 and not self.is_lost and not self._poll.poll(0)

    def answer(self, seconds: float) -> T | Trouble:
        if self._refusal is not None:
            return Trouble(self._refusal)
        end = time.monotonic() + seconds
        try:
            is_good, size = _HEADER.unpack(self._read(_HEADER.size, end))
            payload = self._read(size, end)
        except TimeoutError:
            self.is_lost = True
            return Trouble(f"did not return within {seconds:.1f} s and was abandoned", True)
        except EOFError:
            self.is_lost = True
            return Trouble("the reading process died")
        # Written by our own fork, never by the target: the only pickle that is ever loaded.
        value: T | str = pickle.loads(payload)
        return value if is_good else Trouble(str(value))  # type: ignore[return-value]

    def _read(self, size: int, end: float) -> bytes:
        while len(self._received) < size:
            if not self._poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise TimeoutError
            chunk = os.read(self._fd, max(CHUNK_BYTES, size - len(self._received)))
            if not chunk:
                raise EOFError
            self._received += chunk
        data, self._received = self._received[:size], self._received[size:]
        return data

    def end(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            kill(self._pid)


def adopt(pid: int) -> None:
    """Count a child that was started elsewhere among our helpers."""
    _helpers.add(pid)


def kill(pid: int, *, after_s: float = 0.0) -> int | None:
    """SIGKILL one of our own children, unless it ends within ``after_s`` seconds.

    Returns its wait status, or ``None`` when it is stuck in the kernel: then it is abandoned.
    """
    try:
        # Also for 0 s: where somebody else has reaped it, or it is the child of whom we were forked from, this says so
        # (ECHILD), and the number may be another's by now.
        early = _wait(pid, after_s)
        if early is not None:
            return early
        os.kill(pid, signal.SIGKILL)
        last = _wait(pid, _REAP_S)
        if last is None:
            _abandoned.add(pid)
        return last
    except (ProcessLookupError, ChildProcessError):
        _helpers.discard(pid)
        return None


def _wait(pid: int, seconds: float) -> int | None:
    """waitpid that gives up."""
    found, status = os.waitpid(pid, os.WNOHANG)
    if not found:
        _wait_for_end(pid, seconds)
        found, status = os.waitpid(pid, os.WNOHANG)
    if not found:
        return None
    _helpers.discard(pid)
    return status


def _wait_for_end(pid: int, seconds: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, AttributeError):  # before Linux 5.3, or no descriptor is left; a Python built for before
        _look_for_end(pid, seconds)
        return
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        ended.poll(seconds * 1000)
    finally:
        os.close(descriptor)


def _look_for_end(pid: int, seconds: float) -> None:
    """Pauses grow from 0.5 ms, for nearly every child is gone by then."""
    pause, end = 0.0005, time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(pause)
        pause *= 2


def die_with(parent: int) -> None:
    """In a fresh child: be killed when ``parent`` ends, also when it is killed itself."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _serve(
    function: Callable[[Item], T],
    items: Iterable[Item],
    fd: int,
    parent: int,
    keeps: Collection[int],
) -> NoReturn:
    """The child: answer, then leave without running anything of the parent's clean-up."""
    try:
        # A collection writes to every object that is not frozen, and so copies every page of ours.
        gc.disable()
        gc.freeze()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
        die_with(parent)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        _close_all_but({0, 1, 2, fd, *keeps})
        os.nice(max(0, LOW_PRIORITY - os.getpriority(os.PRIO_PROCESS, 0)))
        for item in items:
            try:
                is_good, payload = True, pack(function(item))
            except Exception as error:
                is_good, payload = False, pickle.dumps(_describe(error))
            _write(fd, _HEADER.pack(is_good, len(payload)) + payload)
    finally:
        os._exit(0)


def _close_all_but(kept: Collection[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # that of the listing itself
                os.close(int(name))


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"
