"""The live scenarios: small real jobs, each in a known state, and the right answer to each.

`test_live_scenarios.py` runs each once; `scripts/score_live.py` runs them many times, under load, and counts.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hangdoctor.collect.spin import sample_spin
from tests.conftest import stuck
from tests.memory_group import can_limit, little_memory
from tests.slow_files import can_mount, throttled

CULPRIT = 1
WORLD_SIZE = 3
WEIGHTS = "model-00002-of-00003.safetensors"
WEIGHTS_BYTES = 768 << 20


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
    decided_by_perf: bool = False
    """Only sampled registers tell it; where the kernel does not permit that, it may be unknown."""
    accepts: tuple[str, ...] = ()
    """Other kinds that are no mistake: nobody would restart a job for them."""
    is_blamed: bool = True
    """The culprit is rank 1 (or a process that rank 1 waits for)."""
    requires: tuple[str, ...] = ()
    """Programs or Python modules without which it cannot run; or ``FUSE``, ``memory group``."""
    said_lines: int = WORLD_SIZE
    is_lasting: bool = True
    """It stays in its state for as long as anybody likes; otherwise for a minute."""
    is_busy: bool = False
    """It keeps a CPU busy."""
    storage_rate: str | None = None
    """Bytes a second of the file system that it loads from; ``0``: reads there never return."""
    memory_bytes: int | None = None
    """What the culprit may use of memory, page cache included."""

    def missing(self) -> list[str]:
        """What this machine lacks for it."""
        return [name for name in self.requires if not _is_here(name)]

    @property
    def accepted_kinds(self) -> set[str]:
        """What may be said of it here."""
        is_open = self.may_be_unknown or (self.decided_by_perf and not can_sample())
        return {self.kind, *self.accepts} | ({"unknown"} if is_open else set())


@cache
def can_sample() -> bool:
    """Whether the kernel lets us sample registers; most containers do not."""
    finished = threading.Event()

    def work() -> None:
        while not finished.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        return bool(sample_spin([thread.native_id or 0], 0.5))
    finally:
        finished.set()
        thread.join()


_CHECKS: Mapping[str, Callable[[], bool]] = {"FUSE": can_mount, "memory group": can_limit}


def _is_here(name: str) -> bool:
    if name in _CHECKS:
        return _CHECKS[name]()
    return shutil.which(name) is not None or find_spec(name) is not None


@dataclass(frozen=True, slots=True)
class Playing:
    """A scenario that is running."""

    pid: int
    rank_pids: dict[int, int]


def _load(name: str, way: str, kind: str, *causes: str, **facts: Any) -> LiveScenario:
    return LiveScenario(name, "d_load.py", way, kind, causes, **facts)


def _compute(way: str, kind: str, *causes: str, **facts: Any) -> LiveScenario:
    return LiveScenario(way, "d_compute.py", way, kind, causes, **facts)


def _dequantize(how: str, *requires: str) -> LiveScenario:
    return _compute(f"dequantize-{how}", "slow", "dequantizing", requires=requires, is_busy=True)


def _compile(name: str, way: str, kind: str, *causes: str, **facts: Any) -> LiveScenario:
    return LiveScenario(name, "d_compile.py", way, kind, causes, **facts)


def _ninja(waiters: int) -> LiveScenario:
    return _compile(
        f"compile-ninja-{waiters}-wait",
        f"ninja {waiters + 1}",
        "slow",
        "compiling",
        requires=("ninja", "g++", "torch"),
        said_lines=waiters + 1,
        is_lasting=False,
        is_busy=True,
    )


def _serve(name: str, way: str, *causes: str, **facts: Any) -> LiveScenario:
    return LiveScenario(name, "d_service.py", way, "ready", causes, is_blamed=False, said_lines=1, **facts)


_FUSE: dict[str, Any] = {"requires": ("FUSE",)}
_SLOW_STORAGE = "4000000"

_ALL = (
    # -- loads: slow while bytes come in, hung when their source gives none
    _load("load-mmap", "mmap", "slow", "loading", is_lasting=False),
    _load("load-read", "read", "slow", "loading", is_lasting=False),
    _load("load-direct", "direct", "slow", "loading", is_lasting=False),
    _load("load-pread", "pread", "slow", "loading", is_lasting=False),
    _load("load-stream", "stream", "slow", "loading"),
    _load("load-trickle", "trickle", "slow"),
    _load("load-by-child", "by-child", "slow", "loading", is_lasting=False),
    _load("load-storage", "storage", "slow", "loading", storage_rate=_SLOW_STORAGE, **_FUSE),
    _load("load-storage-mapped", "storage-mapped", "slow", "loading", storage_rate=_SLOW_STORAGE, **_FUSE),
    _load("load-storage-stuck", "storage", "hung", "io-stuck", storage_rate="0", **_FUSE),
    _load("load-storage-mapped-stuck", "storage-mapped", "hung", "io-stuck", storage_rate="0", **_FUSE),
    _load("load-stopped-stream", "stopped-stream", "hung", "stopped-process", "io-stuck"),
    _load("load-wedged", "wedged", "hung", "io-stuck", "laggard"),
    _load("load-again", "again", "hung", "laggard"),
    _load("load-from-start", "from-start", "hung", "laggard"),
    _load("save", "save", "slow", is_lasting=False),
    _load("save-torch", "save-torch", "slow", requires=("torch",), is_lasting=False),
    _load(
        "short-of-memory",
        "short-of-memory",
        "slow",
        requires=("memory group",),
        memory_bytes=96 << 20,
        is_busy=True,
    ),
    # -- work on the CPU, and what only looks like it
    _dequantize("python"),
    _dequantize("numpy", "numpy"),
    _dequantize("numpy-gil-held", "numpy"),
    _dequantize("torch", "torch"),
    _dequantize("torch-gil-held", "torch"),
    _dequantize("c-gil-held", "cc"),
    _dequantize("c-gil-free", "cc"),
    _compute("gc", "slow", "laggard", decided_by_perf=True, is_busy=True),
    _compute("progress-bar", "slow", "loading"),
    _compute(
        "spin", "hung", "spin", functions=frozenset({"spin_on_flag"}), decided_by_perf=True, is_busy=True
    ),
    _compute(
        "spin-yield",
        "hung",
        "spin",
        "laggard",
        functions=frozenset({"spin_yielding"}),
        may_be_unknown=True,
        decided_by_perf=True,
        is_busy=True,
    ),
    _compute("poll-dead-peer", "hung", "dead-process", "laggard", "spin"),
    _compute("heartbeat", "hung", "laggard", functions=frozenset({"wait", "stuck_with_heartbeat"})),
    _compute("stopped", "hung", "stopped-process", functions=frozenset({"stop_itself"})),
    _compute("memory-growth", "hung", "laggard"),
    _compute("restart-loop", "hung", "laggard"),
    # -- builds that others wait for, at an flock(2) or at a lock file
    _compile("compile-one", "one", "slow", "compiling", requires=("gcc",), is_busy=True),
    _compile("compile-many", "many", "slow", "compiling", requires=("gcc",), is_busy=True),
    _ninja(1),
    _ninja(6),
    _compile(
        "compile-stopped", "stopped-compiler", "hung", "child-stuck", "stopped-process", requires=("gcc",)
    ),
    _compile("stale-baton", "stale-baton", "hung", "stale-lock-file", is_blamed=False, requires=("torch",)),
    # A home-made poll of os.path.exists does not show which file it waits for.
    _compile("stale-lock", "stale-lock", "hung", may_be_unknown=True, is_blamed=False),
    # -- nothing is wrong
    _serve("service-idle", "serve", "idle"),
    _serve("service-threaded", "serve-threaded", "idle"),
    # A worker of a server that nobody knows, met in the middle of its work: busy, and not hung.
    _serve(
        "service-busy",
        "serve",
        "serving",
        "idle",
        accepts=("slow",),
        may_be_unknown=True,
        is_busy=True,
    ),
)

SCENARIOS: dict[str, LiveScenario] = {scenario.name: scenario for scenario in _ALL}


@contextmanager
def play(scenario: LiveScenario) -> Iterator[Playing]:
    """Start the job, yield it when every rank is in place, end it and remove its files."""
    folder = Path(tempfile.mkdtemp(prefix="hangdoctor-live-"))
    try:
        with ExitStack() as surroundings:
            environment = _surround(scenario, folder, surroundings)
            with stuck(
                scenario.program, *scenario.argument.split(), lines=scenario.said_lines, env=environment
            ) as program:
                if scenario.name == "service-busy":
                    port = program.said[0].split()[1]
                    surroundings.enter_context(stuck(scenario.program, "load", port))
                words = [line.split() for line in program.said]
                ranks = {int(rank): int(pid) for rank, pid in words if rank.isdigit()}
                yield Playing(program.pid, ranks)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _surround(scenario: LiveScenario, folder: Path, surroundings: ExitStack) -> dict[str, str]:
    """Make what the job needs around it, and return the environment that tells it where that is."""
    environment = {"LIVE_FOLDER": str(folder), "OMP_NUM_THREADS": "1"}
    if scenario.storage_rate is not None:
        source = folder / "storage"
        source.mkdir()
        with (source / WEIGHTS).open("wb") as weights:
            weights.truncate(WEIGHTS_BYTES)
        slow = surroundings.enter_context(throttled(source, title=""))
        slow.set_rate(scenario.storage_rate)
        environment["LIVE_STORAGE"] = str(slow.folder)
    if scenario.memory_bytes is not None:
        group = surroundings.enter_context(little_memory(scenario.memory_bytes))
        environment["LIVE_MEMORY_GROUP"] = str(group)
    return environment
