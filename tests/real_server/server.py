"""A running vLLM server: started, asked, made to suffer, ended with everything it leaves behind.

with serving(installation, model="tiny") as server:
    server.wait_until_ready()
    with server.suffering("lock", rank=1) as request:
        ...
    request.tokens()
"""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.real_server.installation import Installation

START_S = 300.0
"""Twenty seconds on an idle machine, 191 s were seen on one with a load of 20."""
STEP_S = 60.0
STOP_S = 10.0
PROMPT = "a server that waits is not a server that hangs"
MODEL_NAME = "demo"
OPTIONS = (
    "--served-model-name", MODEL_NAME,
    "--tensor-parallel-size", "2",
    "--distributed-executor-backend", "mp",
    "--dtype", "bfloat16",
    "--max-model-len", "16384",
    "--max-num-seqs", "4",
    "--enforce-eager",
    "--kv-cache-memory-bytes", "67108864",
)  # fmt: skip

_JOINING = re.compile(r"\(Worker pid=(\d+)\) .*world_size=\d+ rank=(\d+) .*distributed_init_method=")


class NoAnswer(Exception):
    """The server closed the connection or said something that is no completion."""


class Request:
    """A completion asked for in the background; greedy, so that the same prompt brings the same tokens."""

    def __init__(self, port: int, prompt: str, max_tokens: int) -> None:
        self._answer: tuple[int, ...] | None = None
        self._error = ""
        self._thread = threading.Thread(target=self._ask, args=(port, prompt, max_tokens), daemon=True)
        self._thread.start()

    def _ask(self, port: int, prompt: str, max_tokens: int) -> None:
        wanted = {
            "model": MODEL_NAME,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        try:
            status, body = fetch(port, "POST", "/v1/completions", json.dumps(wanted), timeout_s=START_S)
        except (OSError, http.client.HTTPException) as error:
            self._error = f"{type(error).__name__}: {error}"
            return
        if status != 200:
            self._error = f"HTTP {status}: {body[:500]}"
            return
        self._answer = tuple(json.loads(body)["choices"][0]["token_ids"])

    @property
    def is_pending(self) -> bool:
        return self._thread.is_alive()

    def tokens(self, timeout_s: float = STEP_S) -> tuple[int, ...]:
        """The ids of the generated tokens. Raises :class:`NoAnswer`."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise NoAnswer(f"no answer within {timeout_s:.0f} s")
        if self._answer is None:
            raise NoAnswer(self._error)
        return self._answer


class Server:
    """One `vllm serve` and all that belongs to it. ``folder`` holds its log, temporary files, order and FIFO."""

    def __init__(self, popen: subprocess.Popen[bytes], port: int, folder: Path, say_fd: int) -> None:
        self.popen = popen
        self.pid = popen.pid
        self.port = port
        self.folder = folder
        self._say_fd = say_fd
        self._heard = b""

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def wait_until_ready(self, timeout_s: float = START_S) -> None:
        """Until /health says 200; fails with the log when the server ends instead."""
        deadline = time.monotonic() + timeout_s
        while not self.is_healthy():
            assert self.popen.poll() is None, (
                f"vllm serve ended with {self.popen.returncode}\n{self.log[-4000:]}"
            )
            assert time.monotonic() < deadline, f"not ready within {timeout_s:.0f} s\n{self.log[-4000:]}"
            time.sleep(0.25)

    def is_healthy(self) -> bool:
        """Whether /health says 200, which it does as long as the API server's process lives."""
        try:
            return fetch(self.port, "GET", "/health", timeout_s=5.0)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def ask(self, max_tokens: int = 8, prompt: str = PROMPT) -> Request:
        return Request(self.port, prompt, max_tokens)

    def pids(self) -> list[int]:
        """Everything in the server's process group, whoever its parent is by now."""
        return _members(self.pid, self.folder)

    def titled(self, title: str) -> int:
        """The process with this title; waits for it."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for pid in self.pids():
                if _title(pid) == title:
                    return pid
            time.sleep(0.05)
        raise AssertionError(f"no process is called {title}: {[_title(pid) for pid in self.pids()]}")

    def worker(self, rank: int) -> int:
        return self.titled(f"VLLM::Worker_TP{rank}")

    def wait_for_rendezvous(self, count: int, timeout_s: float = START_S) -> dict[int, int]:
        """Rank to pid, once ``count`` workers have said that they join; their titles name no rank yet."""
        deadline = time.monotonic() + timeout_s
        while len(found := _JOINING.findall(self.log)) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} workers\n{self.log[-4000:]}"
            time.sleep(0.25)
        return {int(rank): int(pid) for pid, rank in found}

    @property
    def engine(self) -> int:
        return self.titled("VLLM::EngineCore")

    @contextmanager
    def suffering(self, bug: str, rank: int, *, says: int = 1) -> Iterator[Request]:
        """A request whose first step runs into ``bug`` on ``rank`` (``says`` > 1: on all); released at the end."""
        self._order(f"{bug} {rank if says == 1 else '*'}")
        request = self.ask()
        for _ in range(says):
            self.hear(f"placed {bug}")
        try:
            yield request
        finally:
            (self.folder / "order").unlink()
            if bug != "compile":
                os.kill(self.worker(rank), signal.SIGUSR1)
                self.hear(f"released {bug}")

    @contextmanager
    def stopped(self, pid: int) -> Iterator[Request]:
        """A request that comes while the process is stopped; continued at the end."""
        os.kill(pid, signal.SIGSTOP)
        wait_for_state(pid, "T")
        try:
            yield self.ask()
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextmanager
    def half_a_request(self) -> Iterator[None]:
        """A client that never sends the rest of its request: the API server does not end while it is connected."""
        with socket.create_connection(("127.0.0.1", self.port)) as client:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(head + b"Content-Length: 1000\r\n\r\n{")
            yield

    def _order(self, words: str) -> None:
        part = self.folder / "order.part"
        part.write_text(words)
        part.rename(self.folder / "order")

    def hear(self, words: str, timeout_s: float = STEP_S) -> None:
        """Wait until a worker has said a line that begins with ``words``."""
        deadline = time.monotonic() + timeout_s
        while True:
            line, newline, rest = self._heard.partition(b"\n")
            if newline:
                self._heard = rest
                if line.decode().startswith(words):
                    return
                continue
            ready = select.select([self._say_fd], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"no worker said {words!r}\n{self.log[-4000:]}"
            self._heard += os.read(self._say_fd, 4096)


@contextmanager
def serving(
    installation: Installation,
    *,
    model: Path | None = None,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Start a server with the plugin; ends it, whatever state it is in, and removes what it left."""
    folder = Path(tempfile.mkdtemp(prefix="hd-vllm-", dir="/tmp"))  # short: it holds UNIX sockets
    os.mkfifo(folder / "say")
    say_fd = os.open(folder / "say", os.O_RDWR)  # read-write: no end of file between two workers
    port = free_port()
    popen = start(installation, folder, port, model or installation.model("tiny"), options, environment or {})
    # As a shell would: otherwise a server that ends by itself stays a zombie of the test.
    threading.Thread(target=popen.wait, daemon=True).start()
    server = Server(popen, port, folder, say_fd)
    try:
        yield server
    finally:
        end_all(popen.pid, folder)
        popen.wait()
        os.close(say_fd)
        remove(folder)


def start(
    installation: Installation,
    folder: Path,
    port: int,
    model: Path,
    options: Sequence[str],
    environment: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """`vllm serve` in a process group of its own; its output goes to ``folder``/log.

    Not in a session of its own: with autogroups each session is one group to the scheduler, and on Linux 6.18 a group
    whose ranks spin in sched_yield on all CPUs let another's `python -c pass` wait for 7 s, and an attach for 70 s.
    """
    command = [
        str(installation.folder / "bin" / "vllm"),
        "serve",
        str(model),
        *OPTIONS,
        "--port",
        str(port),
        *options,
    ]
    variables = {
        **os.environ,
        "PATH": f"{installation.folder / 'bin'}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",  # without it vLLM wants a NUMA node for each rank
        "TMPDIR": str(folder),  # its sockets and rendezvous files are never removed otherwise
        "TIDEPOOL_FOLDER": str(folder),
        **environment,
    }
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=variables,
            cwd=folder,
            preexec_fn=os.setpgrp,
        )


def remove(folder: Path) -> None:
    """A server's files, and its ranks' shared memory: named after the rendezvous file, and never unlinked."""
    for rendezvous in folder.glob("vllm_dist_*"):
        for segment in Path("/dev/shm").glob(f"{rendezvous.name}*"):
            segment.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def end_all(leader: int, folder: Path) -> None:
    """End all of a server's processes: politely, then by SIGKILL; unlink the shared memory they had."""
    members = _members(leader, folder)
    segments = {segment for pid in members for segment in _shared_memory(pid)}
    for pid in members:
        _signal(pid, signal.SIGCONT)
    if leader in members:  # a leader that has ended and was reaped may have left its number to a stranger
        _signal(leader, signal.SIGTERM)
    if not _is_ended(leader, folder):
        for pid in _living(leader, folder):
            # The tracker removes named shared memory once its pipe is closed by all others.
            if b"resource_tracker" not in _command(pid):
                _signal(pid, signal.SIGKILL)
        if not _is_ended(leader, folder):
            for pid in _living(leader, folder):
                _signal(pid, signal.SIGKILL)
    for segment in segments:
        Path(segment).unlink(missing_ok=True)


def _is_ended(leader: int, folder: Path) -> bool:
    deadline = time.monotonic() + STOP_S
    while _living(leader, folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _living(leader: int, folder: Path) -> list[int]:
    return [pid for pid in _members(leader, folder) if state(pid) not in "ZX"]


def _members(leader: int, folder: Path) -> list[int]:
    """By the process group; ninja starts its compilers in groups of their own, which are told by their environment."""
    return [pid for pid in _all_pids() if _group(pid) == leader or _has_environment(pid, folder)]


def _has_environment(pid: int, folder: Path) -> bool:
    with suppress(OSError):
        return f"TIDEPOOL_FOLDER={folder}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def fetch(port: int, method: str, path: str, body: str | None = None, *, timeout_s: float) -> tuple[int, str]:
    """Status and body of one HTTP request to this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()


def free_port() -> int:
    """A TCP port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def state(pid: int) -> str:
    """The kernel's letter; X when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def wait_for_open(pid: int, folder: Path, timeout_s: float = START_S) -> None:
    """Until the process has a weights file of this folder mapped."""
    deadline = time.monotonic() + timeout_s
    while f"{folder}/model-" not in _maps(pid):
        assert time.monotonic() < deadline, f"pid {pid} never opened a file in {folder}"
        time.sleep(0.05)


def wait_for_state(pid: int, letters: str, timeout_s: float = STEP_S) -> None:
    """Until the process is in one of these states."""
    deadline = time.monotonic() + timeout_s
    while state(pid) not in letters:
        assert time.monotonic() < deadline, f"pid {pid} is in {state(pid)}, never in {letters}"
        time.sleep(0.005)


def _all_pids() -> list[int]:
    return sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _group(pid: int) -> int | None:
    with suppress(OSError):
        return os.getpgid(pid)
    return None


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _title(pid: int) -> str:
    return _command(pid).replace(b"\0", b" ").decode(errors="replace").strip()


def _shared_memory(pid: int) -> set[str]:
    lines = (line.split() for line in _maps(pid).splitlines())
    return {words[5] for words in lines if len(words) == 6 and words[5].startswith("/dev/shm/")}


def _maps(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text(errors="replace")
    return ""


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
