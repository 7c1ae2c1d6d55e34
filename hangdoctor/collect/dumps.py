"""Stacks by py-spy: of which processes, in which order, how often, what as a last resort."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hangdoctor.collect import deadline, procfs, stacks
from hangdoctor.collect.procfs import list_tids, read_bytes
from hangdoctor.collect.pyspy import (
    BLOCKING_S,
    NATIVE_S,
    RETRIES_S,
    Failure,
    Mode,
    PySpy,
    classify,
    command,
    explain,
    is_python,
)
from hangdoctor.collect.spawn import Job, Result, guarded, run_all
from hangdoctor.collect.stacks import Dump, FrameTable
from hangdoctor.model import Gap, Method, Process

NONBLOCKING_S = 3.0
PER_THREAD_S = 0.01
SECOND_LOOK_S = 0.03
BLOCKING_TRIES = 3
_RESTING_NS = 1_000_000
_METHODS = {
    Mode.NONBLOCKING: Method.PY_SPY_NONBLOCKING,
    Mode.BLOCKING: Method.PY_SPY_BLOCKING,
    Mode.NATIVE: Method.PY_SPY_NATIVE,
}


@dataclass(slots=True)
class StackRun:
    """What came of one round of dumps."""

    dumps: dict[int, Dump] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    paused_s: float = 0.0
    """Longest stop of one target; an upper bound, for the whole run of a blocking py-spy is counted."""


def dump_stacks(program: PySpy, processes: Sequence[Process], *, total_s: float, can_pause: bool) -> StackRun:
    """Stacks of all Python processes among ``processes`` without stopping them, ranks before pools of helpers.

    Moving targets are tried five times; with ``can_pause`` those that still cannot be read are stopped for some
    milliseconds, if none of their threads is stopped, traced or in an uninterruptible wait.
    """
    asked = {process.pid: process for process in processes if is_python(process) and process.state != "X"}
    outcome = StackRun()
    patience = deadline.patience()
    jobs = [
        Job(
            process.pid,
            command(program, _task(process.pid), Mode.NONBLOCKING),
            (NONBLOCKING_S + PER_THREAD_S * (process.thread_count or 1)) * patience,
        )
        for process in sorted(asked.values(), key=_importance)
        if process.state != "Z" or (process.thread_count or 0) > 1
    ]
    width = max(1, min(len(jobs), len(os.sched_getaffinity(0))))
    round_ = _Round()
    for result in run_all(jobs, width=width, total_s=total_s, again=round_.again, is_nice=True):
        pid = result.job.key
        dump = round_.finish(result)
        if dump is None and can_pause and classify(result) is Failure.MOVING:
            dump = _dump_stopped(program, asked[pid], Mode.BLOCKING, outcome)
        if dump is not None:
            outcome.dumps[pid] = dump
            continue
        failure = classify(result) or Failure.OTHER
        gap = explain(asked[pid], failure, result, is_resting=round_.is_resting(pid))
        outcome.gaps.extend([gap] if gap else [])
    return outcome


def dump_native(program: PySpy, processes: Sequence[Process], *, total_s: float) -> StackRun:
    """Stacks with native frames, one process after the other; each is stopped for 0.3 to 2 s."""
    outcome = StackRun()
    end = deadline.Clock(total_s)
    for process in sorted(filter(is_python, processes), key=_importance):
        subject = f"pid {process.pid}"
        if end.left() <= 0:
            reason = f"no native stacks: no time was left of {total_s:.0f} s"
            outcome.gaps.append(Gap("py-spy --native", subject, reason, "name fewer processes"))
        elif process.ns_pid is not None:
            reason = (
                "no native stacks: it lives in another PID namespace, where --native would stop a stranger"
            )
            remedy = f"nsenter -t {process.pid} -p -m py-spy dump --native --pid {process.ns_pid}"
            outcome.gaps.append(Gap("py-spy --native", subject, reason, remedy))
        else:
            dump = _dump_stopped(program, process, Mode.NATIVE, outcome)
            if dump is not None:
                outcome.dumps[process.pid] = dump
    return outcome


def _task(pid: int) -> int:
    """py-spy refuses a zombie leader, but takes any living thread for its process."""
    stat = procfs.read_stat(pid)
    return pid if stat is None else procfs.living_task(stat)


def _importance(process: Process) -> tuple[int, int]:
    """Ranks have the most threads and memory; their looks should lie closest together."""
    return (-(process.thread_count or 0), -(process.rss_bytes or 0))


class _Round:
    """Decides after each run whether to try again, and keeps what a second look is compared with."""

    def __init__(self) -> None:
        self._frames = FrameTable()
        self._first: dict[int, Dump] = {}
        self._good: dict[int, Dump] = {}
        self._run_ns: dict[int, int] = {}

    def again(self, result: Result[int]) -> float | None:
        pid = result.job.key
        failure = classify(result)
        if failure is None:
            dump = to_dump(result, Mode.NONBLOCKING, self._frames)
            if dump is None:
                return None
            if pid in self._first:
                self._good[pid] = stacks.mark_torn(self._first[pid], dump)
            elif stacks.find_suspicious(dump.threads):
                self._first[pid] = dump
                return SECOND_LOOK_S
            else:
                self._good[pid] = dump
            return None
        if failure is not Failure.MOVING or pid in self._first or result.job.attempt > len(RETRIES_S):
            return None
        self._run_ns.setdefault(pid, read_run_ns(pid))
        return RETRIES_S[result.job.attempt - 1]

    def finish(self, result: Result[int]) -> Dump | None:
        pid = result.job.key
        if pid in self._good:
            return self._good[pid]
        first = self._first.get(pid)
        return stacks.mark_torn(first, None) if first else None

    def is_resting(self, pid: int) -> bool:
        """Whether the threads have not run for a millisecond since the first failure."""
        before = self._run_ns.get(pid)
        return before is not None and read_run_ns(pid) - before < _RESTING_NS


def read_run_ns(pid: int) -> int:
    """Time on a CPU of all threads together; 0 where the kernel does not count it."""
    total = 0
    for tid in list_tids(pid):
        try:
            total += int(read_bytes(f"/proc/{pid}/task/{tid}/schedstat").split()[0])
        except (OSError, ValueError, IndexError):
            continue
    return total


def to_dump(result: Result[int], mode: Mode, frames: FrameTable) -> Dump | None:
    """``None`` when a run that ended well wrote something else than a dump."""
    try:
        threads = stacks.parse_threads(result.stdout, frames)
    except ValueError:
        return None
    middle = result.started_at + result.duration_s / 2
    return Dump(result.job.key, threads, _METHODS[mode], middle, result.duration_s)


def _dump_stopped(program: PySpy, process: Process, mode: Mode, outcome: StackRun) -> Dump | None:
    """A dump that stops the target, only if nothing in it could make that last; verified afterwards."""
    subject = f"pid {process.pid}"
    refusal = why_not_stop(process.pid)
    if refusal is not None:
        reason = f"not stopped for its stacks: {refusal}"
        outcome.gaps.append(Gap(f"py-spy {mode.value}", subject, reason, "the non-blocking stacks stand"))
        return None
    limit = NATIVE_S if mode is Mode.NATIVE else BLOCKING_S
    job = Job(process.pid, guarded(command(program, process.pid, mode), limit), limit)
    result = next(iter(run_all([job], width=1, total_s=limit * BLOCKING_TRIES, again=_again_if_moving)))
    outcome.paused_s = max(outcome.paused_s, result.duration_s)
    outcome.gaps.extend(_check_released(process.pid))
    if classify(result) is not None:
        first = result.stderr.partition("\n")[0].removeprefix("Error: ") or "it was killed at its deadline"
        reason = f"no stacks in this mode: {first}"
        outcome.gaps.append(Gap(f"py-spy {mode.value}", subject, reason, "try again, or without it"))
        return None
    return to_dump(result, mode, FrameTable())


def _again_if_moving(result: Result[int]) -> float | None:
    # The interpreter is looked for before the stop, so a hot target defeats the blocking mode as well (6-41 %).
    return 0.02 if classify(result) is Failure.MOVING and result.job.attempt < BLOCKING_TRIES else None


def why_not_stop(pid: int) -> str | None:
    """What makes a ptrace stop dangerous now: it would last as long as the wait of a thread in D."""
    status = procfs.read_status(pid)
    if status is None:
        return "it has ended"
    if status.tracer_pid:
        return f"pid {status.tracer_pid} traces it already"
    for tid, state in thread_states(pid).items():
        if state in "DTt":
            return f"its thread {tid} is in state {state}"
    return None


def thread_states(pid: int) -> Mapping[int, str]:
    """The kernel's letter for every thread."""
    states = {}
    for tid in list_tids(pid):
        try:
            states[tid] = procfs.parse_stat(read_bytes(f"/proc/{pid}/task/{tid}/stat")).state
        except (OSError, ValueError):
            continue
    return states


def _check_released(pid: int) -> list[Gap]:
    """py-spy >= 0.4.1 never left a target stopped in 950 kills; if it ever does, say so at once."""
    stopped = [tid for tid, state in thread_states(pid).items() if state in "Tt"]
    if not stopped:
        return []
    reason = f"left stopped after its stacks were taken (thread {stopped[0]} and {len(stopped) - 1} more)"
    return [Gap("py-spy", f"pid {pid}", reason, f"kill -CONT {pid}")]
