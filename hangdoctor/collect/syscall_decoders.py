"""How the arguments of each blocking system call are read: one small function a call."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hangdoctor.collect import memory
from hangdoctor.collect.descriptors import (
    Descriptor,
    describe_address,
    describe_descriptor,
    read_watched,
)
from hangdoctor.collect.ioctls import describe_ioctl
from hangdoctor.collect.namespaces import find_child
from hangdoctor.model import Socket, Syscall

MAX_WATCHED = 64
MAX_PATH_BYTES = 512
_TIMESPEC = struct.Struct("<qq")

# include/uapi/linux/futex.h
FUTEX_PRIVATE, FUTEX_CLOCK_REALTIME, FUTEX_COMMAND = 128, 256, 127
_FUTEX_WAIT, _FUTEX_LOCK_PI, _FUTEX_WAIT_BITSET, _FUTEX_REQUEUE_PI, _FUTEX_LOCK_PI2 = 0, 6, 9, 11, 13
_FUTEX_VERBS = {
    _FUTEX_WAIT: "wait",
    _FUTEX_WAIT_BITSET: "wait",
    _FUTEX_LOCK_PI: "lock (priority inheriting)",
    _FUTEX_LOCK_PI2: "lock (priority inheriting)",
    _FUTEX_REQUEUE_PI: "wait, then lock (priority inheriting)",
}
_TIMER_ABSTIME = 1
_IORING_ENTER_EXT_ARG = 8


class Call(NamedTuple):
    """One line, split, and what may be asked about it. A tuple, which is made in a fifth of the time."""

    pid: int
    name: str
    args: tuple[int, ...]
    can_read_memory: bool
    sockets: Sequence[Socket]
    pages: memory.Memory | None = None

    def signed(self, index: int) -> int:
        """An argument as C's ``int``."""
        value = self.args[index] & 0xFFFFFFFF
        return value - (1 << 32) if value >> 31 else value

    def read(self, address: int, size: int) -> bytes | None:
        if not self.can_read_memory or not address:
            return None
        try:
            if self.pages is not None:
                return self.pages.read(address, size)
            return memory.read(self.pid, address, size)
        except OSError:
            return None

    def path(self, index: int) -> str | None:
        """The C string an argument points to."""
        for size in (MAX_PATH_BYTES, 64):
            # A string near the end of a mapping: fewer bytes may be readable.
            raw = self.read(self.args[index], size)
            if raw is not None:
                return raw.partition(b"\0")[0].decode("utf-8", "replace")
        return None

    def duration(self, index: int, unit: float = 1e-9) -> float | None:
        """The ``struct timespec`` (or timeval, with unit 1e-6) an argument points to, in seconds."""
        raw = self.read(self.args[index], 16)
        if raw is None:
            return None
        seconds, rest = _TIMESPEC.unpack(raw)
        return float(seconds + rest * unit)

    def descriptor(self, fd: int) -> Descriptor | None:
        return describe_descriptor(self.pid, fd, self.sockets)


Decoder = Callable[[Call], Syscall]


# --- what the calls share -----------------------------------------------------------------------------


def _limit(seconds: float | None, *, is_timed: bool | None) -> str:
    if is_timed is None:
        return ""
    if not is_timed:
        return ", no timeout"
    return f", timeout {seconds:.1f} s" if seconds is not None else ", with a timeout"


def _remaining(deadline: float | None, clock: int) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.clock_gettime(clock))


def _on_descriptor(call: Call, fd: int, clause: str, *, is_timed: bool | None = None) -> Syscall:
    known = call.descriptor(fd)
    extra = f", {known.detail}" if known and known.detail else ""
    return Syscall(
        call.name,
        call.args,
        fd=fd,
        target=known.target if known else None,
        is_timed=is_timed,
        detail=f"{clause} fd {fd}{extra}",
        fds=(fd,),
    )


