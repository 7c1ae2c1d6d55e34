"""Files of /proc that somebody saved, as the model's nouns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoctor.collect.descriptors import describe_socket
from hangdoctor.collect.procfs import Stat
from hangdoctor.collect.syscalls import decode_syscall
from hangdoctor.model import FileLock, IoCounters, MappedFile, OpenFile, Process, Socket, Syscall

NOBODY = 0
"""A pid that no machine has: decoding must not look into /proc of the machine that imports."""
_WAITS = {"61": 0, "247": 1}
"""wait4 and waitid on x86-64, with the argument that names the child."""
_INODE = re.compile(r"\w+:\[(\d+)\]$")
_KERNEL_FRAME = re.compile(r"\[<\w+>\] ([\w.]+)")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


@dataclass(frozen=True, slots=True)
class Links:
    """The open descriptors of one process: number -> what the link in /proc/PID/fd said."""

    pid: int
    targets: Mapping[int, str]

    def inode(self, fd: int) -> int | None:
        """Of a pipe or socket."""
        found = _INODE.match(self.targets.get(fd, ""))
        return int(found[1]) if found else None


def syscall_of(line: str, wchan: str | None, links: Links, sockets: Sequence[Socket]) -> Syscall | None:
    """A saved line of /proc/PID/task/TID/syscall; descriptors are named from the saved links."""
    words = line.split()
    if words and words[0] in _WAITS and len(words) > 6:
        return _wait(words)
    call = decode_syscall(NOBODY, line, can_read_memory=False, wchan=wchan)
    if call is None or call.fd is None or call.target is not None:
        return call
    link = links.targets.get(call.fd)
    if link is None:
        return call
    if link.startswith("socket:"):
        known = next((socket for socket in sockets if socket.fd == call.fd), None)
        return replace(call, target=describe_socket(known) if known else link)
    is_timed = False if call.is_timed is None else call.is_timed
    return replace(call, target=_plain_name(link), is_timed=is_timed)


def _wait(words: Sequence[str]) -> Syscall:
    """wait4 and waitid: the decoder would look the child up on this machine."""
    args = tuple(int(word, 16) for word in words[1:7])
    child = args[_WAITS[words[0]]] & 0xFFFFFFFF
    target = f"pid {child}" if 0 < child < 1 << 31 else "any child"
    name = "wait4" if words[0] == "61" else "waitid"
    return Syscall(name, args, target=target, is_timed=False, detail=f"waits for child {target}")


def _plain_name(link: str) -> str:
    return link.removeprefix("anon_inode:").strip("[]") if link.startswith("anon_inode:") else link


def wchan_of(text: str, state: str) -> str | None:
    """``0`` means on a CPU or not permitted."""
    return text if text not in ("", "0") and state != "R" else None


def kernel_stack_of(text: str) -> tuple[str, ...]:
    """Function names, innermost first."""
    return tuple(_KERNEL_FRAME.findall(text))


def io_of(text: str) -> IoCounters | None:
    """/proc/PID/io, which is empty for a process on its way out."""
    fields = {
        key: int(value) for key, _, value in (line.partition(": ") for line in text.splitlines()) if value
    }
    if "rchar" not in fields:
        return None
    return IoCounters(
        read_chars=fields["rchar"],
        write_chars=fields["wchar"],
        read_bytes=fields["read_bytes"],
        write_bytes=fields["write_bytes"],
        read_calls=fields["syscr"],
        write_calls=fields["syscw"],
    )


def environ_of(lines: Iterable[str]) -> dict[str, str]:
    """``NAME=value`` lines."""
    return {name: value for name, equals, value in (line.strip().partition("=") for line in lines) if equals}


def exit_code_of(stat: Stat) -> int | None:
    """As subprocess gives it: -9 for a SIGKILL."""
    status = stat.wait_status
    if status is None:
        return None
    return -(status & 0x7F) if status & 0x7F else status >> 8


def open_files(links: Links, holders: Mapping[int, Sequence[int]]) -> tuple[OpenFile, ...]:
    """All descriptors but sockets. ``holders``: inode of a pipe -> the pids that have it open."""
    files = []
    for fd, target in sorted(links.targets.items()):
        if target.startswith("socket:"):
            continue
        inode = links.inode(fd)
        ends = tuple(pid for pid in holders.get(inode or 0, ()) if pid != links.pid)
        files.append(OpenFile(fd, _plain_name(target), _kind(target), inode=inode, other_end=ends))
    return tuple(files)


def _kind(target: str) -> str:
    if target.startswith("pipe:"):
        return "pipe"
    if target.startswith("anon_inode:"):
        name = _plain_name(target)
        return name if name in ("eventfd", "pidfd") else "other"
    if target.startswith("/dev/") and not target.startswith("/dev/shm/"):
        return "device"
    return "file" if target.startswith("/") else "other"


def pipe_holders(all_links: Iterable[Links]) -> dict[int, list[int]]:
    """Inode of every pipe -> pids that have it open."""
    holders: dict[int, list[int]] = {}
    for links in all_links:
        inodes = {links.inode(fd) for fd, target in links.targets.items() if target.startswith("pipe:")}
        for inode in inodes - {None}:
            holders.setdefault(inode or 0, []).append(links.pid)
    return holders


def weights(paths: Iterable[str]) -> tuple[MappedFile, ...]:
    """The weight files among mapped files; sizes and residency were not recorded."""
    return tuple(MappedFile(path, None, None) for path in sorted(set(paths)) if path.endswith(_WEIGHTS))


def file_locks(processes: Iterable[Process]) -> tuple[FileLock, ...]:
    """Lock files that exactly one process has open.

    /proc/locks was not recorded. The build locks of these servers are polled: a waiter opens, fails and closes
    again, so the one process that keeps the file open is the one that /proc/locks would have named.
    """
    openers: dict[str, list[int]] = {}
    for process in processes:
        for path in {file.target for file in process.files}:
            if path.endswith((".lock", "/lock")):
                openers.setdefault(path, []).append(process.pid)
    return tuple(FileLock("flock", path, pids[0]) for path, pids in sorted(openers.items()) if len(pids) == 1)
