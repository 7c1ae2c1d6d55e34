"""Who reads whose stacks: our own reader; CPython's own module, for the version that we run on; py-spy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hangdoctor.collect import dumps, own_stacks, remote_debugging
from hangdoctor.collect.deadline import Trouble, patience
from hangdoctor.collect.denials import explain_denial
from hangdoctor.collect.dumps import StackRun
from hangdoctor.collect.processes import is_denial
from hangdoctor.collect.pyspy import PySpy, is_python
from hangdoctor.collect.readers import Answers, Readers
from hangdoctor.collect.stacks import Dump
from hangdoctor.model import Gap, Method, Process

_UNKNOWN = "no stacks: hangdoctor's own reader knows CPython 3.10 to 3.14 with a GIL, and found none at work"
_INSTALL = "pip install 'py-spy>=0.4.1'"


@dataclass(frozen=True, slots=True)
class Asked:
    """A process whose memory is read for its stacks. ``is_same_version``: as that of our own interpreter."""

    pid: int
    is_same_version: bool


def read_memory(asked: Asked) -> Dump | None:
    """In a reader. ``None`` without an interpreter that is known. Raises ``OSError`` when memory may not be read."""
    dump = own_stacks.read_stacks(asked.pid)
    if asked.is_same_version and (dump is None or dump.torn):
        with contextlib.suppress(remote_debugging.Unreadable):
            other = remote_debugging.read_stacks(asked.pid)
            if dump is None or len(other.torn) < len(dump.torn):
                return other
    return dump


def ask_memory(
    readers: Readers, processes: Iterable[Process], *, total_s: float
) -> Answers[Asked, Dump | None]:
    """Begins to read the stacks of the Python processes among ``processes``; ``total_s`` is the most all may take."""
    has_module = remote_debugging.is_here()
    asked = [process for process in processes if is_python(process)]
    most_threads = max((process.thread_count or 1 for process in asked), default=1)
    limit_s = (own_stacks.PROCESS_S + own_stacks.PER_THREAD_S * most_threads) * patience()
    return readers.ask(
        read_memory,
        [Asked(process.pid, has_module and remote_debugging.is_same_version(process)) for process in asked],
        item_s=limit_s,
        total_s=total_s,
        belongs_to=lambda asked: asked.pid,
    )


class Sources:
    """The stacks that memory gave, as far as they can be believed, and those of all others by py-spy.

    What neither can read well keeps what memory gave, with the torn stacks marked.
    """

    def __init__(self, processes: Sequence[Process], program: PySpy | None) -> None:
        self._left = {process.pid: process for process in processes}
        self._program = program
        self.doubtful: dict[int, Dump] = {}
        """Better than nothing."""
        self._troubles: dict[int, Trouble | None] = {}

    def take(self, pid: int, answer: Dump | Trouble | None) -> Dump | None:
        """A dump that can be believed; ``None``: py-spy is to read this process."""
        if not isinstance(answer, Dump):
            self._troubles[pid] = answer
        elif answer.torn or not _has_main_thread(self._left[pid], answer):
            self.doubtful[pid] = answer
        else:
            del self._left[pid]
            return answer
        return None

    def finish(self, *, total_s: float, can_pause: bool) -> StackRun:
        """Of all processes whose dump could not be believed, or was not taken."""
        if self._program is None:
            troubles = self._troubles.items()
            run = StackRun(gaps=[gap for pid, why in troubles if (gap := _explain(self._left[pid], why))])
        else:
            left = list(self._left.values())
            run = dumps.dump_stacks(self._program, left, total_s=total_s, can_pause=can_pause)
            run.gaps = _amend(run.gaps, self.doubtful.keys() - run.dumps.keys())
        run.dumps = {**self.doubtful, **run.dumps}
        return run


def _has_main_thread(process: Process, dump: Dump) -> bool:
    # CPython's module numbers threads as the target does, our reader as the host does.
    main_tid = process.pid if dump.method is Method.MEMORY else process.ns_pid or process.pid
    return process.state in ("Z", "X") or any(thread.tid == main_tid for thread in dump.threads)


def _amend(gaps: Sequence[Gap], only_ours: Iterable[int]) -> list[Gap]:
    """py-spy's gaps, where its failure cost no more than a second opinion."""
    subjects = {f"pid {pid}" for pid in only_ours}
    return [
        replace(gap, reason=gap.reason.replace("no stacks", "no stacks by py-spy, only by our own reader"))
        if gap.subject in subjects
        else gap
        for gap in gaps
    ]


def _explain(process: Process, trouble: Trouble | None) -> Gap | None:
    """Why there are none, without py-spy. ``None``: it may be no Python at all."""
    subject = f"pid {process.pid}"
    if trouble is None:
        return Gap("stacks", subject, _UNKNOWN, _INSTALL) if "python" in process.versions else None
    if not is_denial(trouble.reason):
        return Gap("stacks", subject, f"no stacks: reading its memory {trouble.reason}")
    denial = explain_denial(process.pid, is_attach=True)
    return Gap("stacks", subject, f"no stacks: its memory may not be read ({denial.cause})", denial.remedy)
