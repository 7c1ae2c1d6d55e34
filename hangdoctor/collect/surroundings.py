"""What lies around the processes: connections, pipes, GPUs, file locks, logs.

All of it is asked of the look's readers as early as it can be asked and waited for when it is needed, so that it
costs no time on a machine with cores to spare. Every answer has a deadline and costs a gap at worst.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from hangdoctor.collect import filelocks, logs
from hangdoctor.collect.deadline import Pending, Trouble, patience
from hangdoctor.collect.files import read_files
from hangdoctor.collect.gpu import has_driver, read_gpus
from hangdoctor.collect.readers import Answers, Readers
from hangdoctor.collect.sockets import PipeEnds, read_connections, read_pipe_ends
from hangdoctor.model import FileLock, Gap, Gpu, LogTail, OpenFile, Process, Socket

SOCKETS_S = 3.0
GPU_S = 3.0
GPU_GRACE_S = 2.0
"""For the GPU collector to end its own child and say which call did not return."""
LOGS_S = 1.0
LOCKS_S = 2.0

Gaps = tuple[Gap, ...]
Item = TypeVar("Item")
T = TypeVar("T")


GpuAnswer = tuple[tuple[Gpu, ...], Gaps]


def _connections(pids: tuple[int, ...]) -> dict[int, tuple[Socket, ...]]:
    return read_connections(pids)


def _pipe_ends(pids: tuple[int, ...]) -> dict[int, PipeEnds]:
    return read_pipe_ends(pids)


def _gpus(pids: tuple[int, ...]) -> GpuAnswer:
    return read_gpus(GPU_S, pids=pids)


def _kernel_locks(processes: tuple[Process, ...]) -> tuple[FileLock, ...]:
    return filelocks.read_file_locks(processes)


def _existence_locks(processes: tuple[Process, ...]) -> tuple[FileLock, ...]:
    return filelocks.find_existence_locks(processes, filelocks.read_file_locks(processes))


def _tail(source: logs.LogSource) -> LogTail:
    return logs.read_tail(source)


def _open_files(pid: int) -> tuple[OpenFile, ...]:
    return read_files(pid)


FUNCTIONS = (_connections, _pipe_ends, _gpus, _kernel_locks, _existence_locks, _tail, _open_files)
"""What the readers must know. By name, so that they are looked up in the child."""


class Surroundings:
    """Readings that were asked for; :meth:`end` them in every case."""

    def __init__(
        self, readers: Readers, pids: Sequence[int], visible: frozenset[int], *, use_gpu: bool
    ) -> None:
        """``pids`` are the target's, ``visible`` those of all processes that existed before any helper of ours."""
        limit = SOCKETS_S * patience()
        all_pids = tuple(pids)
        self._readers = readers
        self._visible = visible - {os.getpid()}
        self._sockets = _ask(readers, _connections, all_pids, limit)
        self._pipes = _ask(readers, _pipe_ends, all_pids, limit)
        self._driver: Pending[GpuAnswer] | None = None
        self._gpus: Answers[tuple[int, ...], GpuAnswer] | None = None
        if use_gpu and has_driver():
            # A driver takes its time, and everything behind it in the same reader would wait.
            self._driver = Pending(lambda: _gpus(all_pids), GPU_S + GPU_GRACE_S)
        elif use_gpu:
            self._gpus = _ask(readers, _gpus, all_pids, GPU_S + GPU_GRACE_S)
        self._locks: tuple[Answers[tuple[Process, ...], tuple[FileLock, ...]], ...] = ()
        self._tails: Answers[logs.LogSource, LogTail] | None = None
        self._no_log: Gap | None = None
        self._outputs: Mapping[int, tuple[int, ...]] = {}
        """Who reads what which processes print."""
        self._opened: Answers[int, tuple[OpenFile, ...]] = Answers(())

    def end(self) -> None:
        """Kills what still runs and does not belong to the readers."""
        if self._driver is not None:
            self._driver.end()

    def add_connections(self, processes: Sequence[Process]) -> tuple[tuple[Process, ...], Gaps]:
        """The processes with their sockets, and with the pids at the other end of their pipes."""
        sockets, pipes = _only(self._sockets), _only(self._pipes)
        gaps = []
        if isinstance(sockets, Trouble):
            gaps.append(Gap("sockets", "the target", f"reading its sockets {sockets.reason}", "ss -tnp"))
            sockets = {}
        if isinstance(pipes, Trouble):
            gaps.append(Gap("pipes", "the target", f"finding the other ends {pipes.reason}", "lsof -E"))
            pipes = {}
        found = tuple(
            replace(
                process, sockets=sockets.get(process.pid, ()), files=self._with_ends(process.files, pipes)
            )
            for process in processes
        )
        return found, tuple(gaps)

    def _with_ends(self, files: Sequence[OpenFile], pipes: Mapping[int, PipeEnds]) -> tuple[OpenFile, ...]:
        """Without ourselves: a helper forked from a process that holds a pipe, a test or demo, holds it too."""
        found = []
        for file in files:
            ends = pipes.get(file.inode) if file.kind == "pipe" and file.inode is not None else None
            if ends is not None:
                pids = ends.writers if file.access == "r" else ends.readers
                file = replace(file, other_end=tuple(pid for pid in pids if pid in self._visible))
            found.append(file)
        return tuple(found)

    def take_gpus(self) -> tuple[tuple[Gpu, ...], Gaps]:
        """The GPUs, if they were asked for."""
        answer: GpuAnswer | Trouble = ((), ())
        if self._driver is not None:
            answer = self._driver.result()
        elif self._gpus is not None:
            answer = _only(self._gpus)
        if isinstance(answer, Trouble):
            reason = f"reading the GPUs {answer.reason}: the driver may be wedged"
            return (), (Gap("gpu", "this machine", reason, "nvidia-smi; dmesg | grep -i xid"),)
        return answer

    def ask_outputs(self, processes: Sequence[Process]) -> None:
        """What has those who read the output of ``processes`` open: a ``tee`` writes it to a log.

        The answer is waited for in :meth:`ask_locks_and_logs`; to be asked before anything that takes long.
        """
        self._outputs = logs.piped_outputs(processes)
        members = {process.pid for process in processes}
        outside = [pid for pid in self._outputs if pid not in members][: logs.MAX_LOGS]
        self._opened = self._readers.ask(
            _open_files, outside, item_s=LOGS_S, total_s=LOGS_S, belongs_to=lambda pid: pid
        )

    def ask_locks_and_logs(self, processes: tuple[Process, ...], given_logs: Sequence[str]) -> None:
        """File locks and logs are found through the files that ``processes`` have open; threads are not needed."""
        self._locks = tuple(
            _ask(self._readers, function, processes, LOCKS_S)
            for function in (_kernel_locks, _existence_locks)
        )
        sources = self._find_logs(processes, given_logs)
        self._no_log = None if sources else logs.no_log_gap(processes)
        self._tails = self._readers.ask(
            _tail, sources, item_s=LOGS_S, total_s=3 * LOGS_S, belongs_to=lambda source: source.path
        )

    def _find_logs(self, processes: Sequence[Process], given: Sequence[str]) -> list[logs.LogSource]:
        """Those that the processes write, directly or through ``tee``, and those ``given``."""
        files = {pid: found for pid, found in self._opened if not isinstance(found, Trouble)}
        return [*logs.find_logs(processes, given), *logs.find_tee_logs(self._outputs, files)]

    def take_locks(self) -> tuple[tuple[FileLock, ...], Gaps]:
        """File locks that the processes hold or wait for, and lock files of theirs."""
        found: list[FileLock] = []
        gaps = []
        for what, asked in zip(("/proc/locks", "lock files"), self._locks, strict=False):
            answer = _only(asked)
            if isinstance(answer, Trouble):
                gaps.append(Gap("locks", "the target", f"reading {what} {answer.reason}", "lslocks"))
            else:
                found.extend(answer)
        return tuple(found), tuple(gaps)

    def take_logs(self) -> tuple[tuple[LogTail, ...], Gaps]:
        """The ends of the logs."""
        tails, gaps = [], []
        for source, tail in self._tails or ():
            if isinstance(tail, Trouble):
                remedy = "Look at it yourself, or give another file with --log FILE"
                gaps.append(Gap("log", source.name, f"not read: {tail.reason}", remedy))
            else:
                tails.append(tail)
        return tuple(tails), (*gaps, *((self._no_log,) if self._no_log else ()))


def _ask(readers: Readers, function: Callable[[Item], T], item: Item, limit_s: float) -> Answers[Item, T]:
    """One question that belongs to no process."""
    return readers.ask(
        function, (item,), item_s=limit_s, total_s=limit_s, belongs_to=lambda _: function.__name__
    )


def _only(answers: Answers[Item, T]) -> T | Trouble:
    ((_, answer),) = answers
    return answer
