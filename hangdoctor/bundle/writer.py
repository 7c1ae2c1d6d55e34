"""Writing bundles: valid on disk after every snapshot, never half-written, private to its owner."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol

from hangdoctor.bundle.codec import encode_head, encode_snapshot
from hangdoctor.bundle.container import LIMITS, pack
from hangdoctor.bundle.version import FORMAT, JsonObject
from hangdoctor.errors import HangdoctorError
from hangdoctor.model import Capture, Gap, Host, Snapshot, Target, Tool


def bundle_name(pid: int | None, taken_at: float) -> str:
    """``hangdoctor-4711-20251129T180341Z.hang``; ``taken_at`` is Unix time."""
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(taken_at))
    return f"hangdoctor-{'unknown' if pid is None else pid}-{when}.hang"


def write(capture: Capture, destination: str | os.PathLike[str] | BinaryIO) -> None:
    """Write a whole capture to a path, to ``-`` (standard output) or to a binary stream.

    Raises HangdoctorError when it cannot be written; nothing is left behind then, and a file that was there
    before is untouched.
    """
    sink = _sink_for(destination)
    head = replace(capture, snapshots=())
    members = [_manifest(head, None)]
    members += [_snapshot(index, snapshot) for index, snapshot in enumerate(capture.snapshots)]
    sink.publish(members, _manifest(head, len(capture.snapshots)))
    sink.finish()


class BundleWriter:
    """Keeps a bundle complete while snapshots come in.

    A path holds a valid bundle after every :meth:`add`; a stream receives each snapshot at once and becomes
    complete at :meth:`close`. Used as a context manager it closes itself, unless nothing was added and an
    exception is on its way.
    """

    def __init__(
        self,
        destination: str | os.PathLike[str] | BinaryIO,
        *,
        tool: Tool,
        target: Target,
        hosts: Sequence[Host] = (),
        origin: str = "live",
        keep: int | None = None,
    ) -> None:
        """``keep``: remember only so many snapshots, the newest; for a path, which is written anew each time."""
        self._sink = _sink_for(destination)
        self._head = Capture(tool=tool, target=target, hosts=tuple(hosts), snapshots=(), origin=origin)
        self._members = [_manifest(self._head, None)]
        self._count = 0
        self._keep = keep

    def open(self) -> None:
        """Make the bundle exist before the first snapshot."""
        self._sink.publish(self._members, _manifest(self._head, self._count))

    def add(self, snapshot: Snapshot) -> None:
        """Append one snapshot. Raises HangdoctorError when it cannot be written."""
        self._members.append(_snapshot(self._count, snapshot))
        self._count += 1
        if self._keep is not None:
            del self._members[1 : -self._keep]
        self._sink.publish(self._members, _manifest(self._head, len(self._members) - 1))

    def close(self, *, hosts: Sequence[Host] | None = None, gaps: Sequence[Gap] = ()) -> None:
        """Complete the bundle with what is known only at the end."""
        self._head = replace(
            self._head, gaps=tuple(gaps), hosts=self._head.hosts if hosts is None else tuple(hosts)
        )
        self._sink.publish(self._members, _manifest(self._head, len(self._members) - 1))
        self._sink.finish()

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._count:
            self._sink.finish()


def _manifest(head: Capture, snapshots: int | None) -> bytes:
    """The first record and, with the number of snapshots and what is known only at the end, the last one."""
    record: JsonObject = {
        "hangdoctor": "manifest",
        "format": {"major": FORMAT.major, "minor": FORMAT.minor},
        **encode_head(head),
    }
    if snapshots is not None:
        record["snapshots"] = snapshots
    return pack(record)


def _snapshot(index: int, snapshot: Snapshot) -> bytes:
    return pack({"hangdoctor": "snapshot", "index": index, **encode_snapshot(snapshot)})


class _Sink(Protocol):
    def publish(self, members: Sequence[bytes], closing: bytes) -> None:
        """Make ``members`` (all so far) plus ``closing`` the content, as far as the medium allows."""

    def finish(self) -> None:
        """Nothing more will come."""


def _sink_for(destination: str | os.PathLike[str] | BinaryIO) -> _Sink:
    if not isinstance(destination, str | os.PathLike):
        return _StreamSink(destination, "the stream")
    if os.fspath(destination) == "-":
        return _StreamSink(sys.stdout.buffer, "standard output")
    path = Path(destination)
    with suppress(OSError, ValueError):
        if not stat.S_ISREG(path.stat().st_mode):
            # /dev/stdout, a FIFO, /dev/null: renaming a file over them would destroy them.
            return _DeviceSink(path)
    return _FileSink(path)


class _StreamSink:
    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self._written = 0
        self._closing = b""

    def publish(self, members: Sequence[bytes], closing: bytes) -> None:
        with _said_plainly(self._name):
            for member in members[self._written :]:
                self._stream.write(member)
                self._written += 1
            self._stream.flush()
        self._closing = closing

    def finish(self) -> None:
        with _said_plainly(self._name):
            self._stream.write(self._closing)
            self._stream.flush()


class _DeviceSink:
    """A path that is no regular file: written once, at the end, in place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = b""

    def publish(self, members: Sequence[bytes], closing: bytes) -> None:
        self._content = b"".join(members) + closing

    def finish(self) -> None:
        with _said_plainly(str(self._path)), open(self._path, "wb") as device:
            device.write(self._content)


class _FileSink:
    """A regular file: replaced as a whole by rename, so a reader never sees half of it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def publish(self, members: Sequence[bytes], closing: bytes) -> None:
        path = self._path
        temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
        with _said_plainly(str(path)):
            if sum(map(len, members)) + len(closing) > LIMITS.file_bytes:
                raise OSError("larger than any reader accepts; write one bundle a host")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            with suppress(FileNotFoundError):
                temporary.unlink()
            try:
                # 0600: stacks, environments and command lines are nobody else's business.
                with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                    file.writelines([*members, closing])
                    file.flush()
                    os.fsync(file.fileno())  # Hung nodes are often power-cycled next.
                temporary.replace(path)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise

    def finish(self) -> None:
        """Every publish left a complete file."""


@contextmanager
def _said_plainly(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a closed stream, a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise HangdoctorError(
            f"the bundle could not be written to {name}: {reason}",
            hint="name another place with --bundle FILE, or go without with --no-bundle",
        ) from error
