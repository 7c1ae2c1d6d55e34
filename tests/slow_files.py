"""A read-only file system that serves one folder at a bounded rate: slow storage with a throttle in the test's hand.

    with throttled(folder, title) as slow:      runs python -m tests.slow_files FOLDER MOUNT TITLE
        slow.set_rate("500000")

Processes whose title begins with TITLE read at the rate that arrives on stdin: ``rate 500000`` (bytes/s), ``rate 0``
(reads block), ``rate max``. All others read at full speed. End of stdin ends it: unmounted, pending reads fail.

It speaks the kernel's FUSE protocol (include/uapi/linux/fuse.h) itself, because mount(2) and /dev/fuse are all that it
needs: no libfuse, no package. A process with TITLE gets inodes of its own, and so a page cache of its own, as if it
were on another machine; otherwise the pages that the fast ranks have read would make it fast.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

HEADER = struct.Struct("<IIQQIIIHH")
REPLY = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
READ = struct.Struct("<QQIIQII")
BUFFER_BYTES = 1 << 20
BLOCK = 4096
LOOKUP, FORGET, GETATTR, OPEN, READ_FILE, STATFS, RELEASE, FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
INIT, OPENDIR, READDIR, RELEASEDIR, INTERRUPT, DESTROY, BATCH_FORGET = 26, 27, 28, 29, 36, 38, 42
VERSION, MINOR = 7, 31
ROOT_NODE = 1
KEEP_CACHE = 2
MS_RDONLY, MS_NOSUID, MS_NODEV, MNT_DETACH = 1, 2, 4, 2


@dataclass(frozen=True, slots=True)
class Call:
    """One request of the kernel."""

    unique: int
    node: int
    pid: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Pending:
    """A read of a throttled process that has not been answered."""

    call: Call
    data: bytes


class SlowFolder:
    """Answers the kernel for one folder. Node 2n is file n before a throttled process asked for it, 2n + 1 after.

    Who is throttled is decided at the look-up: to read its title during a read could wait for the memory map that the
    reader itself holds. From then on everybody gets the throttled inode: whoever made the kernel look again and find
    another one, say by stat(2), would turn the file in /proc/PID/maps into a deleted one.
    """

    def __init__(self, folder: Path, title: str, device: int) -> None:
        self._files = sorted(path for path in folder.iterdir() if path.is_file())
        self._title = title.encode()
        self._device = device
        self._slow_pids: set[int] = set()
        self._slow_nodes: set[int] = set()
        self._pending: deque[Pending] = deque()
        self._rate: float | None = None
        self._next_at = time.monotonic()
        self._answers: dict[int, Callable[[Call], bytes | int | None]] = {
            INIT: self._init,
            LOOKUP: self._lookup,
            GETATTR: lambda call: struct.pack("<QII", 0, 0, 0) + self._attributes(call.node),
            OPEN: lambda call: struct.pack("<QII", 0, KEEP_CACHE, 0),
            OPENDIR: lambda call: struct.pack("<QII", 0, 0, 0),
            READ_FILE: self._read,
            READDIR: self._list,
            RELEASE: lambda call: b"",
            RELEASEDIR: lambda call: b"",
            FLUSH: lambda call: b"",
            STATFS: lambda call: struct.pack("<QQQQQIII28x", 0, 0, 0, 0, 0, BLOCK, 255, BLOCK),
            FORGET: lambda call: None,
            BATCH_FORGET: lambda call: None,
            INTERRUPT: self._interrupt,
        }

    def serve(self, control: int) -> None:
        """Until the end of ``control`` or of the mount."""
        poll = select.poll()
        poll.register(self._device, select.POLLIN)
        poll.register(control, select.POLLIN | select.POLLHUP)
        words = b""
        while True:
            for fd, _ in poll.poll(self._wait_ms()):
                if fd == control:
                    said = os.read(control, 4096)
                    if not said:
                        return
                    *lines, words = (words + said).split(b"\n")
                    for line in lines:
                        self._set_rate(line.decode().split()[1])
                elif not self._serve_one():
                    return
            self._answer_due()

    def _set_rate(self, words: str) -> None:
        self._rate = None if words == "max" else float(words)
        self._next_at = time.monotonic()

    def _serve_one(self) -> bool:
        try:
            data = os.read(self._device, BUFFER_BYTES + HEADER.size + READ.size)
        except OSError as error:
            return error.errno in (
                errno.EINTR,
                errno.EAGAIN,
                errno.ENOENT,
            )  # ENOENT: the caller gave up meanwhile
        _, opcode, unique, node, _, _, pid, _, _ = HEADER.unpack_from(data)
        if opcode == DESTROY:
            return False
        answer = self._answers.get(opcode, lambda call: errno.ENOSYS)
        reply = answer(Call(unique, node, pid, data[HEADER.size :]))
        if reply is not None:
            self._reply(unique, reply)
        return True

    def _reply(self, unique: int, reply: bytes | int) -> None:
        data = reply if isinstance(reply, bytes) else b""
        error = 0 if isinstance(reply, bytes) else -reply
        try:
            os.write(self._device, REPLY.pack(REPLY.size + len(data), error, unique) + data)
        except OSError as failed:
            if failed.errno != errno.ENOENT:  # ENOENT: the caller was killed meanwhile
                raise

    def _wait_ms(self) -> int | None:
        if not self._pending or self._rate == 0:
            return None
        return max(0, round((self._next_at - time.monotonic()) * 1000))

    def _answer_due(self) -> None:
        while self._pending and self._rate != 0 and self._next_at <= time.monotonic():
            first = self._pending.popleft()
            self._reply(first.call.unique, first.data)
            if self._pending:
                self._schedule(self._pending[0])

    def _schedule(self, pending: Pending) -> None:
        if self._rate:
            self._next_at = max(self._next_at, time.monotonic()) + len(pending.data) / self._rate

    def _init(self, call: Call) -> bytes:
        readahead = struct.unpack_from("<III", call.body)[2]
        return struct.pack("<IIIIHHIIHH32x", VERSION, MINOR, readahead, 0, 16, 12, BUFFER_BYTES, 1, 32, 0)

    def _lookup(self, call: Call) -> bytes | int:
        name = os.fsdecode(call.body.rstrip(b"\0"))
        for number, path in enumerate(self._files, 1):
            if path.name == name:
                node = self._choose_node(number, call.pid)
                # No validity: the next process to walk this path is asked for again, and may get another inode.
                return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + self._attributes(node)
        return errno.ENOENT

    def _choose_node(self, number: int, pid: int) -> int:
        try:
            is_slow = Path(f"/proc/{pid}/cmdline").read_bytes().startswith(self._title)
        except OSError:
            is_slow = False
        if is_slow:
            self._slow_pids.add(pid)
            self._slow_nodes.add(2 * number + 1)
        return 2 * number + ((2 * number + 1) in self._slow_nodes)

    def _attributes(self, node: int) -> bytes:
        if node == ROOT_NODE:
            return ATTRIBUTES.pack(1, 0, 0, 0, 0, 0, 0, 0, 0, stat.S_IFDIR | 0o555, 2, 0, 0, 0, BLOCK, 0)
        size = self._files[node // 2 - 1].stat().st_size
        blocks = -(-size // 512)
        mode = stat.S_IFREG | 0o444
        return ATTRIBUTES.pack(node, size, blocks, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, BLOCK, 0)

    def _read(self, call: Call) -> bytes | None:
        _, offset, size, *_ = READ.unpack_from(call.body)
        with self._files[call.node // 2 - 1].open("rb") as file:
            data = os.pread(file.fileno(), size, offset)
        if call.pid not in self._slow_pids or self._rate is None:
            return data
        self._pending.append(Pending(call, data))
        if len(self._pending) == 1:
            self._schedule(self._pending[0])
        return None

    def _interrupt(self, call: Call) -> None:
        """The reader was killed: without an answer it could not die."""
        (unique,) = struct.unpack_from("<Q", call.body)
        for pending in list(self._pending):
            if pending.call.unique == unique:
                self._pending.remove(pending)
                self._reply(unique, errno.EINTR)

    def _list(self, call: Call) -> bytes:
        _, offset, size, *_ = READ.unpack_from(call.body)
        entries = b""
        for place, path in enumerate(self._files[offset:], offset + 1):
            name = os.fsencode(path.name)
            entry = struct.pack("<QQII", 2 * place, place, len(name), stat.S_IFREG >> 12) + name
            entry += b"\0" * (-len(entry) % 8)
            if len(entries) + len(entry) > size:
                break
            entries += entry
        return entries


class NoFuse(OSError):
    """Nothing can be mounted here: it takes root, or CAP_SYS_ADMIN, and /dev/fuse."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """A mounted folder and its throttle."""

    folder: Path
    control: IO[str]

    def set_rate(self, words: str) -> None:
        """Bytes a second for the throttled processes, or ``max``."""
        self.control.write(f"rate {words}\n")
        self.control.flush()


@contextmanager
def throttled(folder: Path, title: str) -> Iterator[Throttled]:
    """Mount ``folder`` again for processes with this title to read slowly. Raises NoFuse."""
    command = [sys.executable, "-m", "tests.slow_files", str(folder)]
    with tempfile.TemporaryDirectory(prefix="hd-slow-", dir="/tmp") as mount_point:
        popen = subprocess.Popen(
            [*command, mount_point, title],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        assert popen.stdin is not None and popen.stdout is not None and popen.stderr is not None
        try:
            if not popen.stdout.readline():
                raise NoFuse(popen.stderr.read().strip().rpartition("\n")[2])
            yield Throttled(Path(mount_point), popen.stdin)
        finally:
            popen.stdin.close()
            popen.wait(timeout=30)
            popen.stdout.close()
            popen.stderr.close()


@cache
def can_mount() -> bool:
    """Whether such a file system can be made here."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with throttled(Path(folder), ""):
                return True
        except NoFuse:
            return False


def main() -> None:
    """Mount, say ``mounted``, serve, unmount."""
    folder, mount_point, title = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40555,user_id=0,group_id=0,allow_other"
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV
    if libc.mount(b"slow-files", os.fsencode(mount_point), b"fuse", flags, options.encode()) != 0:
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    try:
        print("mounted", flush=True)
        SlowFolder(Path(folder), title, device).serve(sys.stdin.fileno())
    finally:
        os.close(device)  # ends pending reads with an error
        libc.umount2(os.fsencode(mount_point), MNT_DETACH)


if __name__ == "__main__":
    main()
