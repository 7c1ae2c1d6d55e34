"""What lies around the processes: connections, pipes, GPUs, file locks, logs.

What needs pids only is begun when a look begins and asked for when it is needed, so that it costs no time on a
machine with cores to spare. Every answer has a deadline and costs a gap at worst.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hangdoctor.collect import filelocks, logs
from hangdoctor.collect.deadline import Pending, Trouble, call, each, patience
from hangdoctor.collect.files import read_files
from hangdoctor.collect.gpu import read_gpus
from hangdoctor.collect.sockets import PipeEnds, read_connections, read_pipe_ends
from hangdoctor.model import FileLock, Gap, Gpu, LogTail, OpenFile, Process, Socket

SOCKETS_S = 3.0
GPU_S = 3.0
GPU_GRACE_S = 2.0
"""For the GPU collector to end its own child and say which call did not return."""
LOGS_S = 1.0
LOCKS_S = 2.0

Gaps = tuple[Gap, ...]


class Surroundings:
    """Readings that were begun; :meth:`end` them in every case."""

    def __init__(self, pids: Sequence[int], visible: frozenset[int], *, use_gpu: bool) -> None:
        """``pids`` are the target's, ``visible`` those of all processes that existed before any helper of ours."""
        limit = SOCKETS_S * patience()
        self._visible = visible - {os.getpid()}
        self._sockets: Pending[dict[int, tuple[Socket, ...]]] = Pending(lambda: read_connections(pids), limit)
        self._pipes: Pending[dict[int, PipeEnds]] = Pending(lambda: read_pipe_ends(pids), limit)
        self._gpus = Pending(lambda: read_gpus(GPU_S, pids=pids), GPU_S + GPU_GRACE_S) if use_gpu else None

    def end(self) -> None:
        """Kills what still runs."""
        for pending in (self._sockets, self._pipes, self._gpus):
            if pending is not None:
                pending.end()

    def add_connections(self, processes: Sequence[Process]) -> tuple[tuple[Process, ...], Gaps]:
        """The processes with their sockets, and with the pids at the other end of their pipes."""
        sockets, pipes = self._sockets.result(), self._pipes.result()
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
        answer = self._gpus.result() if self._gpus is not None else ((), ())
        if isinstance(answer, Trouble):
            reason = f"reading the GPUs {answer.reason}: the driver may be wedged"
            return (), (Gap("gpu", "this machine", reason, "nvidia-smi; dmesg | grep -i xid"),)
        return answer


def read_locks(processes: Sequence[Process]) -> tuple[tuple[FileLock, ...], Gaps]:
    """File locks that the processes hold or wait for, and lock files of theirs."""
    kernel = call(lambda: filelocks.read_file_locks(processes), LOCKS_S)
    held = () if isinstance(kernel, Trouble) else kernel
    existing = call(lambda: filelocks.find_existence_locks(processes, held), LOCKS_S)
    gaps = tuple(
        Gap("locks", "the target", f"reading {what} {answer.reason}", "lslocks")
        for what, answer in (("/proc/locks", kernel), ("lock files", existing))
        if isinstance(answer, Trouble)
    )
    return (held if isinstance(existing, Trouble) else (*held, *existing)), gaps


def read_logs(processes: Sequence[Process], given: Sequence[str]) -> tuple[tuple[LogTail, ...], Gaps]:
    """The ends of the logs that the processes write, directly or through ``tee``, and of those ``given``."""
    sources = list(logs.find_logs(processes, given))
    readers = logs.piped_outputs(processes)
    members = {process.pid for process in processes}
    outside = [pid for pid in readers if pid not in members][: logs.MAX_LOGS]
    opened = {
        pid: files
        for pid, files in each(read_files, outside, item_s=LOGS_S, total_s=LOGS_S)
        if not isinstance(files, Trouble)
    }
    sources += logs.find_tee_logs(readers, opened)
    tails, gaps = [], []
    for source, tail in each(logs.read_tail, sources, item_s=LOGS_S, total_s=3 * LOGS_S):
        if isinstance(tail, Trouble):
            remedy = "Look at it yourself, or give another file with --log FILE"
            gaps.append(Gap("log", source.name, f"not read: {tail.reason}", remedy))
        else:
            tails.append(tail)
    none = None if sources else logs.no_log_gap(processes)
    return tuple(tails), (*gaps, *((none,) if none else ()))
