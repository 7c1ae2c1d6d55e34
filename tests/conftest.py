"""What every test needs: real processes that are really stuck, started with a handshake and gone afterwards.

A program in ``tests/programs`` gets into its state and then calls ``handshake.ready("any words")``; ``stuck``
returns only after that line has arrived, so no test sleeps to be sure.

    from tests.conftest import stuck

    with stuck("c_lock.py", "arg", lines=1) as program:
        program.pid, program.said[0]
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PROGRAMS = Path(__file__).parent / "programs"

START_TIMEOUT_S = 60.0

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts its background commands so, and all that they start inherit it: tests of
    # Ctrl-C would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True, slots=True)
class Stuck:
    """A running test program. ``said`` holds the lines of its handshake, in the order of arrival."""

    pid: int
    said: tuple[str, ...]
    popen: subprocess.Popen[bytes]
    said_fd: int
    released_fd: int

    def hear(self, lines: int = 1) -> tuple[str, ...]:
        """Wait for more lines of the handshake."""
        return _read_lines(self.said_fd, lines, self.popen)

    def release(self, times: int = 64) -> None:
        """Let ``times`` calls of ``handshake.hold()`` go on, in whatever processes; by default all there are."""
        os.write(self.released_fd, b"." * times)


@contextmanager
def stuck(
    program: str,
    *args: object,
    lines: int = 1,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    output: Path | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[Stuck]:
    """Run ``tests/programs/PROGRAM`` in its own session until it has said ``lines`` lines; kill it all after.

    ``prefix`` is a command to run it under, ``env`` is added to the environment. What it prints goes to the file
    ``output``, by default a temporary one that is shown when the program dies before it is ready.
    """
    said_read, said_write = os.pipe()
    held_read, held_write = os.pipe()
    fds = {"HANDSHAKE_SAY_FD": str(said_write), "HANDSHAKE_HOLD_FD": str(held_read)}
    with tempfile.TemporaryFile() if output is None else output.open("wb") as printed:
        popen = subprocess.Popen(
            [*prefix, python, str(PROGRAMS / program), *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            pass_fds=(said_write, held_read),
            env={**os.environ, **fds, **(env or {})},
            start_new_session=True,
        )
        os.close(said_write)
        os.close(held_read)
        try:
            try:
                said = _read_lines(said_read, lines, popen)
            except EOFError as error:
                shown = _read_again(printed) if output is None else str(output)
                raise AssertionError(f"{program}: {error}\n{shown}") from error
            yield Stuck(popen.pid, said, popen, said_read, held_write)
        finally:
            _kill_session(popen.pid)
            popen.wait()
            os.close(said_read)
            os.close(held_write)


def _read_again(printed: IO[bytes]) -> str:
    printed.seek(0)
    return printed.read().decode(errors="replace")


def _read_lines(fd: int, lines: int, popen: subprocess.Popen[bytes]) -> tuple[str, ...]:
    """Byte by byte, so that nothing of a later line is swallowed."""
    data, deadline = b"", time.monotonic() + START_TIMEOUT_S
    while data.count(b"\n") < lines:
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise EOFError(f"said only {data!r} in {START_TIMEOUT_S:.0f} s")
        byte = os.read(fd, 1)
        if not byte:
            raise EOFError(f"ended with {popen.poll()} after saying {data!r}")
        data += byte
    return tuple(data.decode(errors="replace").splitlines())


def _kill_session(session: int) -> None:
    """SIGKILL all processes of a session, also those that were stopped, orphaned or changed their group."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.getsid(int(entry)) == session:
                    os.kill(int(entry), signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
