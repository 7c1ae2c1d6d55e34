"""One look at all processes of a job: everything in /proc first, then stacks, then what the memory adds.

Every step has a deadline of its own and costs a gap at worst, so a look always ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoctor.collect import dumps, host, inside, stack_sources, stacks
from hangdoctor.collect.cpython.view import remember_views
from hangdoctor.collect.deadline import Clock, Trouble, call, patience, reader_count
from hangdoctor.collect.denials import explain_denial
from hangdoctor.collect.elf import remember_images
from hangdoctor.collect.locks.shared import remember_holders
from hangdoctor.collect.memory import Memory, remember_regions
from hangdoctor.collect.plan import Plan
from hangdoctor.collect.processes import ask_processes, merge_gaps, step_reader
from hangdoctor.collect.procfs import Stat, list_tids, read_stat
from hangdoctor.collect.pyspy import PySpy
from hangdoctor.collect.ras_asking import ask_ras
from hangdoctor.collect.readers import Answers, Readers
from hangdoctor.collect.resting import Resting, has_good_stacks, take_over
from hangdoctor.collect.schedclock import SchedulerClock
from hangdoctor.collect.surroundings import FUNCTIONS, Surroundings
from hangdoctor.collect.syscalls import decode_syscall
from hangdoctor.collect.threads import ThreadTable, read_threads
from hangdoctor.model import (
    FileLock,
    Gap,
    Gpu,
    HostLoad,
    LockWait,
    LogTail,
    Method,
    Process,
    RasAnswer,
    Snapshot,
    Socket,
    SpinSample,
)

THREADS_S = 1.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A process whose threads, or the locks they wait for, are asked for."""

    pid: int
    sockets: tuple[Socket, ...] = ()
    is_namespaced: bool = False
    can_read_memory: bool = False
    peers: tuple[int, ...] = ()