def _on_set(call: Call, fds: Sequence[int], verb: str, seconds: float | None, *, is_timed: bool) -> Syscall:
    """A call that waits for any of several descriptors."""
    names = []
    for fd in fds[:8]:
        known = call.descriptor(fd)
        names.append(f"fd {fd} {known.target}" if known else f"fd {fd}")
    more = f" and {len(fds) - 8} more" if len(fds) > 8 else ""
    single = call.descriptor(fds[0]) if len(fds) == 1 else None
    return Syscall(
        call.name,
        call.args,
        fd=fds[0] if len(fds) == 1 else None,
        target=single.target if single else None,
        timeout_s=seconds,
        is_timed=is_timed,
        detail=f"{verb} [{', '.join(names)}{more}]{_limit(seconds, is_timed=is_timed)}",
        fds=tuple(fds),
    )


# --- locks --------------------------------------------------------------------------------------------


def _futex(call: Call) -> Syscall:
    operation = call.args[1] & 0xFFFFFFFF
    command = operation & FUTEX_COMMAND
    verb = _FUTEX_VERBS.get(command)
    if verb is None:
        return Syscall(call.name, call.args, detail=f"futex operation {command}")
    is_timed = bool(call.args[3])
    given = call.duration(3) if is_timed else None
    if command == _FUTEX_WAIT:
        seconds = given
    else:  # these take a deadline, not a duration (futex(2))
        is_wall = command == _FUTEX_LOCK_PI or operation & FUTEX_CLOCK_REALTIME
        seconds = _remaining(given, time.CLOCK_REALTIME if is_wall else time.CLOCK_MONOTONIC)
    return _futex_syscall(call, call.args[0], verb, seconds, bool(operation & FUTEX_PRIVATE), is_timed)


def _futex_syscall(
    call: Call, address: int, verb: str, seconds: float | None, is_private: bool, is_timed: bool
) -> Syscall:
    word = call.read(address, 4)
    now = f", word {int.from_bytes(word, 'little'):#x}" if word is not None else ""
    scope = "private" if is_private else "shared"
    detail = f"futex {verb}, {scope}{_limit(seconds, is_timed=is_timed)}, at {address:#x}{now}"
    return Syscall(call.name, call.args, timeout_s=seconds, is_timed=is_timed, detail=detail)


def _futex2_wait(call: Call) -> Syscall:
    """futex_wait(uaddr, val, mask, flags, timeout, clockid), 6.7+."""
    seconds = _remaining(call.duration(4), call.signed(5)) if call.args[4] else None
    is_private = bool(call.args[3] & FUTEX_PRIVATE)
    return _futex_syscall(call, call.args[0], "wait", seconds, is_private, bool(call.args[4]))


def _futex_waitv(call: Call) -> Syscall:
    """futex_waitv(waiters, count, flags, timeout, clockid), 5.16+; entries are {u64 val, u64 uaddr, u32
    flags}.
    """
    seconds = _remaining(call.duration(3), call.signed(4)) if call.args[3] else None
    is_timed = bool(call.args[3])
    detail = f"futex wait on any of {call.args[1]}{_limit(seconds, is_timed=is_timed)}"
    return Syscall(call.name, call.args, timeout_s=seconds, is_timed=is_timed, detail=detail)


def _semaphore(call: Call) -> Syscall:
    is_timed = call.name == "semtimedop" and bool(call.args[3])
    seconds = call.duration(3) if is_timed else None
    detail = f"System V semaphore set {call.signed(0)}{_limit(seconds, is_timed=is_timed)}"
    return Syscall(call.name, call.args, timeout_s=seconds, is_timed=is_timed, detail=detail)


def _file_lock(call: Call) -> Syscall:
    return _on_descriptor(call, call.signed(0), "waits for a lock on", is_timed=False)


# --- events -------------------------------------------------------------------------------------------


def _epoll(call: Call) -> Syscall:
    fd = call.signed(0)
    if call.name == "epoll_pwait2":
        is_timed = bool(call.args[3])
        seconds = call.duration(3) if is_timed else None
    else:
        is_timed = call.signed(3) >= 0
        seconds = call.signed(3) / 1e3 if is_timed else None
    watched = read_watched(call.pid, fd, MAX_WATCHED)
    return replace(_on_set(call, watched, "waits for any of", seconds, is_timed=is_timed), fd=fd)


