"""How the time and memory of a diagnosis grow with the number of ranks; prints tables (docs/cluster.md cites them).

    python scripts/bench_scale.py [stacks|ranks|all]

``stacks``: synthetic ranks merged to equivalence classes and a prefix tree. ``ranks``: whole captures, made of a
recorded server's processes (its stacks, system calls and counters), read host by host, merged, redacted and diagnosed:
what `hangdoctor analyze captures/` does.
"""

from __future__ import annotations

import gc
import io
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from hangdoctor import bundle
from hangdoctor.analysis import diagnose
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.knowledge import Knowledge, load_knowledge
from hangdoctor.model import Capture, Frame, Host, Process, Snapshot, Syscall, Thread
from hangdoctor.parsers.merge import merge_captures
from hangdoctor.redact import redact_capture
from hangdoctor.render._stack_tree import Branch, build_tree
from hangdoctor.report import Report

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tests" / "bundles" / "vllm-live-lock-gloo" / "capture.hang"
RANKS_PER_HOST = 8
THREADS = 60
STACKS, DEPTH = 200, 40
STACK_LIMITS_S = {131_072: 0.5, 1_048_576: 4.0}
RANKS_LIMIT_S, RANKS_LIMIT_BYTES = 30.0, 3 << 30
SIZES = (64, 256, 1024, 4096)


# -- stacks -------------------------------------------------------------------------------------------


def synthetic_stacks() -> tuple[tuple[Frame, ...], ...]:
    """Innermost first; they leave each other at depths from 3 to 39, as ranks in one program do."""
    stacks = []
    for number in range(STACKS):
        shared = 3 + number % (DEPTH - 3)
        own = [
            Frame(f"step_{number}_{depth}", f"model_{number % 7}.py", depth)
            for depth in range(DEPTH - shared)
        ]
        common = [Frame(f"run_{depth}", "engine.py", depth) for depth in range(shared)]
        stacks.append(tuple(reversed([*common, *own])))
    return tuple(stacks)


def merge_stacks(count: int, stacks: tuple[tuple[Frame, ...], ...]) -> tuple[float, list[Branch]]:
    """Seconds for classes, tree and the folded names of every class."""
    labelled = [(f"rank {rank}", stacks[rank * 31 % STACKS]) for rank in range(count)]
    gc.collect()
    began = time.perf_counter()
    tree = build_tree(labelled)
    fold_leaves(tree)
    return time.perf_counter() - began, tree


def fold_leaves(tree: list[Branch]) -> list[str]:
    """The names of those that go no further than a branch."""
    names, work = [], list(tree)
    while work:
        branch = work.pop()
        work += branch.children
        if not branch.children:
            names.append(fold_labels(branch.labels))
    return names


def bench_stacks() -> bool:
    """Print the table; whether all limits hold."""
    print(f"{STACKS} different stacks of {DEPTH} frames\n\n    ranks    seconds   limit")
    stacks, is_good = synthetic_stacks(), True
    for count, limit in STACK_LIMITS_S.items():
        seconds = min(merge_stacks(count, stacks)[0] for _ in range(2))
        is_good &= seconds < limit
        print(f"{count:9,}   {seconds:8.2f}   {limit:5.1f}")
    return is_good


# -- captures -----------------------------------------------------------------------------------------


def job_of(ranks: int, recorded: Capture) -> Iterator[Capture]:
    """A capture a host: 8 ranks with 60 threads each; one rank of all holds a lock, the others wait for it."""
    workers = [
        p for p in recorded.snapshots[-1].processes if any(f.function == "all_reduce" for f in _frames(p))
    ]
    stuck = next(p for p in recorded.snapshots[-1].processes if "Worker_TP1" in " ".join(p.command))
    waiting = next((p for p in workers if p.pid != stuck.pid), stuck)
    culprit = ranks * 5 // 7
    for first in range(0, ranks, RANKS_PER_HOST):
        name = f"node{first // RANKS_PER_HOST}"
        numbers = range(first, min(first + RANKS_PER_HOST, ranks))
        snapshots = tuple(
            Snapshot(
                snapshot.taken_at,
                tuple(
                    _as_rank(snapshot, stuck if number == culprit else waiting, number, name, ranks)
                    for number in numbers
                ),
                duration_s=snapshot.duration_s,
            )
            for snapshot in recorded.snapshots
        )
        hosts = (replace(recorded.hosts[0], name=name, boot_id=name) if recorded.hosts else Host(name),)
        yield replace(recorded, hosts=hosts, snapshots=snapshots, gaps=())


def _frames(process: Process) -> list[Frame]:
    return [frame for thread in process.threads if thread.stack for frame in thread.stack.frames]


