"""Process and thread ids as the target sees them, and as we do.

Futex words, mutex owners and the arguments of wait4 hold ids of the target's own PID namespace; everything we
report uses the host's. ``NSpid`` in ``/proc/.../status`` ends with the innermost id.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping


def read_inner_id(status_path: str) -> int | None:
    """The id in the innermost namespace, from a ``status`` file of a process or thread."""
    try:
        with open(status_path, "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    return int(line.split()[-1])
    except (OSError, ValueError):
        return None
    return None


def map_threads(pid: int) -> Mapping[int, int]:
    """Inner thread id to host thread id, for the live threads of ``pid``.

    One ``status`` read when the process has no namespace of its own, else one a thread.
    """
    try:
        tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return {}
    if read_inner_id(f"/proc/{pid}/status") in (pid, None):
        return {tid: tid for tid in tids}
    inner = {tid: read_inner_id(f"/proc/{pid}/task/{tid}/status") for tid in tids}
    return {own: tid for tid, own in inner.items() if own is not None}


def is_thread(pid: int, tid: int) -> bool:
    """Whether a process has that thread now; the host's numbers."""
    return os.path.exists(f"/proc/{pid}/task/{tid}")


def list_children(pid: int) -> Iterator[int]:
    """Host pids of the children of all threads of ``pid`` (needs CONFIG_PROC_CHILDREN)."""
    try:
        tids = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for tid in tids:
        try:
            with open(f"/proc/{pid}/task/{tid}/children", "rb") as file:
                yield from map(int, file.read(1 << 16).split())
        except OSError:
            continue


def find_child(pid: int, inner: int) -> int | None:
    """Host pid of the child that ``pid`` itself knows as ``inner``."""
    for child in list_children(pid):
        if read_inner_id(f"/proc/{child}/status") == inner:
            return child
    return None
