"""Open files, pipes and devices of a process; sockets are apart.

Links and ``fdinfo`` come from procfs and do not touch the files themselves. Sizes do: a ``stat`` of a file on a
dead server never returns, so :func:`read_sizes` is a step of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hangdoctor.collect.procfs import read_once, text
from hangdoctor.model import MappedFile, OpenFile

MAX_OPEN_FILES = 256
"""A server has a few dozen that matter; 4096 inherited ones would only swell the bundle."""
MAX_DESCRIPTORS = 4096
_ACCESS = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}
_FIELD = re.compile(rb"^(pos|flags|ino|Pid|eventfd-count):\s*(\S+)", re.M)
_PIPE = re.compile(r"^pipe:\[(\d+)\]$")
_DULL_DEVICES = frozenset(("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/tty"))
_RANK = {"file": 0, "pipe": 1, "pidfd": 2, "device": 3, "eventfd": 4, "other": 5}


@dataclass(frozen=True, slots=True)
class FileSize:
    """What ``stat`` says of an open or mapped file."""

    size_bytes: int
    inode: int
    modified_at: float


def read_files(pid: int) -> tuple[OpenFile, ...]:
    """The descriptors that matter, regular files first, at most 256. Raises ``OSError`` when not permitted."""
    folder = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        info = os.open(f"/proc/{pid}/fdinfo", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        os.close(folder)
        raise
    try:
        numbers = sorted(int(name) for name in os.listdir(folder))[:MAX_DESCRIPTORS]
        found = [file for number in numbers if (file := _read_file(number, folder, info)) is not None]
    finally:
        os.close(folder)
        os.close(info)
    return tuple(sorted(_first_of_each_device(found), key=lambda file: _RANK[file.kind])[:MAX_OPEN_FILES])


def _read_file(fd: int, folder: int, info: int) -> OpenFile | None:
    try:
        link = text(os.fsencode(os.readlink(str(fd), dir_fd=folder)))
        kind = _kind(link)
        if kind is None:
            return None
        fields = dict(_FIELD.findall(read_once(str(fd), info)))
    except OSError:
        return None  # closed meanwhile
    flags = int(fields.get(b"flags", b"0"), 8)
    pipe = _PIPE.match(link)
    inode = int(pipe[1]) if pipe else int(fields[b"ino"]) if b"ino" in fields else None
    other = (int(fields[b"Pid"]),) if int(fields.get(b"Pid", b"-1")) > 0 else ()
    return OpenFile(
        fd=fd,
        target=link,
        kind=kind,
        position=int(fields[b"pos"]) if kind == "file" and b"pos" in fields else None,
        access=_ACCESS.get(flags & os.O_ACCMODE),
        inode=inode,
        other_end=other,
    )


def _kind(link: str) -> str | None:
    """``None`` for what can never explain a hang: sockets (read apart), /dev/null, epoll and inotify handles."""
    if link.startswith("/dev/") and not link.startswith("/dev/shm/"):
        return None if link in _DULL_DEVICES else "device"
    if link.startswith("/"):
        return "file"
    if _PIPE.match(link):
        return "pipe"
    if link.startswith("anon_inode:"):
        name = link.partition(":")[2].strip("[]")
        return name if name in ("eventfd", "pidfd") else None
    return None if link.startswith("socket:") else "other"


def _first_of_each_device(files: Iterable[OpenFile]) -> Iterable[OpenFile]:
    """CUDA opens /dev/nvidia0 dozens of times; once is enough."""
    seen = set()
    for file in files:
        if file.kind == "device":
            if file.target in seen:
                continue
            seen.add(file.target)
        yield file


def read_sizes(pid: int) -> Mapping[str, FileSize]:
    """Sizes of the regular files a process has open or mapped, by the name the kernel gives them.

    Blocks when a file lies on a dead file server: only behind a deadline. Opened files are asked through their
    descriptor, which is right across containers and for deleted files.
    """
    sizes: dict[str, FileSize] = {}
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder)[:MAX_DESCRIPTORS]:
        try:
            link = text(os.fsencode(os.readlink(f"{folder}/{name}")))
            if _kind(link) == "file" and link not in sizes:
                sizes[link] = _size(Path(folder, name).stat())
        except OSError:
            continue
    return sizes


def read_mapped_sizes(pid: int, mapped: Iterable[MappedFile]) -> Mapping[str, FileSize]:
    """As :func:`read_sizes`, for mapped files that may no longer be open."""
    sizes = {}
    for file in mapped:
        try:
            sizes[file.path] = _size(Path(f"/proc/{pid}/root{file.path}").stat())
        except OSError:
            continue
    return sizes


def _size(found: os.stat_result) -> FileSize:
    return FileSize(found.st_size, found.st_ino, found.st_mtime)


def add_sizes(files: Iterable[OpenFile], sizes: Mapping[str, FileSize]) -> tuple[OpenFile, ...]:
    """The files with their sizes, and inodes where ``fdinfo`` had none (kernels before 5.14)."""
    return tuple(
        replace(
            file,
            size_bytes=sizes[file.target].size_bytes,
            inode=file.inode if file.inode is not None else sizes[file.target].inode,
        )
        if file.kind == "file" and file.target in sizes
        else file
        for file in files
    )


def add_mapped_sizes(files: Iterable[MappedFile], sizes: Mapping[str, FileSize]) -> tuple[MappedFile, ...]:
    """The mapped files with the sizes of the files behind them."""
    return tuple(
        replace(file, size_bytes=sizes[file.path].size_bytes) if file.path in sizes else file
        for file in files
    )
