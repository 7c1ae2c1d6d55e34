"""One look at all processes of a job: everything in /proc first, then stacks, then what the memory adds.

Every step has a deadline of its own and costs a gap at worst, so a look always ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hangdoctor.collect import dumps, filelocks, host, inside, logs, stacks
from hangdoctor.collect.deadline import (
    Clock,
    Pending,
    Trouble,
    call,
    each,
    helper_pids,
    patience,
    reader_count,
)
from hangdoctor.collect.files import read_files
from hangdoctor.collect.gpu import read_gpus
from hangdoctor.collect.plan import Plan
from hangdoctor.collect.processes import merge_gaps, read_processes
from hangdoctor.collect.procfs import Stat, list_tids, read_table
from hangdoctor.collect.pyspy import PySpy
from hangdoctor.collect.schedclock import SchedulerClock
from hangdoctor.collect.sockets import PipeEnds, read_connections, read_pipe_ends
from hangdoctor.collect.syscalls import decode_syscall
from hangdoctor.collect.threads import ThreadTable, read_threads
from hangdoctor.model import FileLock, Gap, Gpu, HostLoad, LogTail, OpenFile, Process, Snapshot, SpinSample

THREADS_S = 1.0
SOCKETS_S = 3.0
GPU_S = 3.0
LOGS_S = 1.0
LOCKS_S = 2.0


class Look:
    """A look being taken. What it has so far can be had as a snapshot at any time, also after an interruption."""

    def __init__(self, plan: Plan, program: PySpy | None, spins: Mapping[int, SpinSample]) -> None:
        self._plan = plan
        self._spins = spins
        self._program = program
        self._clock = Clock(plan.look_s)
        self._began = time.monotonic()
        self.taken_at = time.time()
        self.processes: tuple[Process, ...] = ()
        self.gaps: list[Gap] = []
        self._tables: dict[int, ThreadTable] = {}
        self._gpus: tuple[Gpu, ...] = ()
        self._file_locks: tuple[FileLock, ...] = ()
        self._logs: tuple[LogTail, ...] = ()
        self._load: HostLoad | None = None
        self._paused_s = 0.0

    def take(self, stats: Sequence[Stat], previous: Snapshot | None) -> Snapshot:
        """Runs all steps on the processes of ``stats``; ``previous`` saves looking up what does not change."""
        known = {process.pid: process for process in previous.processes} if previous else {}
        pids = [stat.pid for stat in stats]
        gpus = Pending(lambda: read_gpus(GPU_S, pids=pids), GPU_S + 2.0) if self._plan.use_gpu else None
        try:
            self._load = host.read_load()
            processes, gaps = read_processes(stats, self._plan.is_env_allowed, known)
            self.gaps.extend(gaps)
            self.processes = self._with_connections(processes)
            self._read_threads()
            self._read_stacks()
            self._read_memory()
            self._read_file_locks()
            self._read_logs()
            if gpus is not None:
                self._take_gpus(gpus.result())
        finally:
            if gpus is not None:
                gpus.end()
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
        )

    def _with_connections(self, processes: tuple[Process, ...]) -> tuple[Process, ...]:
        pids = [process.pid for process in processes]
        sockets = call(lambda: read_connections(pids), SOCKETS_S)
        ours = helper_pids()
        pipes = call(lambda: _other_ends(pids, ours), SOCKETS_S)
        if isinstance(sockets, Trouble):
            self.gaps.append(Gap("sockets", "the target", f"reading its sockets {sockets.reason}", "ss -tnp"))
            sockets = {}
        if isinstance(pipes, Trouble):
            self.gaps.append(Gap("pipes", "the target", f"finding the other ends {pipes.reason}", "lsof -E"))
            pipes = {}
        return tuple(
            replace(process, sockets=sockets.get(process.pid, ()), files=_with_ends(process.files, pipes))
            for process in processes
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
        clock = SchedulerClock()

        def read(process: Process) -> ThreadTable:
            pid, sockets = process.pid, process.sockets
            return read_threads(
                pid,
                lambda line, wchan: decode_syscall(
                    pid, line, can_read_memory=can_read_memory, wchan=wchan, sockets=sockets
                ),
                is_namespaced=process.ns_pid is not None,
                clock=clock,
            )

        stuck = []
        item_s = THREADS_S * patience()
        total_s = min(4 * item_s, self._clock.left())
        for process, table in each(read, processes, item_s=item_s, total_s=total_s, width=reader_count()):
            if isinstance(table, ThreadTable):
                self._tables[process.pid] = table
                continue
            stuck.append(process.pid)
            reason = f"reading its threads {table.reason}"
            remedy = f"As root, see where they are held: cat /proc/{process.pid}/task/*/stack"
            self.gaps.append(Gap("proc", f"pid {process.pid}", reason, remedy))
        return stuck

    def _read_stacks(self) -> None:
        if self._program is None:
            return
        can_pause = self._plan.allow_pause
        found = dumps.dump_stacks(
            self._program, self.processes, total_s=self._clock.left(), can_pause=can_pause
        )
        self._take_stacks(found)

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
                process, gaps = stacks.attach(process, dump, table.inner_tids, living)
                self.gaps.extend(gaps)
            merged.append(process)
        self.processes = tuple(merged)

    def _known_tids(self, pid: int) -> list[int]:
        table = self._tables.get(pid)
        return [thread.tid for thread in table.threads if thread.tid is not None] if table else []

    def _read_memory(self) -> None:
        self.processes = inside.add_spins(self.processes, self._spins)
        if self._plan.use_locks:
            self.processes, gaps = inside.add_locks(self.processes)
            self.gaps.extend(gaps)
        if self._plan.use_flight:
            self.processes, gaps = inside.add_flight(self.processes)
            self.gaps.extend(gaps)

    def _read_file_locks(self) -> None:
        processes = self.processes
        kernel = call(lambda: filelocks.read_file_locks(processes), LOCKS_S)
        held = () if isinstance(kernel, Trouble) else kernel
        existing = call(lambda: filelocks.find_existence_locks(processes, held), LOCKS_S)
        for what, answer in (("/proc/locks", kernel), ("lock files", existing)):
            if isinstance(answer, Trouble):
                self.gaps.append(Gap("locks", "the target", f"reading {what} {answer.reason}", "lslocks"))
        self._file_locks = held if isinstance(existing, Trouble) else (*held, *existing)

    def _read_logs(self) -> None:
        sources = list(logs.find_logs(self.processes, self._plan.logs))
        readers = logs.piped_outputs(self.processes)
        outside = [pid for pid in readers if pid not in {process.pid for process in self.processes}]
        opened = {
            pid: files
            for pid, files in each(read_files, outside[: logs.MAX_LOGS], item_s=LOGS_S, total_s=LOGS_S)
            if not isinstance(files, Trouble)
        }
        sources += logs.find_tee_logs(readers, opened)
        tails = []
        for source, tail in each(logs.read_tail, sources, item_s=LOGS_S, total_s=3 * LOGS_S):
            if isinstance(tail, Trouble):
                remedy = "Look at it yourself, or give another file with --log FILE"
                self.gaps.append(Gap("log", source.name, f"not read: {tail.reason}", remedy))
            else:
                tails.append(tail)
        self._logs = tuple(tails)
        gap = None if sources else logs.no_log_gap(self.processes)
        self.gaps.extend([gap] if gap else [])

    def _take_gpus(self, answer: tuple[tuple[Gpu, ...], tuple[Gap, ...]] | Trouble) -> None:
        if isinstance(answer, Trouble):
            reason = f"reading the GPUs {answer.reason}: the driver may be wedged"
            self.gaps.append(Gap("gpu", "this machine", reason, "nvidia-smi; dmesg | grep -i xid"))
        else:
            self._gpus, gaps = answer
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


def _other_ends(pids: Sequence[int], helpers: frozenset[int]) -> dict[int, PipeEnds]:
    """The ends of pipes without ourselves: a fork of a process that holds one, a test or demo, holds it too."""
    ours = {os.getpid(), *helpers}
    return {
        inode: PipeEnds(
            tuple(pid for pid in ends.readers if pid not in ours),
            tuple(pid for pid in ends.writers if pid not in ours),
        )
        for inode, ends in read_pipe_ends(pids).items()
    }


def _with_ends(files: Sequence[OpenFile], pipes: Mapping[int, PipeEnds]) -> tuple[OpenFile, ...]:
    """Pipes with the pids at their other end."""
    found = []
    for file in files:
        ends = pipes.get(file.inode) if file.kind == "pipe" and file.inode is not None else None
        if ends is not None:
            file = replace(file, other_end=ends.writers if file.access == "r" else ends.readers)
        found.append(file)
    return tuple(found)


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
