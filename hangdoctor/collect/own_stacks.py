"""Python stacks without py-spy: from the interpreter's own structures in the target's memory, read and never stopped.

The second choice, for a machine or container without py-spy, or where a seccomp profile forbids its system call and
not ``/proc/PID/mem``. It knows CPython 3.10 to 3.14 (:mod:`hangdoctor.collect.cpython.layouts`) and no native frames.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from hangdoctor.collect.cpython.attributes import read_attributes
from hangdoctor.collect.cpython.frames import Frame, FrameReader
from hangdoctor.collect.cpython.interpreter import Interpreter, find_interpreter
from hangdoctor.collect.deadline import Trouble, each, patience, reader_count
from hangdoctor.collect.denials import explain_denial
from hangdoctor.collect.dumps import StackRun
from hangdoctor.collect.memory import Memory, read_regions
from hangdoctor.collect.namespaces import map_threads
from hangdoctor.collect.processes import is_denial
from hangdoctor.collect.pyspy import is_python
from hangdoctor.collect.stacks import Dump, DumpedThread, FrameTable
from hangdoctor.model import Gap, Method, Process

BUDGET_BYTES = 32 << 20
PROCESS_S = 1.0
_TRIES = 3
"""Pairs of looks until one shows the same twice; what runs through small calls never does."""
_NAME_INDEX = 1
"""``Thread.__init__`` sets ``_target`` and then ``_name`` (Lib/threading.py of 3.10 to 3.14)."""
_TYPE = 8


def read_stacks_of(processes: Sequence[Process], *, total_s: float) -> StackRun:
    """Stacks of the Python processes among ``processes``, and why some have none."""
    outcome = StackRun()
    asked = [process.pid for process in processes if is_python(process) and process.state not in ("X", "Z")]
    answers = each(
        read_stacks,
        asked,
        item_s=PROCESS_S * patience(),
        total_s=min(total_s, 4 * PROCESS_S * patience()),
        width=reader_count(),
    )
    for pid, answer in answers:
        if isinstance(answer, Trouble):
            outcome.gaps.append(_explain(pid, answer))
        elif answer is not None:
            outcome.dumps[pid] = answer
    return outcome


def amend(gaps: Sequence[Gap], own: StackRun) -> list[Gap]:
    """py-spy's gaps, where its failure cost no more than its native frames and retries."""
    subjects = {f"pid {pid}" for pid in own.dumps}
    return [
        replace(gap, reason=gap.reason.replace("no stacks", "no stacks by py-spy, only by our own reader"))
        if gap.subject in subjects
        else gap
        for gap in gaps
    ]


def _explain(pid: int, trouble: Trouble) -> Gap:
    if not is_denial(trouble.reason):
        return Gap("stacks", f"pid {pid}", f"no stacks: reading its memory {trouble.reason}")
    denial = explain_denial(pid, is_attach=True)
    return Gap(
        "stacks", f"pid {pid}", f"no stacks: its memory may not be read ({denial.cause})", denial.remedy
    )


def read_stacks(pid: int) -> Dump | None:
    """All Python threads of a process, with the host's tids; ``None`` without an interpreter that is known.

    Every stack is read until two looks agree; one that never does is marked as torn. Raises ``OSError`` when memory may
    not be read.
    """
    began, started_at = time.monotonic(), time.time()
    inner_tids = map_threads(pid)
    regions = read_regions(pid)
    interpreter = find_interpreter(Memory(pid, BUDGET_BYTES), regions, inner_tids)
    if interpreter is None or not interpreter.threads:
        return None
    first, torn = _read_all(interpreter, pid), frozenset[int]()
    for _ in range(_TRIES):
        second = _read_all(interpreter, pid)
        again = {thread.pthread: thread.frames for thread in second}
        torn = frozenset(t.pthread for t in first if t.frames != again.get(t.pthread))
        if not torn:
            break
        first = second or first
    duration_s = time.monotonic() - began
    return Dump(pid, tuple(first), Method.MEMORY, started_at + duration_s / 2, duration_s, torn)


def _read_all(interpreter: Interpreter, pid: int) -> list[DumpedThread]:
    """With memory of its own: what was read for the last look is not used again."""
    memory = Memory(pid, BUDGET_BYTES)
    reader, table = FrameReader(interpreter, memory), FrameTable()
    holder = interpreter.gil_holder()
    threads = []
    for state in interpreter.threads:
        frames = list(reader.walk(state))
        places = [reader.place_of(frame) for frame in frames]
        name = "MainThread" if state.tid == pid else _read_name(interpreter, memory, reader, frames)
        threads.append(
            DumpedThread(
                pthread=state.ident or state.address,
                tid=state.tid,
                name=name,
                owns_gil=state.tid == holder,
                frames=tuple(table.frame(p.function, p.file, p.line or 0, None) for p in places),
            )
        )
    return threads


def _read_name(
    interpreter: Interpreter, memory: Memory, reader: FrameReader, frames: Sequence[Frame]
) -> str | None:
    """The name of a ``threading.Thread``, from the ``self`` of its outermost frame."""
    outermost = frames[-1] if frames else None
    if outermost is None or reader.name_of(outermost)[0] != "_bootstrap":
        return None
    instance = next(iter(reader.slot_values(outermost)), 0)
    values = read_attributes(interpreter, memory, instance) if instance else ()
    try:
        if len(values) <= _NAME_INDEX or not _is_text(interpreter, memory, outermost, values[_NAME_INDEX]):
            return None
        return reader.text(values[_NAME_INDEX]) or None
    except OSError:
        return None


def _is_text(interpreter: Interpreter, memory: Memory, frame: Frame, address: int) -> bool:
    """Whether an object has the same type as the name of a function, which is a ``str``."""
    layout = interpreter.layout.frame or interpreter.layout.old_frame
    if layout is None:
        return False
    return memory.u64(address + _TYPE) == memory.u64(memory.u64(frame.code + layout.name) + _TYPE)
