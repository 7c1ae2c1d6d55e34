"""Who holds which pipe and socket: the descriptors of processes, by inode.

Inodes of pipes and sockets are unique on a host, across containers, so equal inodes mean the same object.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

SCAN_LIMIT_S = 0.5
MAX_DESCRIPTORS = 65536
"""A process."""


@dataclass(frozen=True, slots=True)
class Held:
    """One descriptor of one process."""

    pid: int
    fd: int
    inode: int
    is_socket: bool
    can_read: bool
    can_write: bool


@dataclass(frozen=True)
class Holders:
    """What was seen. ``is_complete``: everybody who was asked for (the whole host) could be looked at."""

    held: tuple[Held, ...]
    is_complete: bool

    @cached_property
    def by_inode(self) -> Mapping[int, tuple[Held, ...]]:
        grouped: dict[int, list[Held]] = {}
        for item in self.held:
            grouped.setdefault(item.inode, []).append(item)
        return {inode: tuple(items) for inode, items in grouped.items()}

    def pids(self, inode: int) -> tuple[int, ...]:
        """Ascending."""
        return tuple(sorted({item.pid for item in self.by_inode.get(inode, ())}))


def list_held(pid: int) -> tuple[Held, ...] | None:
    """The pipes and sockets of one process; ``None`` when we may not look. Opens nothing."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return ()
    except OSError:
        return None
    found = []
    for name in names[:MAX_DESCRIPTORS]:
        path = f"{folder}/{name}"
        try:
            link = os.readlink(path)
            if not link.startswith(("pipe:[", "socket:[")):
                continue
            # The link's own mode bits say how it was opened (proc_fd_link, fs/proc/fd.c).
            mode = os.lstat(path).st_mode
        except OSError:
            continue  # closed meanwhile
        kind, _, rest = link.partition(":[")
        found.append(
            Held(
                pid,
                int(name),
                int(rest.rstrip("]")),
                is_socket=kind == "socket",
                can_read=bool(mode & stat.S_IRUSR),
                can_write=bool(mode & stat.S_IWUSR),
            )
        )
    return tuple(found)


def find_holders(pids: Iterable[int]) -> Holders:
    """The pipes and sockets of these processes only. ``is_complete``: all of them could be looked at."""
    lists = [list_held(pid) for pid in pids]
    held = tuple(item for found in lists if found is not None for item in found)
    return Holders(held, is_complete=None not in lists)


def scan_host(inodes: Collection[int], *, limit_s: float = SCAN_LIMIT_S) -> Holders:
    """Everybody on the host who holds one of ``inodes``. Stops after ``limit_s`` (then not complete)."""
    wanted, end = frozenset(inodes), time.monotonic() + limit_s
    held: list[Held] = []
    is_complete = True
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        if time.monotonic() > end:
            return Holders(tuple(held), is_complete=False)
        found = list_held(int(name))
        if found is None:
            is_complete = False
        else:
            held += [item for item in found if item.inode in wanted]
    return Holders(tuple(held), is_complete)
