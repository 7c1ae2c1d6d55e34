"""What scripts/bench compares: how each tool is called, what one run of it costs, and what its target feels."""

from __future__ import annotations

import mmap
import os
import resource
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangdoctor.collect import Tree
    from hangdoctor.model import Snapshot

HERE = Path(__file__).parent
_SEEN = struct.Struct("<QQQ")
START_S = 300.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is looked at: ``processes`` children of a launcher, alike."""

    processes: int
    threads: int
    frames: int
    state: str
    module: str

    def __str__(self) -> str:
        with_module = f", {self.module} imported" if self.module else ""
        return f"{self.processes} processes × {self.threads} threads × {self.frames} frames, {self.state}{with_module}"


@dataclass(frozen=True, slots=True)
class Running:
    launcher: int
    pids: tuple[int, ...]
    seen: tuple[mmap.mmap, ...]
    has_ticker: bool
    python_threads: int
    """Of all of them: who has a stack."""

    def reset(self) -> None:
        for memory in self.seen:
            memory[:8] = bytes(8)

    def longest_gap_s(self) -> float | None:
        """Between two ticks of any target since :meth:`reset`."""
        gaps = [_SEEN.unpack(memory[:])[0] for memory in self.seen]
        return max(gaps) / 1e9 if self.has_ticker else None

    def interrupted(self) -> int:
        return sum(_SEEN.unpack(memory[:])[2] for memory in self.seen)


def build_ticker(folder: Path) -> Path | None:
    """The library that watches a target from inside; ``None`` without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "bench_target.so"
    command = [
        compiler,
        "-O2",
        "-shared",
        "-fPIC",
        "-pthread",
        "-o",
        str(library),
        str(HERE / "bench_target.c"),
    ]
    subprocess.run(command, check=True)
    return library


