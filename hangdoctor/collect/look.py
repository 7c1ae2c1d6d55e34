"""One look at all processes of a job: everything in /proc first, then stacks, then what the memory adds.

Every step has a deadline of its own and costs a gap at worst, so a look always ends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hangdoctor.collect import dumps, host, inside, own_stacks, stacks
from hangdoctor.collect.deadline import (
    Clock,
    Trouble,
    call,
    each,
    patience,
    reader_count,
)
from hangdoctor.collect.denials import explain_denial
from hangdoctor.collect.plan import Plan
from hangdoctor.collect.processes import merge_gaps, read_processes
from hangdoctor.collect.procfs import Stat, list_tids, read_table
from hangdoctor.collect.pyspy import PySpy
from hangdoctor.collect.ras_asking import ask_ras
from hangdoctor.collect.schedclock import SchedulerClock
from hangdoctor.collect.surroundings import Surroundings, read_locks, read_logs
from hangdoctor.collect.syscalls import decode_syscall
from hangdoctor.collect.threads import ThreadTable, read_threads
from hangdoctor.model import (
    FileLock,
    Gap,
    Gpu,
    HostLoad,
    LogTail,
    Method,
    Process,
    RasAnswer,
    Snapshot,
    SpinSample,
)

THREADS_S = 1.0


class Look:
    """A look being taken. What it has so far can be had as a snapshot at any time, also after an interruption."""

    def __init__(self, plan: Plan, program: PySpy | None, spins: Mapping[int, SpinSample]) -> None:
        self._plan = plan
        self._spins = spins
        self._program = program
        self._clock = Clock(plan.look_s)
        self._cpu_clocks = SchedulerClock()
        self._began = time.monotonic()
        self.taken_at = time.time()
        self.processes: tuple[Process, ...] = ()
        self.gaps: list[Gap] = []
        self._tables: dict[int, ThreadTable] = {}
        self._gpus: tuple[Gpu, ...] = ()
        self._file_locks: tuple[FileLock, ...] = ()
        self._logs: tuple[LogTail, ...] = ()
        self._load: HostLoad | None = None
        self._ras: tuple[RasAnswer, ...] = ()
        self._paused_s = 0.0

    def take(self, stats: Sequence[Stat], visible: frozenset[int], previous: Snapshot | None) -> Snapshot:
        """Runs all steps on the processes of ``stats``.

        ``visible`` are all pids of this machine; ``previous`` saves looking up what does not change.
        """
        known = {process.pid: process for process in previous.processes} if previous else {}
        around = Surroundings([stat.pid for stat in stats], visible, use_gpu=self._plan.use_gpu)
        try:
            self._load = host.read_load()
            processes, gaps = read_processes(stats, self._plan.is_env_allowed, known, self._clock.left())
            self.gaps.extend(gaps)
            self.processes, gaps = around.add_connections(processes)
            self.gaps.extend(gaps)
            self._read_threads()
            self._read_stacks()
            self._read_memory()
            self._ask_ras(previous)
            self._file_locks, gaps = read_locks(self.processes)
            self.gaps.extend(gaps)
            self._logs, gaps = read_logs(self.processes, self._plan.logs)
            self.gaps.extend(gaps)
            self._gpus, gaps = around.take_gpus()
            self.gaps.extend(gaps)
        finally:
            around.end()
        self._drop_the_gone()
        return self.snapshot()

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

    def _read_threads(self) -> None:
        """The thread tables; a process whose memory does not answer is asked again without reading it."""
        living = {process.pid: process for process in self.processes if _has_threads(process)}
        stuck = self._read_thread_tables(list(living.values()), can_read_memory=True)
        self._read_thread_tables([living[pid] for pid in stuck], can_read_memory=False)
        now = time.time()
        self.processes = tuple(
            replace(process, threads=self._tables[process.pid].threads, taken_at=now)
            if process.pid in self._tables
            else process
            for process in self.processes
        )

    def _read_thread_tables(self, processes: Sequence[Process], *, can_read_memory: bool) -> list[int]:
        def read(process: Process) -> ThreadTable:
            pid, sockets = process.pid, process.sockets
            return read_threads(
                pid,
                lambda line, wchan: decode_syscall(
                    pid, line, can_read_memory=can_read_memory, wchan=wchan, sockets=sockets
                ),
                is_namespaced=process.ns_pid is not None,
                clock=self._cpu_clocks,
            )

        stuck = []
        item_s = THREADS_S * patience()
        total_s = min(4 * item_s, self._clock.left())
        for process, table in each(read, processes, item_s=item_s, total_s=total_s, width=reader_count()):
            if isinstance(table, ThreadTable):
                self._tables[process.pid] = table
                self.gaps.extend(() if table.has_syscalls else (_no_syscalls(process.pid),))
                continue
            stuck.append(process.pid)
            reason = f"reading its threads {table.reason}"
            remedy = f"As root, see where they are held: cat /proc/{process.pid}/task/*/stack"
            self.gaps.append(Gap("proc", f"pid {process.pid}", reason, remedy))
        return stuck

    def _read_stacks(self) -> None:
        """py-spy first; what it is missing for or cannot read, with the reader of our own."""
        if self._program is None:
            self._take_stacks(own_stacks.read_stacks_of(self.processes, total_s=self._clock.left()))
            return
        can_pause = self._plan.allow_pause
        found = dumps.dump_stacks(
            self._program, self.processes, total_s=self._clock.left(), can_pause=can_pause
        )
        left = [process for process in self.processes if process.pid in found.refused]
        own = own_stacks.read_stacks_of(left, total_s=self._clock.left())
        found.gaps = own_stacks.amend(found.gaps, own)
        self._take_stacks(found)
        self._take_stacks(replace(own, gaps=[]))

    def add_native(self, program: PySpy) -> Snapshot:
        """Replaces the stacks by ones with native frames, where they could be had."""
        self._take_stacks(dumps.dump_native(program, self.processes, total_s=2 * self._plan.look_s))
        return self.snapshot()

    def _take_stacks(self, found: dumps.StackRun) -> None:
        self.gaps.extend(found.gaps)
        self._paused_s = max(self._paused_s, found.paused_s)
        merged = []
        for process in self.processes:
            dump = found.dumps.get(process.pid)
            if dump is not None:
                table = self._tables.get(process.pid, ThreadTable(()))
                dump = _with_tids(process, dump, table)
                living = frozenset((*self._known_tids(process.pid), *list_tids(process.pid)))
                # py-spy speaks of threads as the target numbers them, our reader as the host does.
                inner_tids = {} if dump.method is Method.MEMORY else table.inner_tids
                process, gaps = stacks.attach(process, dump, inner_tids, living)
                self.gaps.extend(gaps)
            merged.append(process)
        self.processes = tuple(merged)

    def _known_tids(self, pid: int) -> list[int]:
        table = self._tables.get(pid)
        return [thread.tid for thread in table.threads if thread.tid is not None] if table else []

    def _read_memory(self) -> None:
        self.processes = inside.add_spins(self.processes, self._spins)
        if self._plan.use_locks:
            self.processes, gaps = inside.add_locks(self.processes, self._clock.left())
            self.gaps.extend(gaps)
        if self._plan.use_flight:
            self.processes, gaps = inside.add_flight(self.processes, self._clock.left())
            self.gaps.extend(gaps)

    def _ask_ras(self, previous: Snapshot | None) -> None:
        if self._plan.use_ras:
            force, left = self._plan.force_ras, self._clock.left()
            self._ras, gaps = ask_ras(self.processes, previous, force=force, limit_s=left)
            self.gaps.extend(gaps)

    def _drop_the_gone(self) -> None:
        """A process that ended before anything could be read of it is absent, and no gap either."""
        table = read_table()
        gone = {
            process.pid
            for process in self.processes
            if process.pid not in table or table[process.pid].start_ticks != process.start_ticks
        }
        self.processes = tuple(
            process for process in self.processes if process.pid not in gone or process.threads
        )
        subjects = {f"pid {pid}" for pid in gone}
        self.gaps = [gap for gap in self.gaps if gap.subject not in subjects]


def _has_threads(process: Process) -> bool:
    return process.state not in ("Z", "X") or (process.thread_count or 0) > 1


def _no_syscalls(pid: int) -> Gap:
    denial = explain_denial(pid, is_attach=True)
    reason = f"not readable: its system calls and the owners of its locks ({denial.cause})"
    return Gap("proc", f"pid {pid}", reason, denial.remedy)


def _with_tids(process: Process, dump: stacks.Dump, table: ThreadTable) -> stacks.Dump:
    """Thread ids for interpreters before 3.11, which do not record them."""
    unknown = [thread.pthread for thread in dump.threads if thread.tid is None]
    if not unknown:
        return dump
    tids = frozenset(table.inner_tids or list_tids(process.pid))
    found = call(lambda: stacks.find_tids(process.pid, unknown, tids), THREADS_S)
    if isinstance(found, Trouble):
        return dump
    # Memory that knows none of the process' own threads is another's: 0 is nobody's number.
    missing = None if found else 0
    threads = (
        replace(thread, tid=found.get(thread.pthread, missing)) if thread.tid is None else thread
        for thread in dump.threads
    )
    return replace(dump, threads=tuple(threads))
