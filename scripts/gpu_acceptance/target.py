"""What every target has: it is started as a user would, says when it is in a state, and nothing of it stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

from plan import Life, Scenario

STARTUP_FAULTS = ("nccl_init", "slow_dequant", "kv_alloc", "late_rank")
"""These strike while the target starts, so they are armed before it does."""

SIGNALLED_FAULTS = ("nccl_init", "late_rank")
"""They end on a signal: a thread that waits for the FIFO would look like somebody who may yet end the wait."""

SERVER_FAULTS = (*STARTUP_FAULTS[:3], "lock_forward", "lock_cycle", "gpu_spin", "skip_allreduce")
JOB_FAULTS = ("late_rank", "gpu_spin", "skip_reduce", "cross_groups")
FAULTS = tuple(dict.fromkeys((*SERVER_FAULTS, *JOB_FAULTS)))
WAIT_S = {"request": 45.0, "start": 240.0}
"""How long a state may take: a request strikes at once, a start compiles first."""


class NotReached(Exception):
    """The target did not come into the state, or died on the way."""


def _processes() -> Iterator[tuple[int, tuple[int, int, str]]]:
    """Every live process: parent, session, command name. Zombies are left out."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_text(errors="replace")
        except OSError:
            continue
        name, _, rest = stat.partition("(")[2].rpartition(")")
        state, parent, _, session = rest.split()[:4]
        if state not in "ZX":
            yield int(entry.name), (int(parent), int(session), name)


class Target(ABC):
    """One started server or job. ``folder`` gets its log and the control panel of its faults."""

    def __init__(self, life: Life, folder: Path, work: Path, port: int) -> None:
        self.life, self.port = life, port
        self.panel = folder / "panel"
        self.panel.mkdir(parents=True)
        for fault in FAULTS:
            os.mkfifo(self.panel / f"{fault}.release")
        for scenario in life.scenarios:
            if scenario.arm in STARTUP_FAULTS:
                self.arm(scenario.arm, scenario.parameter)
        self.log = folder / "server.log"
        command, environ = self._command(work)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **environ, "HD_FAULTS": str(self.panel), "PYTHONUNBUFFERED": "1"},
            )
        self.known: set[int] = set()
        self.children: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    @abstractmethod
    def _command(self, work: Path) -> tuple[list[str], dict[str, str]]:
        """What to run, and what to add to the environment."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it serves, or trains."""

    @abstractmethod
    def victim(self, parameter: str) -> int:
        """The pid of the rank that is to be stopped or killed."""

    @abstractmethod
    def start_request(self) -> None:
        """Give it something to do in the background; nobody waits for the answer here."""

    @abstractmethod
    def start_load(self, counts: Path) -> subprocess.Popen[bytes]:
        """Eight streams of requests until the process is ended."""

    @abstractmethod
    def recovered(self, seconds: float = 25.0) -> bool:
        """Whether it gets on again."""

    def arm(self, fault: str, parameter: str) -> None:
        (self.panel / fault).write_text(parameter)

    def release(self, fault: str) -> None:
        """Let the victim go on; it need not be there any more."""
        (self.panel / fault).unlink(missing_ok=True)
        try:
            if fault in SIGNALLED_FAULTS:
                os.kill(int((self.panel / f"{fault}.reached").read_text().split()[0]), signal.SIGUSR2)
            else:
                os.close(os.open(self.panel / f"{fault}.release", os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return

    def wait(self, scenario: Scenario) -> None:
        """Return once the state of ``scenario`` is there; raise :class:`NotReached` otherwise."""
        reached = self.panel / f"{scenario.wait_for or scenario.arm}.reached"
        tests: dict[str, Callable[[], bool]] = {
            "": lambda: True,
            "time": lambda: time.monotonic() - started >= float(scenario.wait_for),
            "reached": reached.exists,
            "ready": self.is_ready,
            "log": lambda: re.search(scenario.wait_for, self.log_text()) is not None,
            "child": lambda: any(re.fullmatch(scenario.wait_for, name) for _, name in self.members()),
        }
        started = time.monotonic()
        limit = WAIT_S["request" if scenario.act == "request" else "start"]
        while not tests[scenario.wait]():
            if self.process.poll() is not None:
                raise NotReached(f"the target ended with {self.process.returncode}")
            if time.monotonic() - started > limit:
                raise NotReached(f"not reached in {limit:.0f} s: {scenario.wait} {scenario.wait_for}")
            time.sleep(0.25)
        time.sleep(scenario.settle_s)

    def wait_ready(self) -> None:
        """Return once it serves or trains; raise :class:`NotReached` when it dies or takes too long."""
        started = time.monotonic()
        while not self.is_ready():
            if self.process.poll() is not None:
                raise NotReached(f"the target ended with {self.process.returncode}")
            if time.monotonic() - started > WAIT_S["start"]:
                raise NotReached("the target did not become ready")
            time.sleep(0.25)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def members(self) -> list[tuple[int, str]]:
        """Pid and command name of every process that the target started and that still lives.

        torchrun's workers and some compile workers have sessions of their own and lose their parent when it is
        killed, so what was once seen as a descendant stays a member.
        """
        table = dict(_processes())
        for pid, (parent, session, _) in sorted(table.items()):
            if self.pid in (pid, session) or parent in self.known:
                self.known.add(pid)
        return [(pid, table[pid][2]) for pid in sorted(self.known) if pid in table]

    def end(self) -> None:
        """Kill the whole session and our own clients."""
        for client in self.children:
            client.kill()
            client.wait()
        for _ in range(20):
            alive = [pid for pid, _ in self.members()]
            for pid in alive:
                for sign in (signal.SIGKILL, signal.SIGCONT):
                    try:
                        os.kill(pid, sign)
                    except ProcessLookupError:
                        break
            if self.process.poll() is not None and not alive:
                return
            time.sleep(0.25)
