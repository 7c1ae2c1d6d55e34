"""Who holds which file lock: those the kernel keeps, and files that are locks by existing."""

from __future__ import annotations

import pwd
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hangdoctor.collect.procfs import read_bytes
from hangdoctor.model import FileLock, Process

MAX_LOCK_FILES = 32
_LOCK = re.compile(
    r"^(?P<id>\d+): +(?P<arrow>-> )?(?P<kind>FLOCK|POSIX|OFDLCK)\s+\S+\s+\S+\s+(?P<pid>-?\d+) "
    r"(?P<device>[0-9a-f]+:[0-9a-f]+):(?P<inode>\d+) ",
    re.M,
)
_KINDS = {"FLOCK": "flock", "POSIX": "posix", "OFDLCK": "ofd"}
_LOCK_FILE = re.compile(r"/(lock|[^/]*\.lock)$")
_BATON_DEPTHS = ("*/lock", "*/*/lock")
"""``<cache>/py311_cu128/<extension>/lock``, or ``<cache>/<extension>/lock`` where TORCH_EXTENSIONS_DIR is set."""


def read_file_locks(processes: Sequence[Process]) -> tuple[FileLock, ...]:
    """Locks of /proc/locks that a process of the tree holds or waits for, with the path where a descriptor tells."""
    return parse_locks(read_bytes("/proc/locks", limit=4 << 20).decode("ascii", "replace"), processes)


def parse_locks(listing: str, processes: Sequence[Process]) -> tuple[FileLock, ...]:
    """As the kernel lists them: waiters (``->``) follow the lock they wait for, under its number."""
    pids = {process.pid for process in processes}
    paths = {
        file.inode: file.target for process in processes for file in process.files if file.kind == "file"
    }
    openers = _openers(processes)
    groups: dict[str, list[re.Match[str]]] = {}
    for found in _LOCK.finditer(listing):
        groups.setdefault(found["id"], []).append(found)
    locks = []
    for rows in groups.values():
        held = next((row for row in rows if not row["arrow"]), None)
        waiters = tuple(int(row["pid"]) for row in rows if row["arrow"] and int(row["pid"]) > 0)
        if held is None:
            continue
        inode, holder = int(held["inode"]), int(held["pid"])
        # An open-file-description lock names no process; who has the file open may hold it.
        known = openers.get(inode, ()) if holder <= 0 else (holder,)
        if pids.isdisjoint((*known, *waiters)):
            continue
        owner = known[0] if len(known) == 1 else None
        locks.append(FileLock(_KINDS[held["kind"]], paths.get(inode), owner, waiters))
    return tuple(locks)


def _openers(processes: Iterable[Process]) -> Mapping[int, tuple[int, ...]]:
    openers: dict[int, tuple[int, ...]] = {}
    for process in processes:
        for inode in {file.inode for file in process.files if file.kind == "file" and file.inode is not None}:
            openers[inode] = (*openers.get(inode, ()), process.pid)
    return openers


def find_existence_locks(processes: Sequence[Process], taken: Iterable[FileLock]) -> tuple[FileLock, ...]:
    """Files that are locks by existing (torch's FileBaton for C++ extensions), with their age and who has them open.

    Looks at open files called ``lock`` or ``*.lock`` that are not in ``taken``, and into the extension caches of the
    processes, where a file that nobody has open was left behind. Touches the target's file system: behind a deadline.
    """
    known = {lock.path for lock in taken}
    found: dict[str, tuple[str, int | None]] = {}
    for process in processes:
        for opened in process.files:
            if opened.kind == "file" and _LOCK_FILE.search(opened.target) and opened.target not in known:
                found.setdefault(opened.target, (f"/proc/{process.pid}/root", process.pid))
    for folder, root in _caches(processes).items():
        for depth in _BATON_DEPTHS:
            for file in Path(root + folder).glob(depth):
                found.setdefault(str(file).removeprefix(root), (root, None))
    now, locks = time.time(), []
    for path, (root, pid) in list(found.items())[:MAX_LOCK_FILES]:
        try:
            age = max(0.0, now - Path(root + path).stat().st_mtime)
        except OSError:
            continue
        locks.append(FileLock("existence", path, pid, age_s=age))
    return tuple(locks)


def _caches(processes: Iterable[Process]) -> Mapping[str, str]:
    """Extension caches → the root directory of a process that uses them."""
    folders: dict[str, str] = {}
    for process in processes:
        given = (process.environ or {}).get("TORCH_EXTENSIONS_DIR", "")
        home = _home(process.uid)
        folder = given if given.startswith("/") else f"{home}/.cache/torch_extensions" if home else None
        if folder and "torch" in process.versions:
            folders.setdefault(folder, f"/proc/{process.pid}/root")
    return folders


def _home(uid: int | None) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_dir if uid is not None else None
    except KeyError:
        return None
