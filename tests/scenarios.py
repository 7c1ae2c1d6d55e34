"""The live scenarios: small real jobs, each in a known state, and the right answer to each.

`test_live_scenarios.py` runs each once; `scripts/score_live.py` runs them many times, under load, and counts.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.conftest import stuck

CULPRIT = 1
WORLD_SIZE = 3


@dataclass(frozen=True, slots=True)
class LiveScenario:
    """One job and what is true of it."""

    name: str
    program: str
    argument: str
    kind: str
    causes: tuple[str, ...] = ()
    """Any of these is right; empty: not asked."""
    functions: frozenset[str] = frozenset()
    """Frames that a person would blame; empty: not asked."""
    may_be_unknown: bool = False
    """What can be seen from outside does not decide; "unknown" is an honest answer, the opposite is not."""
    accepts: tuple[str, ...] = ()
    """Other kinds that are no mistake: nobody would restart a job for them."""
    is_blamed: bool = True
    """The culprit is rank 1 (or a process that rank 1 waits for)."""
    requires: tuple[str, ...] = ()
    """Programs or Python modules without which it cannot run."""
    said_lines: int = WORLD_SIZE

    def missing(self) -> list[str]:
        """What this machine lacks for it."""
        return [name for name in self.requires if not shutil.which(name) and not find_spec(name)]


@dataclass(frozen=True, slots=True)
class Playing:
    """A scenario that is running."""

    pid: int
    rank_pids: dict[int, int]


def _names(*functions: str) -> frozenset[str]:
    return frozenset(functions)


_LOADING = [
    ("mmap", "load_mapped", ("loading",)),
    ("read", "load_read", ("loading",)),
    ("direct", "load_direct", ("loading",)),
    ("pread", "load_pread", ("loading",)),
    ("stream", "read_stream", ("loading",)),
    ("trickle", "download", ()),
    ("save", "save_checkpoint", ()),
]
_DEQUANTIZING = [
    ("dequantize-python", ()),
    ("dequantize-numpy", ("numpy",)),
    ("dequantize-torch", ("torch",)),
    ("dequantize-c-gil-held", ("cc",)),
    ("dequantize-c-gil-free", ("cc",)),
]

SCENARIOS: dict[str, LiveScenario] = {
    scenario.name: scenario
    for scenario in (
        *(
            LiveScenario(f"load-{way}" if way != "save" else way, "d_load.py", way, "slow", causes)
            for way, _function, causes in _LOADING
        ),
        LiveScenario(
            "load-stopped-stream", "d_load.py", "stopped-stream", "hung", ("stopped-process", "io-stuck")
        ),
        LiveScenario("load-again", "d_load.py", "again", "hung", may_be_unknown=True),
        LiveScenario("load-wedged", "d_load.py", "wedged", "hung", ("io-stuck", "laggard")),
        *(
            LiveScenario(way, "d_compute.py", way, "slow", ("dequantizing",), requires=requires)
            for way, requires in _DEQUANTIZING
        ),
        LiveScenario("gc", "d_compute.py", "gc", "slow", may_be_unknown=True),
        LiveScenario("progress-bar", "d_compute.py", "progress-bar", "slow", ("loading",)),
        LiveScenario("spin", "d_compute.py", "spin", "hung", ("spin", "laggard"), _names("spin_on_flag")),
        LiveScenario(
            "spin-yield",
            "d_compute.py",
            "spin-yield",
            "hung",
            ("spin", "laggard"),
            _names("spin_yielding"),
            may_be_unknown=True,
        ),
        LiveScenario(
            "poll-dead-peer", "d_compute.py", "poll-dead-peer", "hung", ("dead-process", "laggard", "spin")
        ),
        LiveScenario(
            "heartbeat",
            "d_compute.py",
            "heartbeat",
            "hung",
            ("laggard",),
            _names("wait", "stuck_with_heartbeat"),
        ),
        LiveScenario(
            "stopped", "d_compute.py", "stopped", "hung", ("stopped-process",), _names("stop_itself")
        ),
        LiveScenario("memory-growth", "d_compute.py", "memory-growth", "hung", may_be_unknown=True),
        LiveScenario("restart-loop", "d_compute.py", "restart-loop", "hung", may_be_unknown=True),
        LiveScenario("compile-one", "d_compile.py", "one", "slow", ("compiling",), requires=("gcc",)),
        LiveScenario("compile-many", "d_compile.py", "many", "slow", ("compiling",), requires=("gcc",)),
        LiveScenario(
            "compile-stopped",
            "d_compile.py",
            "stopped-compiler",
            "hung",
            ("child-stuck", "stopped-process"),
            requires=("gcc",),
        ),
        LiveScenario(
            "stale-baton",
            "d_compile.py",
            "stale-baton",
            "hung",
            ("stale-lock-file",),
            is_blamed=False,
            requires=("torch",),
        ),
        # A home-made poll of os.path.exists does not show which file it waits for.
        LiveScenario(
            "stale-lock", "d_compile.py", "stale-lock", "hung", may_be_unknown=True, is_blamed=False
        ),
        LiveScenario(
            "service-idle", "d_service.py", "serve", "ready", ("idle",), is_blamed=False, said_lines=1
        ),
        LiveScenario(
            "service-threaded",
            "d_service.py",
            "serve-threaded",
            "ready",
            ("idle",),
            is_blamed=False,
            said_lines=1,
        ),
        # A worker of a server that nobody knows, met in the middle of its work: busy, and not hung.
        LiveScenario(
            "service-busy",
            "d_service.py",
            "serve",
            "ready",
            ("serving", "idle"),
            accepts=("slow",),
            may_be_unknown=True,
            is_blamed=False,
            said_lines=1,
        ),
    )
}


@contextmanager
def play(scenario: LiveScenario) -> Iterator[Playing]:
    """Start the job, yield it when every rank is in place, end it and remove its files."""
    folder = Path(tempfile.mkdtemp(prefix="hangdoctor-live-"))
    try:
        with stuck(
            scenario.program,
            scenario.argument,
            lines=scenario.said_lines,
            env={"LIVE_FOLDER": str(folder), "OMP_NUM_THREADS": "1"},
        ) as program:
            if scenario.name == "service-busy":
                port = program.said[0].split()[1]
                with stuck(scenario.program, "load", port):
                    yield Playing(program.pid, {})
            else:
                words = [line.split() for line in program.said]
                ranks = {int(rank): int(pid) for rank, pid in words if rank.isdigit()}
                yield Playing(program.pid, ranks)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
