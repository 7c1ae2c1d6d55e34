"""Xid errors of the NVIDIA driver in the kernel log: the driver's own word that a GPU failed."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

from hangdoctor.model import Gap, GpuError

KERNEL_LOG = "/dev/kmsg"

MAX_RECORDS = 50_000
"""More than any kernel ring buffer holds; guards against a log that is written faster than it is read."""

_XID = re.compile(r"NVRM: Xid \(PCI:(?P<bus>[0-9A-Fa-f:.]+)\): (?P<code>\d+)(?:, *(?P<text>.*))?")
_PID = re.compile(r"\bpid=['\"]?(?P<pid>\d+)")


@dataclass(frozen=True, slots=True)
class LoggedError:
    """An Xid and the bus address the kernel log gives for its GPU."""

    bus: tuple[int, ...]
    error: GpuError


def bus_key(text: str) -> tuple[int, ...]:
    """Domain, bus and device of ``00000000:1B:00.0`` or ``0000:1b:00``; empty when it is neither."""
    try:
        return tuple(int(part, 16) for part in text.split(".")[0].split(":"))
    except ValueError:
        return ()


def read_gpu_errors(path: str = KERNEL_LOG) -> tuple[tuple[LoggedError, ...], Gap | None]:
    """The Xid lines still in the kernel's buffer, oldest first, or why it cannot be read (needs CAP_SYSLOG)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return (), None
    except OSError as problem:
        return (), Gap(
            "kernel log",
            path,
            f"cannot be read ({problem.strerror}), so GPU errors (Xid) would not be seen",
            "Run hangdoctor as root, or look yourself: dmesg | grep -i xid",
        )
    try:
        return tuple(_errors(fd)), None
    finally:
        os.close(fd)


def _errors(fd: int) -> list[LoggedError]:
    found = []
    now = time.monotonic()
    for _ in range(MAX_RECORDS):
        try:
            record = os.read(fd, 8192)
        except BlockingIOError:
            break
        except BrokenPipeError:  # the record was overwritten while we read; the next read goes on behind it
            continue
        except OSError:
            break
        if not record:
            break
        found += _parse(record.decode("utf-8", "replace"), now)
    return found


def _parse(text: str, now: float) -> list[LoggedError]:
    """Records of /dev/kmsg, ``priority,sequence,microseconds,flags;message``, one a read (a plain file: many)."""
    found = []
    for line in text.splitlines():
        head, _, message = line.partition(";")
        match = _XID.search(message)
        if match is None:
            continue
        fields = head.split(",")
        stamp = fields[2] if len(fields) > 2 else ""
        age = max(0.0, now - int(stamp) / 1e6) if stamp.isdigit() else None
        pid = _PID.search(match["text"] or "")
        error = GpuError(
            code=int(match["code"]),
            text=(match["text"] or "").strip(),
            age_s=age,
            pid=int(pid["pid"]) if pid else None,
        )
        found.append(LoggedError(bus_key(match["bus"]), error))
    return found
