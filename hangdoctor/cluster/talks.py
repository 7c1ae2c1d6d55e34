"""The near end of the conversation with one host (the far end and the protocol: ``remote.py``)."""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hangdoctor.cluster.answers import Answer, Clock, explain_exit, explain_silence, trouble
from hangdoctor.cluster.parcel import Parcel
from hangdoctor.model import Gap

SYNCS = 4
"""Clock readings; the one with the shortest round trip counts."""
_MOST_NOISE = 50
_FAR_END = Path(__file__).with_name("remote.py")


class Writer(Protocol):
    """The part of a ClusterShell worker that a talk needs."""

    def write(self, buf: bytes) -> None:
        """Send to standard input of the command."""

    def set_write_eof(self) -> None:
        """Nothing more will be sent."""

    def abort(self) -> None:
        """Cut the connection."""


class Listener(Protocol):
    """Who wants to know how a talk goes on."""

    def introduced(self, talk: Talk) -> None:
        """The host has said what it has, and its clock was read."""

    def came_ready(self, talk: Talk) -> None:
        """The program there waits for the start."""

    def ended(self, talk: Talk) -> None:
        """Nothing more will come."""


def script(mark: str, python: str | None) -> str:
    """What a POSIX shell on the host runs: the first Python that is new enough, which then reads its program.

    The program comes over standard input, so that the command line stays short and shows no secret.
    """
    size = len(program(mark))
    run = f'-u -c "import sys;exec(sys.stdin.buffer.read({size}))"'
    if python is not None:
        return f"exec {python} {run}"
    names = " ".join(("python3", *(f"python3.{minor}" for minor in range(14, 9, -1)), "python"))
    probe = '-c "import sys; sys.exit(sys.version_info < (3, 10))"'
    return (
        f'for p in {names}; do if command -v "$p" >/dev/null 2>&1 && "$p" {probe} 2>/dev/null; '
        f'then exec "$p" {run}; fi; done; echo "hangdoctor: no Python from 3.10 on was found" >&2; exit 127'
    )


def program(mark: str) -> bytes:
    """The far end's program with its call."""
    return _FAR_END.read_bytes() + f'\nmain("{mark}")\n'.encode()


class Talk:
    """What was said so far between us and one host."""

    def __init__(self, host: str, mark: str, listener: Listener) -> None:
        self.host = host
        self._token = b""
        self.hello: Mapping[str, object] | None = None
        self.ready: Mapping[str, object] | None = None
        self.is_open = True
        self.began_at: float | None = None
        """By the monotonic clock: when the command was started, which the fan-out decides."""
        self.start_at: float | None = None
        self.is_ordered = False
        self._mark = mark.encode() + b" "
        self._listener = listener
        self._worker: Writer | None = None
        self._delivered: set[str] = set()
        self._trouble: Gap | None = None
        self._output: list[bytes] = []
        self._said: list[str] = []
        self._noise: list[str] = []
        self._code: int | None = None
        self._asked_at = 0.0
        self._clocks: list[Clock] = []

    # -- what the transport tells --------------------------------------------------------------------

    def open(self, worker: Writer, delivered: set[str]) -> None:
        """The connection exists, and has been given the program. ``delivered``: the parcels that went over it."""
        self._worker = worker
        self._delivered = delivered

    def begin(self) -> None:
        """The command was started."""
        self.began_at = time.monotonic()

    def hear(self, line: bytes, *, is_error: bool) -> None:
        """One line from the host."""
        if is_error or not line.startswith(self._mark):
            text = line.decode("utf-8", "replace")
            if text.strip() and not text.startswith("Warning: Permanently added"):
                self._noise = [*self._noise[-_MOST_NOISE:], text]
            return
        word, _, rest = line[len(self._mark) :].partition(b" ")
        try:
            self._take(word, rest)
        except (ValueError, binascii.Error):
            self.fail(
                trouble(self.host, "its answer is garbled", "is its transport 8-bit clean? --via exec:…")
            )

    def _take(self, word: bytes, rest: bytes) -> None:
        if word == b"hello":
            hello = json.loads(rest)
            self.hello = hello if isinstance(hello, dict) else {}
            self._token = str(self.hello.get("token", "")).encode()
            self._ask_time()
        elif word == b"sync":
            self._take_time(float(rest))
        elif word == b"ready":
            ready = json.loads(rest)
            self.ready = ready if isinstance(ready, dict) else {}
            self._listener.came_ready(self)
        elif word == b"data":
            self._output.append(base64.b64decode(rest, validate=True))
        elif word == b"said":
            self._said.append(rest.decode("utf-8", "replace"))
        elif word == b"done":
            self._code = int(rest)
            self._close()

    def _ask_time(self) -> None:
        self._asked_at = time.time()
        self._write(b"sync")

    def _take_time(self, theirs: float) -> None:
        now = time.time()
        half = max(0.0, (now - self._asked_at) / 2)
        self._clocks.append(Clock(theirs - self._asked_at - half, half))
        if len(self._clocks) < SYNCS:
            self._ask_time()
        else:
            self._listener.introduced(self)

    def left_with(self, code: int | None) -> None:
        """The command of the transport ended; the far end's own word weighs more."""
        self._code = code if self._code is None else self._code

    def hang_up(self, *, timed_out: bool, seconds: float) -> None:
        """The connection is gone."""
        if not self.is_open:
            return
        if timed_out and self._trouble is None:
            self._trouble = explain_silence(self.host, seconds, has_answered=self.hello is not None)
        self._close()

    # -- what the round decides ----------------------------------------------------------------------

    @property
    def clock(self) -> Clock | None:
        """The reading with the least uncertainty."""
        return min(self._clocks, key=lambda clock: clock.uncertainty_s, default=None)

    def order(self, words: Sequence[str], parcels: Sequence[Parcel], seconds: float) -> None:
        """Say what to run there, and send what it lacks."""
        self.is_ordered = True
        worker = self._worker
        for parcel in parcels:
            if worker is not None and parcel.name not in self._delivered:
                self._delivered.add(parcel.name)
                worker.write(f"* parcel {parcel.name} {len(parcel.content)}\n".encode() + parcel.content)
        files = [parcel.name for parcel in parcels]
        self._write(
            b"order " + json.dumps({"words": list(words), "seconds": seconds, "files": files}).encode()
        )

    def start(self, moment: float) -> None:
        """Let the looks begin at ``moment`` (Unix time by our clock)."""
        self.start_at = moment
        offset = self.clock.offset_s if self.clock is not None else 0.0
        self._write(f"start {moment + offset!r}".encode())

    def fail(self, gap: Gap) -> None:
        """Give this host up."""
        self._trouble = self._trouble or gap
        worker = self._worker
        self._close()
        if worker is not None:
            worker.abort()

    def cut(self) -> None:
        """Everything has been said; some connections (ssh with a shared one) do not end by themselves."""
        if self._worker is not None:
            self._worker.abort()

    def answer(self) -> Answer:
        """All of it."""
        gap = self._trouble
        if gap is None and not self._output:
            gap = explain_exit(self.host, self._code, self._noise, self._said)
        said = tuple(self._said)
        return Answer(self.host, b"".join(self._output), self._code, said, self.clock, self.start_at, gap)

    def _write(self, line: bytes) -> None:
        if self._worker is not None and self.is_open:
            self._worker.write(self._token + b" " + line + b"\n")

    def _close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if self._worker is not None:
            self._worker.set_write_eof()
        self._listener.ended(self)
