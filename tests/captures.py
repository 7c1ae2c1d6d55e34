"""Hand-built captures for tests of the analysis: a job is a few lines, and one fact can be flipped at a time.

Times, ticks and switch counts are made up but of the size that real servers show; frames carry the names and
files of the real libraries, because the knowledge matches on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from hangdoctor.model import (
    Capture,
    FlightEntry,
    Frame,
    Gpu,
    Host,
    IoCounters,
    LockWait,
    LogTail,
    MappedFile,
    Method,
    OpenFile,
    Process,
    Snapshot,
    SpinSample,
    Stack,
    Syscall,
    Target,
    Thread,
    Tool,
)

START = 1_790_000_000.0
C10D = "/site-packages/torch/distributed/distributed_c10d.py"
LOGGER = "/site-packages/torch/distributed/c10d_logger.py"

FUTEX = Syscall("futex", is_timed=False, detail="futex wait, private, no timeout")
FUTEX_TIMED = Syscall("futex", is_timed=True, timeout_s=1790.0, detail="futex wait, deadline in 1790 s")
SLEEP = Syscall("clock_nanosleep", is_timed=True, timeout_s=600.0, detail="sleeps 600 s more")
RUNNING = Syscall("running")


def frames(*calls: str) -> tuple[Frame, ...]:
    """``frames("load train.py:19", "<module> train.py:40")``, innermost first."""
    made = []
    for call in calls:
        function, _, place = call.partition(" ")
        file, _, line = place.partition(":")
        made.append(Frame(function, file, int(line) if line else None))
    return tuple(made)


def in_collective(name: str = "all_reduce", caller: str = "train_step /job/train.py:31") -> tuple[Frame, ...]:
    """A main thread inside a c10d collective."""
    return frames(f"{name} {C10D}:3252", f"wrapper {LOGGER}:83", caller, "<module> /job/train.py:60")


@dataclass
class Looks:
    """One process over several looks: what stays the same, and per look what differs."""

    pid: int
    stacks: Sequence[tuple[Frame, ...] | None]
    """One stack a look; a single one stands for all looks."""
    state: str | Sequence[str] = "S"
    syscall: Syscall | None = FUTEX
    cpu_s: float = 0.0
    """CPU seconds used per look."""
    switches: int = 0
    """Voluntary switches per look."""
    command: tuple[str, ...] = ("python", "train.py")
    environ: dict[str, str] = field(default_factory=dict)
    ppid: int = 1
    comm: str = "python"
    last_ran_s: float | None = None
    owns_gil: bool | None = None
    lock: LockWait | None = None
    spin: SpinSample | None = None
    extra_threads: tuple[Thread, ...] = ()
    extra_cpu_s: float = 0.0
    """CPU seconds that each of them uses per look."""
    files: Sequence[tuple[OpenFile, ...]] = ()
    mapped: Sequence[tuple[MappedFile, ...]] = ()
    read_chars: Sequence[int] = ()
    is_cached: bool = False
    """What it reads is in memory already: none of it comes from storage."""
    read_calls: Sequence[int] = ()
    write_chars: Sequence[int] = ()
    rss_bytes: Sequence[int] = ()
    faults: Sequence[tuple[int, int]] = ()
    flight: Sequence[tuple[FlightEntry, ...]] = ()
    present: Sequence[bool] = ()
    start_ticks: int = 1000
    torn: Sequence[bool] = ()
    """Whether the stack of a look could not be read whole."""

    def at(self, index: int) -> Process | None:
        """The process at look ``index``."""
        if self.present and not self.present[index]:
            return None
        stack = self.stacks[index] if len(self.stacks) > 1 else self.stacks[0]
        state = self.state if isinstance(self.state, str) else self.state[index]
        main = Thread(
            tid=self.pid,
            name="MainThread" if stack is not None else None,
            comm=self.comm,
            state=state,
            stack=Stack(stack, Method.PY_SPY_NONBLOCKING, bool(self.torn and self.torn[index]))
            if stack is not None
            else None,
            owns_gil=self.owns_gil,
            syscall=self.syscall,
            run_ns=int(1e9 * (100 + index * self.cpu_s)),
            voluntary_switches=1000 + index * self.switches,
            last_ran_s=self.last_ran_s,
            lock=self.lock,
            spin=self.spin,
        )
        reads = self.read_chars[index] if self.read_chars else 0
        writes = self.write_chars[index] if self.write_chars else 0
        calls = self.read_calls[index] if self.read_calls else None
        minor, major = self.faults[index] if self.faults else (5000, 3)
        return Process(
            pid=self.pid,
            start_ticks=self.start_ticks,
            ppid=self.ppid,
            state=state,
            comm=self.comm,
            command=self.command,
            threads=(main, *self._extras(index)),
            environ=self.environ or None,
            io=IoCounters(reads, writes, 0 if self.is_cached else reads, 0, calls),
            files=self.files[index] if self.files else (),
            mapped=self.mapped[index] if self.mapped else (),
            minor_faults=minor,
            major_faults=major,
            rss_bytes=self.rss_bytes[index] if self.rss_bytes else 1 << 30,
            user_ticks=int(100 * (100 + index * self.cpu_s)),
            system_ticks=0,
            flight=self.flight[index] if self.flight else (),
            versions={"python": "3.11"} if stack is not None else {},
        )

    def _extras(self, index: int) -> tuple[Thread, ...]:
        used_ns = int(1e9 * index * self.extra_cpu_s)
        return tuple(replace(t, run_ns=(t.run_ns or 0) + used_ns) for t in self.extra_threads)


def rank(number: int, world: int, stacks: Sequence[tuple[Frame, ...] | None], **facts: object) -> Looks:
    """A torchrun-style rank: its number is in its environment."""
    environ = {"RANK": str(number), "WORLD_SIZE": str(world), "LOCAL_RANK": str(number)}
    return Looks(pid=4000 + number, stacks=stacks, environ=environ, start_ticks=1000 + number, **facts)  # type: ignore[arg-type]


def capture(
    processes: Iterable[Looks],
    *,
    offsets: Sequence[float] = (0.0, 3.0, 10.0),
    logs: Sequence[tuple[str, ...]] = (),
    gpus: Sequence[tuple[Gpu, ...]] = (),
) -> Capture:
    """The looks at all processes as one capture."""
    everyone = list(processes)
    snapshots = []
    for index, offset in enumerate(offsets):
        seen = [p for p in (looks.at(index) for looks in everyone) if p is not None]
        tail = ()
        if logs:
            lines = logs[index]
            tail = (LogTail("/var/log/server.log", sum(map(len, lines)), START + offset, lines),)
        snapshots.append(
            Snapshot(
                taken_at=START + offset,
                processes=tuple(seen),
                logs=tail,
                gpus=gpus[index] if gpus else (),
                paused_s=0.0,
            )
        )
    first = everyone[0]
    return Capture(
        tool=Tool("0.1.0"),
        target=Target(f"pid {first.pid}", pid=first.pid, root_pid=first.pid),
        hosts=(Host("testhost", ticks_per_s=100),),
        snapshots=tuple(snapshots),
    )


def flip(looks: Looks, **facts: object) -> Looks:
    """The same process with one fact changed: the twin of a rule's case."""
    return replace(looks, **facts)  # type: ignore[arg-type]
