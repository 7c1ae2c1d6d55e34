"""One look at all processes of a job: everything in /proc first, then stacks, then what the memory adds.

Every step has a deadline of its own and costs a gap at worst, so a look always ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hangdoctor.collect import dumps, host, inside, stack_sources
from hangdoctor.collect.cpython.view import remember_views
from hangdoctor.collect.deadline import Clock, reader_count
from hangdoctor.collect.elf import remember_images
from hangdoctor.collect.locks.shared import remember_holders
from hangdoctor.collect.mappings import forget_packages
from hangdoctor.collect.memory import remember_regions
from hangdoctor.collect.plan import Plan
from hangdoctor.collect.processes import ask_processes, merge_gaps, step_reader
from hangdoctor.collect.procfs import Stat, read_stat
from hangdoctor.collect.pyspy import PySpy
from hangdoctor.collect.ras_asking import ask_ras
from hangdoctor.collect.readers import Readers
from hangdoctor.collect.resting import Resting, has_good_stacks
from hangdoctor.collect.surroundings import FUNCTIONS, Surroundings
from hangdoctor.collect.thread_reader import ThreadReader
from hangdoctor.collect.thread_steps import ThreadSteps
from hangdoctor.model import (
    FileLock,
    Gap,
    Gpu,
    HostLoad,
    LogTail,
    Process,
    RasAnswer,
    Snapshot,
    SpinSample,
)


class LookReaders:
    """The children that read for all looks of a capture, and what they can be asked. :meth:`end` them in every case."""

    def __init__(self, is_env_allowed: Callable[[str], bool]) -> None:
        """``is_env_allowed(name)``: which variables are kept."""
        self.read_step = step_reader(is_env_allowed)
        self.of_threads = ThreadReader()
        functions: tuple[Callable[[Any], Any], ...] = (
            self.read_step,
            stack_sources.read_memory,
            self.of_threads.read_table,
            self.of_threads.find_locks,
            inside.read_recorder,
            *FUNCTIONS,
        )
        self.pool = Readers(functions, reader_count(), renew=self._renew)

    def _renew(self) -> None:
        """In a child, for each look. Ranks are alike, and every step begins with the same address space."""
        remember_regions()
        remember_images()
        remember_views()
        remember_holders()
        forget_packages()
        self.of_threads.renew()

    def end(self) -> None:
        """Idempotent."""
        self.pool.end()


class Look:
    """A look being taken. What it has so far can be had as a snapshot at any time, also after an interruption."""

    def __init__(
        self,
        plan: Plan,
        program: PySpy | None,
        spins: Mapping[int, SpinSample],
        readers: LookReaders,
        resting: Resting,
    ) -> None:
        self._plan = plan
        self._read_step = readers.read_step
        self._readers = readers.pool
        self._resting = resting
        self._at_rest: Mapping[int, Process] = {}
        """Processes that did not run since the last look, as they were seen then."""
        self._thread_steps = ThreadSteps(readers.of_threads, plan, program, spins)
        self._clock = Clock(plan.look_s)
        self._began = time.monotonic()
        self.taken_at = time.time()
        self.processes: tuple[Process, ...] = ()
        self.gaps: list[Gap] = []
        self._gpus: tuple[Gpu, ...] = ()
        self._file_locks: tuple[FileLock, ...] = ()
        self._logs: tuple[LogTail, ...] = ()
        self._load: HostLoad | None = None
        self._ras: tuple[RasAnswer, ...] = ()
        self._paused_s = 0.0

    def take(
        self,
        stats: Sequence[Stat],
        visible: frozenset[int],
        previous: Snapshot | None,
        *,
        is_last: bool = False,
    ) -> Snapshot:
        """Runs all steps on the processes of ``stats``.

        ``visible`` are all pids of this machine; ``previous`` saves looking up what does not change. ``is_last``: the
        readers are not needed afterwards.
        """
        known = {process.pid: process for process in previous.processes} if previous else {}
        pids = [stat.pid for stat in stats]
        around = Surroundings(self._readers, pids, visible, use_gpu=self._plan.use_gpu)
        try:
            self._load = host.read_load()
            processes, gaps = ask_processes(self._readers, self._read_step, stats, known, self._clock.left())
            self.gaps.extend(gaps)
            self.processes, gaps = around.add_connections(processes)
            self.gaps.extend(gaps)
            around.ask_outputs(self.processes)
            self._at_rest = self._find_resting(known)
            self._read_threads(around)
            if is_last:
                self._readers.dismiss()
            self._ask_ras(previous)
            self._take_surroundings(around)
        finally:
            around.end()
            self._readers.rest()
        self._drop_the_gone()
        return self.snapshot()

    def _find_resting(self, known: Mapping[int, Process]) -> dict[int, Process]:
        resting = self._resting.begin_look(self.processes)
        return {pid: known[pid] for pid in resting if pid in known and has_good_stacks(known[pid])}

    def _take_surroundings(self, around: Surroundings) -> None:
        self._file_locks, gaps = around.take_locks()
        self.gaps.extend(gaps)
        self._logs, gaps = around.take_logs()
        self.gaps.extend(gaps)
        self._gpus, gaps = around.take_gpus()
        self.gaps.extend(gaps)

    def snapshot(self) -> Snapshot:
        """What has been seen so far."""
        return Snapshot(
            taken_at=self.taken_at,
            processes=self.processes,
            duration_s=time.monotonic() - self._began,
            gpus=self._gpus,
            file_locks=self._file_locks,
            logs=self._logs,
            load=self._load,
            gaps=merge_gaps(self.gaps),
            paused_s=self._paused_s,
            ras=self._ras,
        )

    def _read_threads(self, around: Surroundings) -> None:
        steps = self._thread_steps
        steps.ask(self._readers, self.processes, self._at_rest, self._clock)
        around.ask_locks_and_logs(self.processes, self._plan.logs)
        try:
            steps.take()
        finally:
            self.processes = steps.processes
            self.gaps.extend(steps.gaps)
            self._paused_s = max(self._paused_s, steps.paused_s)
        if self._plan.use_flight:
            left_s = self._clock.left()
            self.processes, gaps = inside.add_flight(self._readers, self.processes, left_s)
            self.gaps.extend(gaps)

    def add_native(self, program: PySpy) -> Snapshot:
        """Replaces the stacks by ones with native frames, where they could be had."""
        run = dumps.dump_native(program, self.processes, total_s=2 * self._plan.look_s)
        self.processes, gaps = self._thread_steps.attach(self.processes, run.dumps)
        self.gaps.extend((*run.gaps, *gaps))
        self._paused_s = max(self._paused_s, run.paused_s)
        return self.snapshot()

    def _ask_ras(self, previous: Snapshot | None) -> None:
        if self._plan.use_ras:
            force, left = self._plan.force_ras, self._clock.left()
            self._ras, gaps = ask_ras(self.processes, previous, force=force, limit_s=left)
            self.gaps.extend(gaps)

    def _drop_the_gone(self) -> None:
        """A process that ended before anything could be read of it is absent, and no gap either.

        So is one whose number was given to another meanwhile: what was read may be of either.
        """
        now = {process.pid: _start_of(process.pid) for process in self.processes}
        gone = {process.pid for process in self.processes if now[process.pid] != process.start_ticks}
        self.processes = tuple(
            process
            for process in self.processes
            if process.pid not in gone or (process.threads and now[process.pid] is None)
        )
        subjects = {f"pid {pid}" for pid in gone}
        self.gaps = [gap for gap in self.gaps if gap.subject not in subjects]


def _start_of(pid: int) -> int | None:
    try:
        stat = read_stat(pid)
    except (OSError, ValueError):
        return None
    return None if stat is None else stat.start_ticks