class Look:
    """A look being taken. What it has so far can be had as a snapshot at any time, also after an interruption."""

    def __init__(
        self,
        plan: Plan,
        program: PySpy | None,
        spins: Mapping[int, SpinSample],
        resting: Resting | None = None,
    ) -> None:
        self._plan = plan
        self._spins = spins
        self._resting = resting or Resting()
        self._at_rest: Mapping[int, Process] = {}
        """Processes that did not run since the last look, as they were seen then."""
        self._program = program
        self._clock = Clock(plan.look_s)
        self._cpu_clocks = SchedulerClock()
        self._began = time.monotonic()
        self.taken_at = time.time()
        self.processes: tuple[Process, ...] = ()
        self.gaps: list[Gap] = []
        self._tables: dict[int, ThreadTable] = {}
        self._stuck: set[int] = set()
        """Processes whose threads could not be read at the first try."""
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
        read = step_reader(self._plan.is_env_allowed)
        functions = (read, stack_sources.read_memory, self._read_table, self._find_locks, *FUNCTIONS)
        self._readers = Readers(functions, reader_count(), prepare=_remember)
        pids = [stat.pid for stat in stats]
        around = Surroundings(self._readers, pids, visible, use_gpu=self._plan.use_gpu)
        try:
            self._load = host.read_load()
            processes, gaps = ask_processes(self._readers, read, stats, known, self._clock.left())
            self.gaps.extend(gaps)
            self.processes, gaps = around.add_connections(processes)
            self.gaps.extend(gaps)
            self._at_rest = self._find_resting(known)
            self._read_threads_and_stacks(around)
            self._ask_ras(previous)
            self._take_surroundings(around)
        finally:
            around.end()
            self._readers.end()
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

    def _read_threads_and_stacks(self, around: Surroundings) -> None:
        """The readers go on while py-spy runs, unless it may stop the target: that is not what a look is to see."""
        living = [process for process in self.processes if _has_threads(process)]
        from_memory = stack_sources.ask_memory(
            self._readers,
            [process for process in living if process.pid not in self._at_rest],
            total_s=self._clock.left(),
        )
        tables = self._ask_tables(living, can_read_memory=True)
        locks = self._ask_locks(living) if self._plan.use_locks else ()
        around.ask_locks_and_logs(self.processes, self._plan.logs)
        if self._plan.allow_pause:
            self._take_threads(tables)
            found = self._dump_stacks(from_memory)
        else:
            try:
                found = self._dump_stacks(from_memory)
            finally:
                self._take_threads(tables)
        self._readers.dismiss()
        self.processes = inside.add_spins(self.processes, self._spins)
        self._take_stacks(found, locks)
        if self._plan.use_flight:
            self.processes, gaps = inside.add_flight(self.processes, self._clock.left())
            self.gaps.extend(gaps)

    def _take_threads(self, tables: Answers[_Wanted, ThreadTable]) -> None:
        """The thread tables; a process whose memory does not answer is asked again without reading it."""
        stuck = self._take_tables(tables)
        if stuck:
            again = [process for process in self.processes if process.pid in stuck]
            self._take_tables(self._ask_tables(again, can_read_memory=False))
        now = time.time()
        self.processes = tuple(
            replace(process, threads=self._tables[process.pid].threads, taken_at=now)
            if process.pid in self._tables
            else process
            for process in self.processes
        )

    def _ask_tables(
        self, processes: Sequence[Process], *, can_read_memory: bool
    ) -> Answers[_Wanted, ThreadTable]:
        wanted = [
            _Wanted(process.pid, process.sockets, process.ns_pid is not None, can_read_memory)
            for process in processes
        ]
        item_s = THREADS_S * patience()
        total_s = min(4 * item_s, self._clock.left())
        return self._readers.ask(
            self._read_table, wanted, item_s=item_s, total_s=total_s, belongs_to=lambda want: want.pid
        )

    def _read_table(self, want: _Wanted) -> ThreadTable:
        """In a reader, which keeps the table for :meth:`_find_locks`."""
        # At most a few pages a thread are read, so no budget: those of 10,000 threads are to have their words too.
        pages = Memory(want.pid, sys.maxsize) if want.can_read_memory else None
        table = read_threads(
            want.pid,
            lambda line, wchan: decode_syscall(
                want.pid,
                line,
                can_read_memory=want.can_read_memory,
                wchan=wchan,
                sockets=want.sockets,
                pages=pages,
            ),
            is_namespaced=want.is_namespaced,
            clock=self._cpu_clocks,
            pages=pages,
        )
        self._tables[want.pid] = table
        return table

    def _take_tables(self, tables: Answers[_Wanted, ThreadTable]) -> set[int]:
        """Stores the tables; returns the pids of those that did not come."""
        for want, table in tables:
            if isinstance(table, ThreadTable):
                self._tables[want.pid] = table
                self.gaps.extend(_missing_of(want.pid, table))
                continue
            self._stuck.add(want.pid)
            reason = f"reading its threads {table.reason}"
            remedy = f"As root, see where they are held: cat /proc/{want.pid}/task/*/stack"
            self.gaps.append(Gap("proc", f"pid {want.pid}", reason, remedy))
        return self._stuck

    def _ask_locks(self, processes: Sequence[Process]) -> Answers[_Wanted, dict[int, LockWait]]:
        pids = tuple(process.pid for process in self.processes)
        return self._readers.ask(
            self._find_locks,
            [_Wanted(process.pid, peers=pids) for process in processes],
            item_s=inside.LOCKS_S * patience(),
            total_s=min(self._clock.left(), inside.ALL_LOCKS_S * patience()),
            belongs_to=lambda want: want.pid,
            is_pointless=lambda stuck, later: isinstance(stuck, _Wanted) and stuck.pid == later.pid,
        )

    def _find_locks(self, want: _Wanted) -> dict[int, LockWait]:
        """In a reader; one that took over from another has no table of its own."""
        table = self._tables.get(want.pid) or self._read_table(want)
        return inside.find_locks(want.pid, table.threads, want.peers)

    def _dump_stacks(self, from_memory: Answers[stack_sources.Asked, stacks.Dump | None]) -> dumps.StackRun:
        return stack_sources.take_stacks(
            from_memory,
            [process for process in self.processes if process.pid not in self._at_rest],
            self._program,
            total_s=self._clock.left(),
            can_pause=self._plan.allow_pause,
        )

    def add_native(self, program: PySpy) -> Snapshot:
        """Replaces the stacks by ones with native frames, where they could be had."""
        self._take_stacks(dumps.dump_native(program, self.processes, total_s=2 * self._plan.look_s), ())
        return self.snapshot()

    def _take_stacks(
        self, found: dumps.StackRun, locks: Iterable[tuple[_Wanted, dict[int, LockWait] | Trouble]]
    ) -> None:
        """Process by process, in the time that the readers need for the locks of the next one."""
        self.gaps.extend(found.gaps)
        self._paused_s = max(self._paused_s, found.paused_s)
        processes = {process.pid: process for process in self.processes}
        merged: dict[int, Process] = {}
        try:
            for want, answer in locks:
                waits = self._take_locks(want.pid, answer)
                merged[want.pid] = self._merge(processes[want.pid], found, waits)
        finally:
            self.processes = tuple(
                merged.get(pid) or self._merge(process, found, {}) for pid, process in processes.items()
            )

    def _take_locks(self, pid: int, answer: dict[int, LockWait] | Trouble) -> Mapping[int, LockWait]:
        if isinstance(answer, Trouble):
            if pid not in self._stuck:
                self.gaps.append(inside.explain_no_locks(pid, answer))
            return {}
        return answer

    def _merge(self, process: Process, found: dumps.StackRun, locks: Mapping[int, LockWait]) -> Process:
        dump = found.dumps.get(process.pid)
        if dump is None:
            if process.pid in self._at_rest:
                process = take_over(process, self._at_rest[process.pid])
            return inside.add_locks(process, locks)
        table = self._tables.get(process.pid, ThreadTable(()))
        dump = _with_tids(process, dump, table)
        living = frozenset((*self._known_tids(process.pid), *list_tids(process.pid)))
        # py-spy speaks of threads as the target numbers them, our reader as the host does.
        inner_tids = {} if dump.method is Method.MEMORY else table.inner_tids
        process, gaps = stacks.attach(process, dump, inner_tids, living, locks)
        self.gaps.extend(gaps)
        return process

    def _known_tids(self, pid: int) -> list[int]:
        table = self._tables.get(pid)
        return [thread.tid for thread in table.threads if thread.tid is not None] if table else []

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


def _remember() -> None:
    """In a reader: ranks are alike, and every step begins with the same address space."""
    remember_regions()
    remember_images()
    remember_views()
    remember_holders()


def _start_of(pid: int) -> int | None:
    try:
        stat = read_stat(pid)
    except (OSError, ValueError):
        return None
    return None if stat is None else stat.start_ticks


def _has_threads(process: Process) -> bool:
    return process.state not in ("Z", "X") or (process.thread_count or 0) > 1


def _missing_of(pid: int, table: ThreadTable) -> list[Gap]:
    """What the kernel refused of its threads. Kernel stacks are missed only where a thread is held up in there."""
    gaps = []
    if not table.has_syscalls:
        denial = explain_denial(pid, is_attach=True)
        reason = f"not readable: its system calls and the owners of its locks ({denial.cause})"
        gaps.append(Gap("proc", f"pid {pid}", reason, denial.remedy))
    held = [thread.tid for thread in table.threads if thread.state == "D"]
    if held and not table.has_kernel_stacks:
        reason = f"not readable: where in the kernel thread {held[0]} is held up (for root only)"
        gaps.append(Gap("proc", f"pid {pid}", reason, f"sudo cat /proc/{pid}/task/{held[0]}/stack"))
    return gaps


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
