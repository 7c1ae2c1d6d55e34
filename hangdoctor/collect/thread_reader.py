"""What a reader is asked about the threads of a process: their tables, then the locks that they wait for."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from hangdoctor.collect import inside
from hangdoctor.collect.memory import Memory
from hangdoctor.collect.schedclock import ClockBoard, SchedulerClock
from hangdoctor.collect.syscalls import decode_syscall
from hangdoctor.collect.threads import ThreadTable, read_threads
from hangdoctor.model import LockWait, Socket


@dataclass(frozen=True, slots=True)
class Wanted:
    """A process whose threads, or the locks they wait for, are asked for."""

    pid: int
    sockets: tuple[Socket, ...] = ()
    is_namespaced: bool = False
    can_read_memory: bool = False
    peers: tuple[int, ...] = ()


class ThreadReader:
    """Every child has its own, and keeps tables for the locks that are asked for next. They share the clocks of CPUs.

    :meth:`renew` it before every look.
    """

    def __init__(self) -> None:
        self._tables: dict[int, ThreadTable] = {}
        self._board = ClockBoard()
        self._clock: SchedulerClock | None = None

    def renew(self) -> None:
        """Another look begins."""
        self._tables.clear()
        self._clock = SchedulerClock(self._board)

    def read_table(self, want: Wanted) -> ThreadTable:
        """The threads of a process. Raises ``OSError``."""
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
            clock=self._clock,
            pages=pages,
        )
        self._tables[want.pid] = table
        return table

    def find_locks(self, want: Wanted) -> dict[int, LockWait]:
        """Host tid to lock. A child that took over from another has no table of its own. Raises ``OSError``."""
        table = self._tables.get(want.pid) or self.read_table(want)
        return inside.find_locks(want.pid, table.threads, want.peers)
