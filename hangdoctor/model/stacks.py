"""A thread at one moment: its stack, the system call and the lock it waits in, how its CPU time went."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Method(str, Enum):
    """How a stack was obtained; part of the datum, because trust depends on it."""

    PY_SPY_NONBLOCKING = "py-spy --nonblocking"
    PY_SPY_BLOCKING = "py-spy"
    PY_SPY_NATIVE = "py-spy --native"
    REMOTE_DEBUGGING = "_remote_debugging"
    MEMORY = "own reader"
    """hangdoctor's own reader of interpreter memory."""
    PYSTACK = "pystack"
    GDB = "gdb"
    FAULTHANDLER = "faulthandler"
    TRACEBACK = "traceback"
    FLIGHT_RECORDER = "flight-recorder"
    PASTED = "pasted text"
    OTHER = "other"
    """A method that this release does not know, in a bundle from a newer one."""


class Activity(str, Enum):
    """What a thread is doing, as far as one look can tell (DESIGN.md section 5)."""

    WAIT_LOCK = "waits for a lock"
    WAIT_EVENT = "waits to be notified"
    """A Condition, an Event: nobody holds it, somebody has to set it."""
    WAIT_PEER = "waits for a peer process"
    WAIT_COLLECTIVE = "waits in a collective"
    WAIT_GPU = "waits for the GPU"
    WAIT_IO = "waits for input or output"
    WAIT_CHILD = "waits for a child process"
    WAIT_WORK = "waits for work"
    TIMED_SLEEP = "sleeps"
    SPIN = "spins"
    RUN = "runs"
    UNINTERRUPTIBLE = "is in an uninterruptible wait"
    STOPPED = "is stopped"
    BLOCKED = "is blocked"
    """In a system call or lock that could not be named more closely."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One call. ``function`` is qualified where the source knows it (``Event.wait``), bare otherwise."""

    function: str
    file: str
    line: int | None = None
    module: str | None = None
    """Shared library of a native frame."""
    is_native: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """Frames, innermost first, and how they were obtained."""

    frames: tuple[Frame, ...]
    method: Method
    is_torn: bool = False
    """The stack does not end in a root frame, so it changed while it was read: the thread runs."""


@dataclass(frozen=True, slots=True)
class Syscall:
    """The system call a thread sits in, decoded as far as its pointers could be followed."""

    name: str
    """``futex``, ``epoll_wait`` …; ``running`` when on a CPU; ``page-fault`` when blocked outside a call."""
    args: tuple[int, ...] = ()
    fd: int | None = None
    target: str | None = None
    """What ``fd`` is: a path, ``pipe:[ino]``, ``TCP a:p <-> b:q``, ``eventfd``, a pid …"""
    timeout_s: float | None = None
    """Remaining or full time-out in seconds; ``None`` with ``is_timed=False`` means for ever."""
    is_timed: bool | None = None
    detail: str | None = None
    """The call as one readable clause: ``futex wait, private, no timeout``."""
    fds: tuple[int, ...] = ()
    """All descriptors it waits for: the set of a poll, select or epoll, else just ``fd``."""


@dataclass(frozen=True, slots=True)
class LockWait:
    """The lock a thread waits for, read from the target's memory, and who holds it where that is recorded."""

    kind: str
    """``mutex``, ``rwlock``, ``threading.Lock``, ``threading.RLock``, ``gil``, ``mp.Lock``, ``import lock``,
    ``thread.join``;
    without an owner by nature: ``condition``, ``semaphore``, ``mp.Semaphore``."""
    address: int
    owner_tid: int | None = None
    owner_pid: int | None = None
    owner_how: str | None = None
    """``recorded`` (the lock stores it), ``value-stack`` (a ``with`` block holds it), ``possible``."""
    is_shared: bool = False
    is_orphaned: bool = False
    """Locked, and the owner it records is no thread of this process: copied by fork while it was held, or its
    holder ended."""
    readers: int | None = None
    """Of a ``rwlock`` that readers hold: how many; who they are is recorded nowhere."""


@dataclass(frozen=True, slots=True)
class Thread:
    """One OS thread: the kernel's view and, where there is one, Python's."""

    tid: int | None
    """Host numbering; ``None`` in foreign dumps that print none."""
    name: str | None = None
    """Python's name (``MainThread``)."""
    comm: str | None = None
    state: str | None = None
    """The kernel's letter: R S D T t Z X I P."""
    stack: Stack | None = None
    owns_gil: bool | None = None
    wchan: str | None = None
    syscall: Syscall | None = None
    kernel_stack: tuple[str, ...] = ()
    user_ticks: int | None = None
    system_ticks: int | None = None
    run_ns: int | None = None
    """Time on a CPU so far (schedstat)."""
    runnable_ns: int | None = None
    """Time spent ready to run but without a CPU: a starved thread is not a resting one."""
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    last_ran_s: float | None = None
    """Seconds since the thread was last on a CPU, at the time of the look."""
    minor_faults: int | None = None
    major_faults: int | None = None
    lock: LockWait | None = None
    spin: SpinSample | None = None
    is_active_hint: bool | None = None
    """py-spy's ``active``: noise, kept for foreign dumps where nothing better exists."""


@dataclass(frozen=True, slots=True)
class SpinSample:
    """How often sampled user registers repeat: a tight spin repeats the same few vectors."""

    samples: int
    recurrence: float
    """0..1, share of samples whose register vector was seen before."""
    pages: int | None = None
    """Pages of its data that the registers pointed into: work walks through memory, a wait keeps to its few."""
    new_pages: float | None = None
    """0..1, share of the later half of the samples that pointed into a page of which the first half knew nothing."""
