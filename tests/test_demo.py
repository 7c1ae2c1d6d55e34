"""The demo's jobs: each rank is where its scenario wants it, and on every way out nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from hangdoctor.demo import SCENARIOS, Backend, RunningJob, Scenario, run_scenario, start
from hangdoctor.demo.job import choose_backend
from hangdoctor.demo.scenarios import CULPRIT, WORLD_SIZE
from hangdoctor.errors import NothingCollected, WrongUsage
from tests.jobs import attach, needs_torch

# With torch only those in which ranks wait in different ways: each start imports it four times.
JOBS = [
    *(pytest.param(name, Backend.BARRIER, id=f"{name}-barrier") for name in SCENARIOS),
    *(
        pytest.param(name, Backend.GLOO, id=f"{name}-gloo", marks=needs_torch)
        for name in ("laggard", "dead", "compile")
    ),
]


def state(pid: int) -> str | None:
    """The kernel's letter for the main thread, ``None`` when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def living_in_session(session: int) -> list[int]:
    """Processes of a session that are not zombies: those wait for init, not for us."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.getsid(int(entry)) == session and state(int(entry)) not in ("Z", "X", None):
                    found.append(int(entry))
            except ProcessLookupError:
                continue
    return found


def assert_gone(session: int, deadline_s: float = 10.0) -> None:
    """SIGKILL needs a moment to take effect; what is left after the deadline stays."""
    deadline = time.monotonic() + deadline_s
    while (left := living_in_session(session)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []


def main_stack(pid: int) -> list[str]:
    """Functions of the main thread, innermost first, as py-spy sees them from outside."""
    dump = subprocess.run(
        [str(Path(sys.executable).with_name("py-spy")), "dump", "--nonblocking", "--pid", str(pid)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    main_thread = dump.partition('"MainThread"')[2].partition("\nThread ")[0]
    return [line.split(" (")[0].strip().rpartition(".")[2] for line in main_thread.splitlines()[1:] if line]


CULPRIT_FRAMES = {
    "laggard": "load_adapter",
    "deadlock": "evict_pages",
    "gil": "call_driver",
    "stopped": "freeze",
    "slow-load": "load_weights",
    "compile": "build_kernels",
    "idle": "serve",
}
VICTIM_FRAMES = {"compile": "wait_for_lock_file", "dead": "join_subgroup", "idle": "serve"}
CULPRIT_STATES = {"stopped": "T", "dead": "Z"}


@pytest.mark.parametrize(("name", "backend"), JOBS)
def test_every_rank_is_in_place(name: str, backend: Backend) -> None:
    scenario = SCENARIOS[name]
    with start(scenario, backend) as job:
        assert len(job.rank_pids) == WORLD_SIZE
        if scenario.name in CULPRIT_STATES:
            assert state(job.rank_pids[CULPRIT]) == CULPRIT_STATES[scenario.name]
        if scenario.name in CULPRIT_FRAMES:
            assert CULPRIT_FRAMES[scenario.name] in main_stack(job.rank_pids[CULPRIT])
        for rank in set(range(WORLD_SIZE)) - {CULPRIT}:
            assert VICTIM_FRAMES.get(scenario.name, "all_reduce") in main_stack(job.rank_pids[rank])
        folder = job.log.parent
    assert_gone(job.pid)
    assert not folder.exists()


def test_both_threads_of_the_deadlock_wait_for_ever() -> None:
    """The handshake comes a moment before the second lock is tried."""
    with start(SCENARIOS["deadlock"], Backend.BARRIER) as job:
        tasks = Path(f"/proc/{job.rank_pids[CULPRIT]}/task")
        deadline = time.monotonic() + 10
        while {Path(task, "wchan").read_text().partition("_")[0] for task in tasks.iterdir()} != {"futex"}:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_slow_load_moves() -> None:
    """It would be no demonstration of progress if nothing moved."""
    with start(SCENARIOS["slow-load"], Backend.BARRIER) as job:
        pid = job.rank_pids[CULPRIT]
        link = next(
            fd for fd in Path(f"/proc/{pid}/fd").iterdir() if str(fd.readlink()).endswith("safetensors")
        )
        position = Path(f"/proc/{pid}/fdinfo/{link.name}")

        def read_position() -> int:
            return int(position.read_text().split()[1])

        first, deadline = read_position(), time.monotonic() + 20
        while read_position() == first:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_attach_gives_the_promised_answer(scenario: Scenario) -> None:
    with start(scenario, Backend.BARRIER) as job:
        answer = attach(job.pid)
    assert answer.kind == scenario.kind.value, answer.told()
    assert answer.cause == scenario.cause.value, answer.told()
    if scenario.culprit is None:
        assert answer.culprits == []
    else:
        assert answer.culprit_ranks == {scenario.culprit}, answer.told()


def test_gloo_is_used_where_torch_is_installed() -> None:
    assert choose_backend() is (Backend.GLOO if find_spec("torch") else Backend.BARRIER)


def test_unknown_scenario_lists_the_known() -> None:
    with pytest.raises(WrongUsage) as error, run_scenario("lagard"):
        pass
    assert "laggard" in (error.value.hint or "")


def test_run_scenario_yields_the_launcher() -> None:
    with run_scenario("idle") as pid:
        assert b"hangdoctor.demo.launcher" in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert_gone(pid)


def test_a_job_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A sitecustomize that ends each rank before it joins stands for a broken installation."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif '--multiprocessing-fork' in sys.argv: sys.exit('libtorch.so: no such file')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(NothingCollected, match="did not start") as error, start(SCENARIOS["idle"]):
        pass
    assert "libtorch.so" in (error.value.hint or "")


def interrupt(owner: subprocess.Popen[str]) -> None:
    owner.send_signal(signal.SIGINT)


def kill(owner: subprocess.Popen[str]) -> None:
    owner.kill()


@pytest.mark.parametrize("end", [interrupt, kill])
@pytest.mark.parametrize("name", ["stopped", "compile", "idle"])
def test_nothing_outlives_its_owner(name: str, end: Callable[[subprocess.Popen[str]], None]) -> None:
    """Ctrl-C, and even kill -9, on the process that started the job."""
    program = (
        "import sys\n"
        "from hangdoctor.demo import *\n"
        f"with start(SCENARIOS[{name!r}], Backend.BARRIER) as job:\n"
        "    print(job.pid, job.log.parent, flush=True)\n"
        "    sys.stdin.read()\n"  # input() flushes first, and forgets a Ctrl-C that comes meanwhile
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        assert len(living_in_session(int(pid))) > WORLD_SIZE
        end(owner)
        owner.wait(20)
    assert_gone(int(pid))
    assert not Path(folder).exists()


def test_a_rank_dies_with_its_launcher() -> None:
    """kill -9 on the launcher: there is nobody left to end the ranks but the kernel."""
    job: RunningJob
    with start(SCENARIOS["laggard"], Backend.BARRIER) as job:
        os.kill(job.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while any(state(pid) not in ("Z", None) for pid in job.rank_pids):
            assert time.monotonic() < deadline
            time.sleep(0.02)
