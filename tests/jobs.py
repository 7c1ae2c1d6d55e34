"""Real multi-rank torch.distributed jobs for the live tests: started with a handshake, told what to suffer, ended.

    with gloo_job("popen", world_size=7, culprit=5) as job:
        with job.suffer("lock"):
            answer = attach(job.pid)

Ranks leave their launcher's session (torchrun starts each in one of its own), so what belongs to a job is known by a
mark in its environment, and everything with that mark is killed at the end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
MARK = "HANGDOCTOR_TEST_JOB"
RUN = uuid.uuid4().hex
"""In the mark of every job of this test run."""
START_DEADLINE_S = 120.0
STEP_DEADLINE_S = 30.0

needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(
        find_spec("torch") is None and "torch" not in os.environ.get("HANGDOCTOR_REQUIRE", ""),
        reason="PyTorch is not installed: no real torch.distributed job was tested",
    ),
]


def marked(mark: str) -> list[int]:
    """Living processes whose environment at exec carried ``mark`` (also a prefix of it)."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                if needle in Path("/proc", entry, "environ").read_bytes():
                    found.append(int(entry))
    return found


def kill_marked(mark: str) -> None:
    """SIGKILL until nothing with ``mark`` is left; a dying launcher may still start a rank."""
    deadline = time.monotonic() + STEP_DEADLINE_S
    while (pids := marked(mark)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


@pytest.fixture(scope="session", autouse=True)
def no_process_left() -> Iterator[None]:
    """Import this into a test module: its run fails when a process of a job outlives the tests."""
    yield
    left = marked(RUN)
    kill_marked(RUN)
    assert left == []


@dataclass(frozen=True, slots=True)
class Answer:
    """What ``hangdoctor attach --json`` said."""

    report: dict[str, Any]
    exit_code: int
    stderr: str
    wall_s: float

    @property
    def kind(self) -> str:
        return str(self.report["verdict"]["kind"])

    @property
    def cause(self) -> str | None:
        cause = self.report["verdict"]["cause"]
        return None if cause is None else str(cause)

    @property
    def culprits(self) -> list[dict[str, Any]]:
        return list(self.report["verdict"]["culprits"])

    @property
    def culprit_pids(self) -> set[int | None]:
        return {culprit["pid"] for culprit in self.culprits}

    @property
    def culprit_ranks(self) -> set[int | None]:
        return {(culprit["rank"] or {}).get("global") for culprit in self.culprits}

    @property
    def culprit_functions(self) -> set[str]:
        """Bare names of the frames that the culprits are blamed for."""
        frames = [culprit["frame"] for culprit in self.culprits if culprit["frame"]]
        return {str(frame["function"]).rpartition(".")[2] for frame in frames}

    def told(self) -> str:
        """The verdict in some lines, for the message of a failed assertion."""
        verdict = self.report["verdict"]
        head = f"{self.kind}, {verdict['confidence']}, {self.cause}: {verdict['summary']}"
        culprits = [f"culprit pid {row['pid']}: {row['doing']}" for row in self.culprits]
        evidence = [f"{row['id']} {row['subject']}: {row['text']}" for row in self.report["evidence"]]
        gaps = [f"gap {row['source']} {row['subject']}: {row['reason']}" for row in self.report["gaps"]]
        return "\n".join([head, *culprits, *verdict["alternatives"], *evidence[:12], *gaps[:6]])


def attach(pid: int, *options: str, deadline_s: float = 90.0, bundle: Path | None = None) -> Answer:
    """Run ``hangdoctor attach PID --json`` as a user does; fails when stdout is not one JSON report."""
    began = time.monotonic()
    keep = ["--no-bundle"] if bundle is None else ["--bundle", str(bundle)]
    command = [sys.executable, "-m", "hangdoctor", "attach", str(pid), "--json", *keep, *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=deadline_s, cwd=PROGRAMS.parent.parent, check=False
    )
    wall_s = time.monotonic() - began
    assert done.stdout.startswith("{"), f"exit {done.returncode}, no report\n{done.stderr[-600:]}"
    return Answer(json.loads(done.stdout), done.returncode, done.stderr, wall_s)


@dataclass
class GlooJob:
    """A running job. All its ranks are idle in their queue except while it suffers."""

    pid: int
    world_size: int
    culprit: int
    folder: Path
    said_fd: int
    rank_pids: list[int] = field(default_factory=list)
    is_usable: bool = True
    """False once a fault cannot be taken back."""

    @property
    def culprit_pid(self) -> int:
        return self.rank_pids[self.culprit]

    @contextmanager
    def suffer(self, fault: str) -> Iterator[None]:
        """Put the culprit into ``fault`` and the others into the collective; take it back at the end."""
        self.is_usable = False
        self._command(f"{fault} {self.culprit}")
        self._hear("placed")
        if fault == "stopped":
            _wait_for_state(self.culprit_pid, "T")
        yield
        if fault == "stopped":
            os.kill(self.culprit_pid, signal.SIGCONT)
            # Until the main thread runs again the kernel would hand SIGUSR1 to another one, and wake nobody.
            _wait_for_state(self.culprit_pid, "S")
        os.kill(self.culprit_pid, signal.SIGUSR1)
        self._hear("done")
        self.is_usable = True

    @contextmanager
    def train(self) -> Iterator[None]:
        """A healthy run of collectives."""
        self.is_usable = False
        self._command(f"train {self.culprit}")
        self._hear("placed")
        yield
        self._command("halt")
        self._hear("done")
        self.is_usable = True

    @contextmanager
    def mismatch(self) -> Iterator[None]:
        """The culprit calls all_gather, the others all_reduce. Cannot be taken back."""
        self.is_usable = False
        self._command(f"mismatch {self.culprit}")
        self._hear("placed")
        yield

    @contextmanager
    def lose_rank(self) -> Iterator[None]:
        """Kill the culprit while the others wait for it to join a group. Cannot be taken back."""
        self.is_usable = False
        self._command(f"subgroup {self.culprit}")
        self._hear("placed")
        os.kill(self.culprit_pid, signal.SIGKILL)
        _wait_for_state(self.culprit_pid, "Z")
        yield

    @contextmanager
    def cross_groups(self) -> Iterator[None]:
        """Half of the ranks waits in one group for the other half, which waits in another. Cannot be taken back."""
        self.is_usable = False
        self._command(f"crossed {self.culprit}")
        self._hear("placed")
        yield

    def _command(self, line: str) -> None:
        command_ranks(self.folder, self.world_size, line)

    def _hear(self, word: str, deadline_s: float = STEP_DEADLINE_S) -> dict[int, str]:
        return hear_ranks(self.said_fd, word, self.world_size, self.folder / "log", deadline_s)


def command_ranks(folder: Path, world_size: int, line: str) -> None:
    """Tell every rank of a job (programs/d_gloo_rank.py) the same."""
    for rank in range(world_size):
        with (folder / f"hear.{rank}").open("w") as pipe:
            pipe.write(line + "\n")


def hear_ranks(said_fd: int, word: str, world_size: int, log: Path, deadline_s: float) -> dict[int, str]:
    """The line in which each rank said ``word``, once all have; fails with the end of their ``log``."""
    said: dict[int, str] = {}
    deadline, line = time.monotonic() + deadline_s, b""
    while len(said) < world_size:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([said_fd], [], [], left)[0]:
            told = log.read_text(errors="replace")[-3000:]
            raise AssertionError(f"only ranks {sorted(said)} said {word!r}\n{told}")
        line += os.read(said_fd, 1)
        if line.endswith(b"\n"):
            rank, _, text = line.decode().strip().partition(" ")
            if text.startswith(word):
                said[int(rank)] = text
            line = b""
    return said


@contextmanager
def fifos_of_ranks(folder: Path, world_size: int) -> Iterator[int]:
    """The pipes in which ranks are spoken to and answer; yields where they are heard."""
    for fifo in ("say", *(f"hear.{rank}" for rank in range(world_size))):
        os.mkfifo(folder / fifo)
    # Read-write: neither end ever sees "end of file", whoever comes and goes.
    open_fds = {fifo: os.open(folder / fifo, os.O_RDWR) for fifo in os.listdir(folder)}
    try:
        yield open_fds["say"]
    finally:
        for fd in open_fds.values():
            os.close(fd)


def _wait_for_state(pid: int, state: str) -> None:
    """The kernel needs a moment to stop or end a process; gone counts as ended."""
    deadline = time.monotonic() + STEP_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            now = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            now = "Z"
        if now == state:
            return
        time.sleep(0.005)
    raise AssertionError(f"{pid} did not get to state {state}")


def _launch_command(how: str, world_size: int) -> list[str]:
    if how == "torchrun":
        module = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
        return [sys.executable, *module, str(PROGRAMS / "d_gloo_rank.py")]
    return [sys.executable, str(PROGRAMS / "d_launch.py"), how, str(world_size)]


@contextmanager
def gloo_job(how: str, *, world_size: int, culprit: int, is_late: bool = False) -> Iterator[GlooJob]:
    """Start a job by ``popen``, ``reap``, ``spawn`` (see d_launch.py) or ``torchrun``; yield it with all ranks idle.

    ``is_late``: the culprit never comes to the first rendezvous, so nobody gets past it.
    """
    mark = f"{RUN}-{uuid.uuid4().hex}"
    environment = {
        **os.environ,
        MARK: mark,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "ignore",
        **({"GLOO_LATE": str(culprit)} if is_late else {}),
    }
    with (
        tempfile.TemporaryDirectory(prefix="hangdoctor-job-") as name,
        fifos_of_ranks(folder := Path(name), world_size) as said_fd,
    ):
        with (folder / "log").open("wb") as log:
            launcher = subprocess.Popen(
                _launch_command(how, world_size),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "GLOO_JOB": name},
                start_new_session=True,
            )
        try:
            job = GlooJob(launcher.pid, world_size, culprit, folder, said_fd)
            pids = job._hear("pid", START_DEADLINE_S)
            job.rank_pids = [int(pids[rank].split()[1]) for rank in range(world_size)]
            yield job
        finally:
            kill_marked(mark)
            launcher.wait()


class JobKeeper:
    """Keeps one job for several tests, because starting ranks costs seconds; a spent job is replaced."""

    def __init__(self) -> None:
        self._context: Any = None
        self._job: GlooJob | None = None
        self._key: tuple[str, int, int] | None = None

    def get(self, how: str, world_size: int, culprit: int) -> GlooJob:
        key = (how, world_size, culprit)
        if self._job is None or not self._job.is_usable or key != self._key:
            self.close()
            self._context = gloo_job(how, world_size=world_size, culprit=culprit)
            self._job = self._context.__enter__()
            self._key = key
        assert self._job is not None
        return self._job

    def close(self) -> None:
        if self._context is not None:
            self._context.__exit__(None, None, None)
        self._context = self._job = None
