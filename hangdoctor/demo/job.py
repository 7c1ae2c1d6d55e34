"""Start a demo job and be sure that it ends: one context manager, from the first process to the last.

What is left behind on any way out (an exception, Ctrl-C, SIGTERM, even kill -9 of this process) is nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hangdoctor.demo.scenarios import SCENARIOS, Backend, Scenario
from hangdoctor.errors import NothingCollected, WrongUsage

START_DEADLINE_S = 90.0
"""Four imports of torch take 6 s on two idle cores; a busy host with a cold page cache needs many times that."""
_END_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A demo job in which every rank stands where its scenario wants it."""

    scenario: Scenario
    backend: Backend
    pid: int
    """The launcher: the process to attach to."""
    rank_pids: tuple[int, ...]
    log: Path
    """What the job prints; removed with the job."""


def choose_backend() -> Backend:
    """Gloo where torch is installed, the barrier otherwise. Does not import torch."""
    return Backend.GLOO if importlib.util.find_spec("torch") else Backend.BARRIER


@contextmanager
def run_scenario(name: str) -> Iterator[int]:
    """Start the scenario called ``name`` and yield the pid to attach to; see :func:`start`."""
    scenario = SCENARIOS.get(name)
    if scenario is None:
        raise WrongUsage(f"there is no demo scenario {name!r}", hint="one of: " + ", ".join(SCENARIOS))
    with start(scenario) as job:
        yield job.pid


@contextmanager
def start(scenario: Scenario, backend: Backend | None = None) -> Iterator[RunningJob]:
    """Start a job of four ranks, yield it when all ranks are in place, and leave no process and no file.

    Raises NothingCollected, with the end of the job's log as hint, when the job does not come up.
    """
    backend = backend or choose_backend()
    folder = Path(tempfile.mkdtemp(prefix="hangdoctor-demo-"))
    try:
        with _launched(scenario, backend, folder) as (launcher, ready):
            rank_pids = _await_ready(ready, folder / "job.log")
            yield RunningJob(scenario, backend, launcher.pid, rank_pids, folder / "job.log")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _launched(
    scenario: Scenario, backend: Backend, folder: Path
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The launcher, alive, and the pipe on which it announces that the ranks are in place."""
    lifeline_end, lifeline = os.pipe()
    ready, ready_end = os.pipe()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    arguments = [scenario.name, backend.value, str(folder), str(lifeline_end), str(ready_end)]
    try:
        with (folder / "job.log").open("wb") as log:
            launcher = subprocess.Popen(
                [sys.executable, "-m", "hangdoctor.demo.launcher", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=(lifeline_end, ready_end),
                # Its own session: Ctrl-C in this terminal reaches us, not the job, and one signal ends the job.
                start_new_session=True,
            )
        os.close(lifeline_end)
        os.close(ready_end)
        try:
            yield launcher, ready
        finally:
            os.close(lifeline)
            _end(launcher)
    finally:
        os.close(ready)


def _await_ready(ready: int, log: Path) -> tuple[int, ...]:
    """The ranks' pids, as soon as the launcher announces them."""
    deadline = time.monotonic() + START_DEADLINE_S
    announced = b""
    while not announced.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([ready], [], [], left)[0]:
            raise _not_started(f"was not in place after {START_DEADLINE_S:.0f} s", log)
        block = os.read(ready, 4096)
        if not block:
            raise _not_started("ended while it started", log)
        announced += block
    answer = json.loads(announced)
    if "error" in answer:
        raise _not_started(f"did not start: {answer['error']}", log)
    return tuple(answer["ranks"])


def _not_started(what: str, log: Path) -> NothingCollected:
    tail = log.read_text(errors="replace").splitlines()[-5:]
    return NothingCollected(f"the demo job {what}", hint="its log ends with:\n" + "\n".join(tail))


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """Give the launcher the time to end its ranks, then kill whatever its session still holds."""
    deadline = time.monotonic() + _END_DEADLINE_S
    try:
        # WNOWAIT: until it is reaped, its pid (which names the group) cannot be given to somebody else.
        while not os.waitid(os.P_PID, launcher.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