@contextmanager
def running(fleet: Fleet, python: str, library: Path | None, folder: Path) -> Iterator[Running]:
    """The fleet, ready; gone afterwards."""
    for number in range(fleet.processes):
        (folder / str(number)).write_bytes(bytes(_SEEN.size))
    words = (library or "", folder, fleet.processes, fleet.threads, fleet.frames, fleet.state, fleet.module)
    command = [python, str(HERE / "bench_target.py"), *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as launcher:
        try:
            assert launcher.stdout is not None
            if launcher.stdout.readline() != "ready\n":
                raise RuntimeError(f"the targets did not start: {shlex.join(command)}")
            children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
            maps = []
            for number in range(fleet.processes):
                with (folder / str(number)).open("r+b") as file:
                    maps.append(mmap.mmap(file.fileno(), _SEEN.size))
            # The ticker and its helper are no threads of Python.
            python_threads = fleet.processes * (fleet.threads - 2 * (library is not None))
            pids = tuple(map(int, children.split()))
            yield Running(launcher.pid, pids, tuple(maps), library is not None, python_threads)
        finally:
            os.killpg(launcher.pid, 9)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run. ``memory_bytes``: resident, of the largest process."""

    wall_s: float
    cpu_s: float
    memory_bytes: int | None = None
    output_bytes: int | None = None
    longest_gap_s: float | None = None
    interrupted: int = 0
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """``run(fleet, output folder)`` looks at all processes once."""

    name: str
    run: Callable[[Running, Path], Cost]
    is_slow: bool = False


def measure(tool: Tool, fleet: Running, folder: Path) -> Cost:
    """One run, and what the targets felt meanwhile."""
    before = fleet.interrupted()
    fleet.reset()
    cost = tool.run(fleet, folder)
    gap, interrupted = fleet.longest_gap_s(), fleet.interrupted() - before
    return Cost(cost.wall_s, cost.cpu_s, cost.memory_bytes, cost.output_bytes, gap, interrupted, cost.failure)


def nothing(seconds: float) -> Tool:
    """The baseline of the gaps: nobody looks, for as long as the reference takes."""

    def run(fleet: Running, folder: Path) -> Cost:
        time.sleep(seconds)
        return Cost(seconds, 0.0)

    return Tool("nothing", run)


def each_process(name: str, command: str, *, jobs: int = 1, is_slow: bool = False) -> Tool:
    """A shell loop over the pids (``{pid}`` in ``command``), or ``jobs`` at once through xargs."""

    def run(fleet: Running, folder: Path) -> Cost:
        pids = " ".join(map(str, fleet.pids))
        loop = f"for pid in {pids}; do {command.format(pid='$pid')}; done"
        if jobs > 1:
            loop = f"echo {pids} | tr ' ' '\\n' | xargs -P {jobs} -I% {command.format(pid='%')}"
        return run_command(["/bin/sh", "-c", loop], folder)

    return Tool(name, run, is_slow)


def first_and_count(name: str, command: str) -> Tool:
    """A collector that takes the first pid and how many follow it: ``{first}``, ``{count}``; ``{out}`` is a folder."""

    def run(fleet: Running, folder: Path) -> Cost:
        first, count = fleet.pids[0], len(fleet.pids)
        if fleet.pids != tuple(range(first, first + count)):
            return Cost(0.0, 0.0, failure="the pids do not follow each other")
        words = shlex.split(command.format(first=first, count=count, out=folder / "collected"))
        return run_command(words, folder)

    return Tool(name, run, is_slow=True)


def hangdoctor_command(name: str, words: Sequence[str]) -> Tool:
    """The command as a user types it; ``{pid}`` and ``{out}`` stand for the launcher and a new file."""

    def run(fleet: Running, folder: Path) -> Cost:
        bundle = folder / "bundle.hang"
        bundle.unlink(missing_ok=True)
        cost = _run_hangdoctor([word.format(pid=fleet.launcher, out=bundle) for word in words], folder)
        size = bundle.stat().st_size if bundle.exists() else cost.output_bytes
        return Cost(cost.wall_s, cost.cpu_s, cost.memory_bytes, size, failure=cost.failure)

    return Tool(name, run)


def analysis() -> Tool:
    """The diagnosis alone, of a bundle with two looks that is made once for each fleet."""

    def run(fleet: Running, folder: Path) -> Cost:
        kept = folder / f"kept-{fleet.launcher}.hang"
        if not kept.exists():
            words = ["collect", str(fleet.launcher), "--snapshots", "2", "--interval", "1", "-o", str(kept)]
            _run_hangdoctor(words, folder)
        return _run_hangdoctor(["analyze", str(kept), "--json"], folder)

    return Tool("hangdoctor analyze, two looks", run)


def _run_hangdoctor(words: Sequence[str], folder: Path) -> Cost:
    # An installed one is compiled; here it compiles itself, once, also where the shell says that nothing is to be kept.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "hangdoctor", *words]
    return run_command(command, folder, accepted=(0, 3, 4), environment=environment)


def snapshot() -> Tool:
    """One full look of the collector, in this process: stacks, everything in /proc, parsed."""

    def run(fleet: Running, folder: Path) -> Cost:
        from hangdoctor.collect import Plan, take_capture

        began, cpu = time.perf_counter(), _cpu_s()
        capture = take_capture(_tree_of(fleet), Plan(snapshots=1))
        wall_s, cpu_s = time.perf_counter() - began, _cpu_s() - cpu
        return Cost(wall_s, cpu_s, failure=_missing(capture.snapshots[0], fleet))

    return Tool("hangdoctor snapshot", run)


def next_snapshot() -> Tool:
    """The same again, when the readers are there: the second look of an attach, and every look of a watch."""

    def run(fleet: Running, folder: Path) -> Cost:
        from hangdoctor.collect import Plan, RollingCapture
        from hangdoctor.collect.deadline import helpers_cpu_s

        with closing(RollingCapture(_tree_of(fleet), Plan(snapshots=1), keep=2)) as rolling:
            rolling.look(Plan(snapshots=1))
            began, cpu = time.perf_counter(), _cpu_s() + helpers_cpu_s()
            capture = rolling.look(Plan(snapshots=1))
            wall_s, cpu_s = time.perf_counter() - began, _cpu_s() + helpers_cpu_s() - cpu
        return Cost(wall_s, cpu_s, failure=_missing(capture.snapshots[-1], fleet))

    return Tool("hangdoctor, the next snapshot", run)


def stacks(name: str, read: Callable[[int], object]) -> Tool:
    """What stack dumpers give and no more: ``read(pid)`` for all processes, in readers started for it."""

    def run(fleet: Running, folder: Path) -> Cost:
        from hangdoctor.collect.deadline import reader_count
        from hangdoctor.collect.readers import Readers

        began, cpu = time.perf_counter(), _cpu_s()
        readers = Readers((read,), reader_count())
        try:
            asked = readers.ask(read, fleet.pids, item_s=30.0, total_s=60.0, belongs_to=lambda pid: pid)
            dumps = [dump for _, dump in asked]
        finally:
            readers.end()
        wall_s, cpu_s = time.perf_counter() - began, _cpu_s() - cpu
        found = sum(len(getattr(dump, "threads", ())) for dump in dumps)
        wanted = fleet.python_threads
        return Cost(wall_s, cpu_s, failure=f"{wanted - found} stacks missing" if found < wanted else None)

    return Tool(name, run)


def _tree_of(fleet: Running) -> Tree:
    from hangdoctor.collect import Member, Tree, procfs

    stats = [procfs.read_stat(pid) for pid in fleet.pids]
    if None in stats:
        raise SystemExit("a target has died")
    members = tuple(Member(stat.pid, stat.start_ticks) for stat in stats if stat is not None)
    return Tree(fleet.pids[0], "bench", members, None, fleet.pids[0])


def _missing(look: Snapshot, fleet: Running) -> str | None:
    found = sum(thread.stack is not None for process in look.processes for thread in process.threads)
    return f"{fleet.python_threads - found} stacks missing" if found < fleet.python_threads else None


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def run_command(
    command: Sequence[str],
    folder: Path,
    accepted: Sequence[int] = (0,),
    environment: Mapping[str, str] | None = None,
) -> Cost:
    """A program and all that it starts and waits for."""
    output = folder / "output"
    with output.open("wb") as out, (folder / "errors").open("wb") as errors:
        began = time.perf_counter()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=environment
        )
        _, status, used = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - began
    code = child.returncode = os.waitstatus_to_exitcode(status)
    said = (folder / "errors").read_text(errors="replace").strip()
    failure = None if code in accepted else f"exit {code}: {said[-200:]}"
    size = output.stat().st_size
    return Cost(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, size, failure=failure)


def find(name: str, given: str | None) -> str | None:
    """A program: as given, beside this interpreter, or on the PATH."""
    beside = Path(sysconfig.get_path("scripts"), name)
    return given or (str(beside) if beside.is_file() else shutil.which(name))
