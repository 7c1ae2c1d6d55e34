"""A control group with little memory for one process of a test. It takes root and the memory controller (v1 or v2)."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

LEAVE_S = 10.0


def _parent() -> tuple[Path, str]:
    """The group to make ours in, and the name of its limit. Raises OSError without a memory controller."""
    groups = dict(
        line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line
    )
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        kind, _, options = source.split(" ", 2)
        place, inner = Path(mount.split()[4]), mount.split()[3]
        if kind == "cgroup" and "memory" in options.split(","):
            return place / os.path.relpath(groups["memory"], inner), "memory.limit_in_bytes"
        # A group with processes in it can have no limited children in v2, except the root.
        if kind == "cgroup2" and "memory" in (place / "cgroup.subtree_control").read_text().split():
            return place, "memory.max"
    raise FileNotFoundError("no memory controller")


@contextmanager
def little_memory(limit_bytes: int) -> Iterator[Path]:
    """A group that may use ``limit_bytes``, page cache included; who writes its pid to ``cgroup.procs`` is in it.

    Raises OSError where none can be made. Its processes must have ended when the block ends.
    """
    parent, limit = _parent()
    group = Path(tempfile.mkdtemp(prefix="hangdoctor-live-", dir=parent))
    try:
        (group / limit).write_text(str(limit_bytes))
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + LEAVE_S
    while True:
        try:
            group.rmdir()
            return
        except OSError:  # a process that was killed is still being torn down
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@cache
def can_limit() -> bool:
    """Whether such a group can be made here."""
    try:
        with little_memory(64 << 20):
            return True
    except OSError:
        return False
