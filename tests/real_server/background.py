"""One healthy server that outlives the command that started it (scripts/real_vllm start, wait, stop)."""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.real_server import server
from tests.real_server.installation import Installation, Say, place

PORT = 8123


class NotRunning(Exception):
    """There is no server, or it ended before it was ready."""


@dataclass(frozen=True, slots=True)
class Running:
    """What the next command has to know."""

    pid: int
    start_ticks: int
    port: int
    folder: str


def start(installation: Installation, options: list[str], say: Say) -> None:
    """Start the server unless it runs."""
    running = _find()
    if running is None:
        folder = Path(tempfile.mkdtemp(prefix="hd-vllm-", dir="/tmp"))
        os.mkfifo(folder / "say")
        popen = server.start(installation, folder, PORT, installation.model("tiny"), options, {})
        running = Running(popen.pid, _start_ticks(popen.pid), PORT, str(folder))
        _file().write_text(json.dumps(asdict(running)))
    say(f"vllm serve: pid {running.pid}, port {running.port}, log {running.folder}/log")


def wait(say: Say) -> None:
    """Wait until it answers. Raises :class:`NotRunning`."""
    deadline = time.monotonic() + server.START_S
    while (running := _find()) is not None and time.monotonic() < deadline:
        try:
            if server.fetch(running.port, "GET", "/health", timeout_s=5.0)[0] == 200:
                say(f"vllm serve answers on port {running.port}")
                return
        except OSError:
            time.sleep(0.5)
    raise NotRunning("the server is not there, or did not answer in time" + _last_words())


def stop(say: Say) -> None:
    """End it and remove its files; nothing to do is fine too."""
    running = _find()
    if running is not None:
        server.end_all(running.pid, Path(running.folder))
        server.remove(Path(running.folder))
        say(f"vllm serve, pid {running.pid}, ended")
    _file().unlink(missing_ok=True)


def _find() -> Running | None:
    """The server that was started, while the pid is still that process."""
    try:
        running = Running(**json.loads(_file().read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return running if _start_ticks(running.pid) == running.start_ticks else None


def _start_ticks(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return -1


def _file() -> Path:
    return place() / "running.json"


def _last_words() -> str:
    try:
        folder = json.loads(_file().read_text())["folder"]
        lines = Path(folder, "log").read_text(errors="replace").splitlines()[-5:]
    except (OSError, ValueError, KeyError):
        return ": scripts/real_vllm start"
    return "; its last words:\n" + "\n".join(lines)
