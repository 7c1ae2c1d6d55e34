"""The targets there are: SGLang's server and two jobs under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from plan import Life
from target import NotReached, Target

HERE = Path(__file__).parent


def start_target(life: Life, folder: Path, work: Path, port: int) -> Target:
    """Start what ``life.program`` names."""
    kinds: dict[str, type[Target]] = {"sglang": Server, "torch": Job, "training": Training}
    return kinds[life.program](life, folder, work, port)


class Server(Target):
    """SGLang with tensor parallelism 2; its faults are planted by faults/sitecustomize.py."""

    def _command(self, work: Path) -> tuple[list[str], dict[str, str]]:
        serve = ["-m", "sglang.launch_server", "--model-path", str(work / "model"), "--tp-size", "2"]
        serve += ["--host", "127.0.0.1", "--port", str(self.port), "--attention-backend", "triton"]
        serve += ["--sampling-backend", "pytorch", "--grammar-backend", "none", *self.life.options]
        paths = [str(HERE / "faults"), str(work / "site")]
        environ = {
            "PYTHONPATH": os.pathsep.join(paths),
            "PATH": f"{work / 'site' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
            "HOME": str(work / "home"),  # all JIT caches of this machine's runs; the first start is cold
        }
        return [sys.executable, *serve], environ

    def is_ready(self) -> bool:
        return "fired up and ready to roll" in self.log_text()

    def victim(self, parameter: str) -> int:
        """The scheduler of rank TP1, by its title."""
        for pid, _ in self.members():
            if b"scheduler_TP1" in _read(pid, "cmdline"):
                return pid
        raise NotReached("no process is titled scheduler_TP1")

    def start_request(self) -> None:
        self._client("request", str(self.port))

    def start_load(self, counts: Path) -> subprocess.Popen[bytes]:
        return self._client("load", str(self.port), str(counts))

    def _client(self, *words: str) -> subprocess.Popen[bytes]:
        client = subprocess.Popen([sys.executable, str(HERE / "client.py"), *words], start_new_session=True)
        self.children.append(client)
        return client

    def recovered(self, seconds: float = 25.0) -> bool:
        """Whether it answers a short request again."""
        body = {"text": "again", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/generate",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Job(Target):
    """torch_job.py, which goes wrong by itself in its one step."""

    def _command(self, work: Path) -> tuple[list[str], dict[str, str]]:
        run = ["-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={self.life.ranks}"]
        run += ["--master-addr=127.0.0.1", f"--master-port={self.port}"]
        return [sys.executable, *run, *self._script()], {}

    def _script(self) -> list[str]:
        return [str(HERE / "torch_job.py"), str(self.panel), *self.life.options]

    def is_ready(self) -> bool:
        return (self.panel / "job.reached").exists()

    def victim(self, parameter: str) -> int:
        """The process of the rank that ``parameter`` names, by its environment."""
        for pid, _ in self.members():
            if f"RANK={parameter}".encode() in _read(pid, "environ").split(b"\0"):
                return pid
        raise NotReached(f"no process has RANK={parameter}")

    def start_request(self) -> None:
        """It steps by itself."""

    def start_load(self, counts: Path) -> subprocess.Popen[bytes]:
        raise NotReached("a job takes no requests")

    def recovered(self, seconds: float = 25.0) -> bool:
        return False


class Training(Job):
    """training_job.py, which trains until a fault is armed, and goes on once it is released."""

    def _script(self) -> list[str]:
        return [str(HERE / "training_job.py"), str(self.panel)]

    def is_ready(self) -> bool:
        return self._steps() > 0

    def recovered(self, seconds: float = 25.0) -> bool:
        """Whether it has done some more steps."""
        wanted = self._steps() + 3
        deadline = time.monotonic() + seconds
        while self._steps() < wanted and time.monotonic() < deadline:
            time.sleep(0.1)
        return self._steps() >= wanted

    def _steps(self) -> int:
        try:
            return int((self.panel / "job.steps").read_text() or 0)
        except OSError:
            return 0


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
