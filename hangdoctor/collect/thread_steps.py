"""What the threads of a job are doing: stacks, tables and locks, process by process, each merged as it comes in."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hangdoctor.collect import inside, stack_sources, stacks
from hangdoctor.collect.deadline import Clock, Trouble, call, patience
from hangdoctor.collect.denials import explain_denial
from hangdoctor.collect.plan import Plan
from hangdoctor.collect.procfs import list_tids
from hangdoctor.collect.pyspy import PySpy
from hangdoctor.collect.readers import NOT_TRIED, Answers, Readers
from hangdoctor.collect.resting import take_over
from hangdoctor.collect.thread_reader import ThreadReader, Wanted
from hangdoctor.collect.threads import ThreadTable
from hangdoctor.model import Gap, LockWait, Method, Process, SpinSample

THREADS_S = 1.0
AGAIN_S = 4.0
ALL_S = 12.0
"""Of the first try at all processes, which are read in turn: the clocks of all three questions start with the first."""


class ThreadSteps:
    """Those of one look. ``processes`` and ``gaps`` are what is known so far, also after an interruption."""

    def __init__(
        self, reader: ThreadReader, plan: Plan, program: PySpy | None, spins: Mapping[int, SpinSample]
    ) -> None:
        """``reader`` is one whose functions the readers know that :meth:`ask` is given."""
        self._reader = reader
        self._plan = plan
        self._program = program
        self._spins = spins
        self._tables: dict[int, ThreadTable] = {}
        self._read_at: dict[int, float] = {}
        self._dumps: dict[int, stacks.Dump] = {}
        self._locks: dict[int, Mapping[int, LockWait]] = {}
        self._stuck: set[int] = set()
        """Processes whose threads could not be read at the first try."""
        self._merged: dict[int, Process] = {}
        self.processes: tuple[Process, ...] = ()
        self.gaps: list[Gap] = []
        self.paused_s = 0.0

    def ask(
        self, readers: Readers, processes: Sequence[Process], at_rest: Mapping[int, Process], clock: Clock
    ) -> None:
        """Begins to read. ``at_rest``: processes that did not run since they were seen so."""
        self.processes, self._at_rest = tuple(processes), at_rest
        self._readers, self._clock = readers, clock
        self._living = [process for process in processes if _has_threads(process)]
        moving = [process for process in processes if process.pid not in at_rest]
        self._sources = stack_sources.Sources(moving, self._program)
        total_s = min(clock.left(), ALL_S * patience())
        with readers.by_owner():
            alive = filter(_has_threads, moving)
            from_memory = stack_sources.ask_memory(readers, alive, total_s=total_s)
            tables = self._ask_tables(self._living, total_s, can_read_memory=True)
            locks = self._ask_locks(self._living, total_s) if self._plan.use_locks else Answers(())
        self._from_memory = from_memory.by(lambda asked: asked.pid)
        self._from_tables = tables.by(lambda want: want.pid)
        self._from_locks = locks.by(lambda want: want.pid)

    def take(self) -> None:
        """Everything that was asked for; then py-spy reads the stacks that memory did not give.

        Only then, for it may have to stop a process, and that is not what a look is to see.
        """
        try:
            for process in self._living:
                self._take_in_turn(process)
            again = [process for process in self._living if process.pid in self._stuck]
            total_s = min(self._clock.left(), AGAIN_S * patience())
            for want, table in self._ask_tables(again, total_s, can_read_memory=False):
                self._take_table(want.pid, table)
            self._dump_the_rest()
        finally:
            for process in self._living:  # after an interruption: the readers are at work on them
                if process.pid not in self._tables and process.pid not in self._stuck:
                    self._take_stacks_and_table(process.pid)
            self.processes = tuple(
                self._merged.get(process.pid) or self._merge(process) for process in self.processes
            )

    def _take_in_turn(self, process: Process) -> None:
        pid = process.pid
        self._take_stacks_and_table(pid)
        if pid in self._from_locks:
            self._take_locks(pid, self._from_locks[pid]())
        if pid in self._tables and (pid in self._dumps or pid in self._at_rest):
            self._merged[pid] = self._merge(process)

    def _take_stacks_and_table(self, pid: int) -> None:
        dump = self._sources.take(pid, self._from_memory[pid]()) if pid in self._from_memory else None
        if dump is not None:
            self._dumps[pid] = dump
        self._take_table(pid, self._from_tables[pid]())

    def _dump_the_rest(self) -> None:
        run = self._sources.finish(total_s=self._clock.left(), can_pause=self._plan.allow_pause)
        self.gaps.extend(run.gaps)
        self.paused_s = run.paused_s
        self._dumps.update(run.dumps)

    def _ask_tables(
        self, processes: Sequence[Process], total_s: float, *, can_read_memory: bool
    ) -> Answers[Wanted, ThreadTable]:
        wanted = [
            Wanted(process.pid, process.sockets, process.ns_pid is not None, can_read_memory)
            for process in processes
        ]
        return self._readers.ask(
            self._reader.read_table,
            wanted,
            item_s=THREADS_S * patience(),
            total_s=total_s,
            belongs_to=lambda want: want.pid,
            is_pointless=_is_of_same_process,
        )

    def _take_table(self, pid: int, table: ThreadTable | Trouble) -> None:
        if isinstance(table, ThreadTable):
            self._tables[pid], self._read_at[pid] = table, time.time()
            self.gaps.extend(_missing_of(pid, table))
            return
        self._stuck.add(pid)
        reason = f"reading its threads {table.reason}"
        if table.reason == NOT_TRIED:
            reason = (
                "what its system calls point to, and its locks, were not read: its memory does not answer"
            )
        remedy = f"As root, see where they are held: cat /proc/{pid}/task/*/stack"
        self.gaps.append(Gap("proc", f"pid {pid}", reason, remedy))

    def _ask_locks(
        self, processes: Sequence[Process], total_s: float
    ) -> Answers[Wanted, dict[int, LockWait]]:
        pids = tuple(process.pid for process in self.processes)
        return self._readers.ask(
            self._reader.find_locks,
            [Wanted(process.pid, peers=pids) for process in processes],
            item_s=inside.LOCKS_S * patience(),
            total_s=total_s,
            belongs_to=lambda want: want.pid,
            is_pointless=_is_of_same_process,
        )

    def _take_locks(self, pid: int, answer: dict[int, LockWait] | Trouble) -> None:
        if not isinstance(answer, Trouble):
            self._locks[pid] = answer
        elif pid not in self._stuck:
            self.gaps.append(inside.explain_no_locks(pid, answer))

    def _merge(self, process: Process) -> Process:
        """The process with what is known of its threads."""
        table = self._tables.get(process.pid)
        if table is not None:
            process = replace(process, threads=table.threads, taken_at=self._read_at[process.pid])
        process = inside.add_spins(process, self._spins)
        locks = self._locks.get(process.pid, {})
        dump = self._dumps.get(process.pid) or self._sources.doubtful.get(process.pid)
        if dump is not None:
            return self._attach(process, dump, locks)
        if process.pid in self._at_rest:
            process = take_over(process, self._at_rest[process.pid])
        return inside.add_locks(process, locks)

    def _attach(self, process: Process, dump: stacks.Dump, locks: Mapping[int, LockWait]) -> Process:
        table = self._tables.get(process.pid, ThreadTable(()))
        dump = _with_tids(process, dump, table)
        known = [thread.tid for thread in table.threads if thread.tid is not None]
        living = frozenset((*known, *list_tids(process.pid)))
        # py-spy speaks of threads as the target numbers them, our reader as the host does.
        inner_tids = {} if dump.method is Method.MEMORY else table.inner_tids
        process, gaps = stacks.attach(process, dump, inner_tids, living, locks)
        self.gaps.extend(gaps)
        return process

    def attach(
        self, processes: Iterable[Process], dumped: Mapping[int, stacks.Dump]
    ) -> tuple[tuple[Process, ...], tuple[Gap, ...]]:
        """The processes with other stacks, where there are any."""
        self.gaps = []
        merged = tuple(
            self._attach(process, dumped[process.pid], {}) if process.pid in dumped else process
            for process in processes
        )
        return merged, tuple(self.gaps)


def _is_of_same_process(stuck: object, later: Wanted) -> bool:
    """What held up the one would hold up the other: they need the same lock of its address space."""
    return isinstance(stuck, (Wanted, stack_sources.Asked)) and stuck.pid == later.pid


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