def _poll(call: Call) -> Syscall:
    count = min(call.args[1] & 0xFFFFFFFF, MAX_WATCHED)
    raw = call.read(call.args[0], 8 * count) or b""
    fds = tuple(fd for fd, _, _ in struct.iter_unpack("<ihh", raw) if fd >= 0)
    if call.name == "ppoll":
        is_timed = bool(call.args[2])
        seconds = call.duration(2) if is_timed else None
    else:
        is_timed = call.signed(2) >= 0
        seconds = call.signed(2) / 1e3 if is_timed else None
    return _on_set(call, fds, "waits for any of", seconds, is_timed=is_timed)


def _select(call: Call) -> Syscall:
    highest = min(call.args[0] & 0xFFFFFFFF, 1024)
    fds: set[int] = set()
    for index in (1, 2, 3):
        raw = call.read(call.args[index], 8 * ((highest + 63) // 64)) if highest else None
        bits = int.from_bytes(raw or b"", "little")
        fds.update(fd for fd in range(highest) if bits >> fd & 1)
    is_timed = bool(call.args[4])
    unit = 1e-9 if call.name == "pselect6" else 1e-6
    seconds = call.duration(4, unit) if is_timed else None
    return _on_set(call, sorted(fds)[:MAX_WATCHED], "waits for any of", seconds, is_timed=is_timed)


def _io_uring(call: Call) -> Syscall:
    fd, is_timed, seconds = call.signed(0), False, None
    if call.args[3] & _IORING_ENTER_EXT_ARG:
        # struct io_uring_getevents_arg {u64 sigmask; u32 size; u32 pad; u64 ts}
        raw = call.read(call.args[4], 24)
        pointer = int.from_bytes(raw[16:24], "little") if raw else 0
        is_timed = bool(pointer)
        spec = call.read(pointer, 16)
        if spec is not None:
            whole, rest = _TIMESPEC.unpack(spec)
            seconds = whole + rest / 1e9
    detail = f"waits for {call.args[2]} io_uring completions{_limit(seconds, is_timed=is_timed)}"
    return Syscall(
        call.name, call.args, fd=fd, target="io_uring", timeout_s=seconds, is_timed=is_timed, detail=detail
    )


# --- input and output ---------------------------------------------------------------------------------


def _transfer(call: Call) -> Syscall:
    """is_timed: a socket may have SO_RCVTIMEO or SO_SNDTIMEO, which cannot be seen; other descriptors
    cannot.
    """
    decoded = _on_descriptor(call, call.signed(0), _VERBS[call.name])
    is_socket = decoded.target is None or decoded.target.startswith(("socket:", "TCP", "UNIX"))
    return decoded if is_socket else replace(decoded, is_timed=False)


def _connect(call: Call) -> Syscall:
    raw = call.read(call.args[1], min(call.args[2] & 0xFFFFFFFF, 128))
    address = describe_address(raw) if raw else None
    decoded = _on_descriptor(call, call.signed(0), f"connects to {address or '?'} through")
    return replace(decoded, target=address or decoded.target)


def _control(call: Call) -> Syscall:
    fd, request = call.signed(0), call.args[1] & 0xFFFFFFFF
    known = call.descriptor(fd)
    words = describe_ioctl(known.target if known else None, request)
    return replace(_on_descriptor(call, fd, "controls"), detail=f"ioctl {words} on fd {fd}")


def _path(index: int, verb: str) -> Decoder:
    def decode(call: Call) -> Syscall:
        path = call.path(index)
        return Syscall(call.name, call.args, target=path, is_timed=False, detail=f"{verb} {path or '?'}")

    return decode


# --- sleep and children -------------------------------------------------------------------------------


def _sleep(call: Call) -> Syscall:
    seconds = call.duration(0)
    return Syscall(
        call.name,
        call.args,
        timeout_s=seconds,
        is_timed=True,
        detail=f"sleeps{_limit(seconds, is_timed=True)}",
    )


def _clock_sleep(call: Call) -> Syscall:
    given = call.duration(2)
    if call.args[1] & _TIMER_ABSTIME:
        seconds = _remaining(given, call.signed(0))
        detail = f"sleeps, {seconds:.1f} s left" if seconds is not None else "sleeps until a set time"
    else:
        seconds, detail = given, f"sleeps{_limit(given, is_timed=True)}"
    return Syscall(call.name, call.args, timeout_s=seconds, is_timed=True, detail=detail)


def _signal(call: Call) -> Syscall:
    is_timed = call.name == "rt_sigtimedwait" and bool(call.args[2])
    seconds = call.duration(2) if is_timed else None
    detail = f"waits for a signal{_limit(seconds, is_timed=is_timed)}"
    return Syscall(call.name, call.args, timeout_s=seconds, is_timed=is_timed, detail=detail)


def _wait(call: Call) -> Syscall:
    """wait4(pid, …): pid < -1 and 0 name process groups. waitid(type, id, …): P_PID is 1, P_PIDFD 3."""
    wanted = call.signed(0)
    if call.name == "waitid":
        if call.signed(0) == 3:
            return _on_descriptor(call, call.signed(1), "waits for a child,", is_timed=False)
        wanted = call.signed(1) if call.signed(0) == 1 else -1
    if wanted <= 0:
        return Syscall(call.name, call.args, target="any child", is_timed=False, detail="waits for any child")
    child = find_child(call.pid, wanted)
    comm = _read_comm(child) if child else None
    target = f"pid {child}" if child else f"pid {wanted} of its own namespace"
    detail = f"waits for child {target}{f' ({comm})' if comm else ''}"
    return Syscall(call.name, call.args, target=target, is_timed=False, detail=detail)


def _read_comm(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return None


_VERBS = {
    **dict.fromkeys(("read", "readv", "pread64", "preadv", "preadv2"), "reads"),
    **dict.fromkeys(("write", "writev", "pwrite64", "pwritev", "pwritev2"), "writes"),
    **dict.fromkeys(("recvfrom", "recvmsg", "recvmmsg"), "receives from"),
    **dict.fromkeys(("sendto", "sendmsg", "sendmmsg", "sendfile"), "sends to"),
    **dict.fromkeys(("accept", "accept4"), "accepts on"),
    **dict.fromkeys(("fsync", "fdatasync", "sync_file_range", "syncfs"), "flushes"),
    **dict.fromkeys(("getdents64", "fallocate", "ftruncate", "splice", "close", "fstat"), "works on"),
}
DECODERS: Mapping[str, Decoder] = {
    **dict.fromkeys(_VERBS, _transfer),
    "futex": _futex,
    "futex_wait": _futex2_wait,
    "futex_waitv": _futex_waitv,
    "semop": _semaphore,
    "semtimedop": _semaphore,
    "flock": _file_lock,
    "fcntl": _file_lock,
    "epoll_wait": _epoll,
    "epoll_pwait": _epoll,
    "epoll_pwait2": _epoll,
    "poll": _poll,
    "ppoll": _poll,
    "select": _select,
    "pselect6": _select,
    "io_uring_enter": _io_uring,
    "connect": _connect,
    "ioctl": _control,
    "open": _path(0, "opens"),
    "openat": _path(1, "opens"),
    "openat2": _path(1, "opens"),
    "stat": _path(0, "asks about"),
    "lstat": _path(0, "asks about"),
    "access": _path(0, "asks about"),
    "newfstatat": _path(1, "asks about"),
    "statx": _path(1, "asks about"),
    "unlink": _path(0, "removes"),
    "unlinkat": _path(1, "removes"),
    "execve": _path(0, "executes"),
    "nanosleep": _sleep,
    "clock_nanosleep": _clock_sleep,
    "pause": _signal,
    "rt_sigsuspend": _signal,
    "rt_sigtimedwait": _signal,
    "wait4": _wait,
    "waitid": _wait,
}