def _as_rank(snapshot: Snapshot, model: Process, number: int, host: str, ranks: int) -> Process:
    """The recorded process at this look, as rank ``number`` of a torch job, with threads up to 60."""
    process = next(p for p in snapshot.processes if p.pid == model.pid)
    pid = 1000 + number % RANKS_PER_HOST * 100
    threads = []
    for place in range(THREADS):
        thread: Thread = (
            process.threads[place] if place < len(process.threads) else process.threads[-1 - place % 5]
        )
        call = _moved(thread.syscall, number) if thread.syscall else None
        threads.append(replace(thread, tid=pid + place, lock=None, syscall=call))
    environ = {"RANK": str(number), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(number % RANKS_PER_HOST),
               "LOCAL_WORLD_SIZE": str(RANKS_PER_HOST), "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}  # fmt: skip
    return replace(
        process, pid=pid, ppid=1, start_ticks=5000 + number, ns_pid=None, host=None, environ=environ,
        command=("python", "train.py"), exe="/usr/bin/python3", comm="python", threads=tuple(threads),
        sockets=process.sockets[:20], thread_count=THREADS,
    )  # fmt: skip


def _moved(call: Syscall, number: int) -> Syscall:
    """With another process' addresses: what is equal in all ranks must not be more than it is in a real job."""
    moved = {arg: arg + 4096 * number for arg in call.args if 1 << 32 < arg < 1 << 47}
    detail = call.detail
    for old, new in moved.items():
        detail = detail and detail.replace(hex(old), hex(new))
    return replace(call, args=tuple(moved.get(arg, arg) for arg in call.args), detail=detail)


@dataclass(frozen=True, slots=True)
class Seconds:
    """What each step took."""

    read: float
    merge: float
    redact: float
    diagnose: float

    @property
    def total(self) -> float:
        return self.read + self.merge + self.redact + self.diagnose


def measure(ranks: int, recorded: Capture, knowledge: Knowledge) -> tuple[Seconds, Report]:
    """From the bundles of all hosts to the report."""
    bundles = [_packed(capture) for capture in job_of(ranks, recorded)]
    gc.collect()
    gc.disable()  # as the command does
    times = [time.perf_counter()]
    shared = bundle.Shared()
    captures = [bundle.read(io.BytesIO(data), shared=shared) for data in bundles]
    times.append(time.perf_counter())
    merged = merge_captures(captures)
    del captures, shared
    times.append(time.perf_counter())
    merged = redact_capture(merged, knowledge.redaction)
    times.append(time.perf_counter())
    report = diagnose(merged, knowledge)
    times.append(time.perf_counter())
    gc.enable()
    return Seconds(*(later - sooner for sooner, later in pairwise(times))), report


def _packed(capture: Capture) -> bytes:
    stream = io.BytesIO()
    bundle.write(capture, stream)
    return stream.getvalue()


def bench_ranks(sizes: tuple[int, ...] = SIZES) -> bool:
    """Print the table; whether the limits hold and the cost of a rank is flat."""
    recorded, knowledge = bundle.read(RECORDED), load_knowledge()
    looks = len(recorded.snapshots)
    print(f"{THREADS} threads a rank, {looks} looks, {RANKS_PER_HOST} ranks a host\n")
    print("    ranks    read s   merge s   redact s   diagnose s   total s   ms a rank   peak MB   verdict")
    costs = {}
    for ranks in sizes:
        took, report = measure(ranks, recorded, knowledge)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        costs[ranks] = took.total / ranks
        verdict = report.verdict
        who = ", ".join(c.rank.label for c in verdict.culprits if c.rank)
        print(
            f"{ranks:9,}   {took.read:7.2f}   {took.merge:7.2f}   {took.redact:8.2f}   {took.diagnose:10.2f}   "
            f"{took.total:7.2f}   {1000 * costs[ranks]:9.2f}   {peak / 1e6:7,.0f}   {verdict.kind.value}: {who}"
        )
        del report
    is_flat = costs[sizes[-1]] <= 1.5 * costs[sizes[0]]
    print(f"\n{sizes[-1]:,} ranks: {took.total:.1f} s (limit {RANKS_LIMIT_S:.0f}); the cost of a rank is "
          f"{'flat' if is_flat else 'NOT flat'}")  # fmt: skip
    return is_flat and took.total < RANKS_LIMIT_S and peak < RANKS_LIMIT_BYTES


def main(words: list[str]) -> int:
    """0 when every limit holds."""
    what = words[0] if words else "all"
    results = []
    if what in ("stacks", "all"):
        results.append(bench_stacks())
        print()
    if what in ("ranks", "all"):
        results.append(bench_ranks())
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
