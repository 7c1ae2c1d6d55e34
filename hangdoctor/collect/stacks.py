"""From a dump (py-spy's JSON, or what our own readers found) to stacks on threads, and how far to trust them.

A non-blocking dump reads memory that goes on changing, so every stack is checked: it must end where stacks end, its
thread must exist, the main thread must be there. py-spy's ``active`` is one look at a letter and is not used.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hangdoctor.collect import memory
from hangdoctor.model import Frame, Gap, LockWait, Method, Process, Stack, Thread
from hangdoctor.model.records import changed

_ROOTS = frozenset(
    (
        "<module>",
        "_bootstrap",  # threading.Thread
        "_run_module_as_main",  # python -m
        "_shutdown",  # threading, when the interpreter ends
        "_exit_function",  # multiprocessing, the same
        "_python_exit",  # concurrent.futures, the same
    )
)
_PTHREAD_BYTES = 1024
"""struct pthread holds its tid at 720 (glibc 2.36, x86-64); scanned for, not assumed."""


@dataclass(frozen=True, slots=True)
class DumpedThread:
    """One thread as it was seen.

    ``tid`` is the target's own numbering, from our reader of memory the host's; py-spy has none before Python 3.11.
    """

    pthread: int
    tid: int | None
    name: str | None
    owns_gil: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Dump:
    """One reading of one process."""

    pid: int
    threads: tuple[DumpedThread, ...]
    method: Method
    taken_at: float
    """Unix time of the middle of the reading."""
    duration_s: float
    torn: frozenset[int] = frozenset()
    """Pthreads whose stack changed while it was read."""


class FrameTable:
    """Makes equal frames the same object: 60 threads of a rank share most of theirs."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, str, int, str | None], Frame] = {}
        self.by_text: dict[bytes, Frame] = {}
        """By the text that py-spy wrote."""

    def frame(self, name: str, file: str, line: int, module: str | None) -> Frame:
        key = (name, file, line, module)
        known = self._frames.get(key)
        if known is None:
            # Line 0 is unknown; py-spy gives native frames their library, and no Python frame ever.
            known = self._frames[key] = Frame(name, file, line or None, module, is_native=module is not None)
        return known


def parse_threads(data: bytes, table: FrameTable) -> tuple[DumpedThread, ...]:
    """``py-spy dump --json`` as it comes. Raises ``ValueError`` for anything else."""
    try:
        found = _parse_as_laid_out(data, table)
        return found or tuple(_parse_thread(item, table) for item in json.loads(data))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not what py-spy writes: {error!r}") from error


_FIRST_THREAD, _NEXT_THREAD, _LAST_END = b"[\n  {\n", b"\n  },\n  {\n", b"\n  }\n]"
_FRAMES, _FRAMES_END = b'    "frames": [\n', b"\n    ]"
_FIRST_FRAME, _NEXT_FRAME, _FRAME_END = b"      {\n", b"\n      },\n      {\n", b"\n      }"


def _parse_as_laid_out(data: bytes, table: FrameTable) -> tuple[DumpedThread, ...] | None:
    """The same, a fifth of the time: what is printed for equal frames is equal, and parsed once.

    (20,000 frames of 480 threads: 8 ms instead of 43.) Line breaks inside of strings are escaped in JSON, so a line
    is a line. ``None`` for another layout than serde's pretty one.
    """
    chunks = data.split(_NEXT_THREAD)
    last = chunks[-1].rstrip()
    if not data.startswith(_FIRST_THREAD) or not last.endswith(_LAST_END):
        return None
    chunks[-1] = last.removesuffix(_LAST_END)
    chunks[0] = chunks[0].removeprefix(_FIRST_THREAD)
    known, threads = table.by_text, []
    for chunk in chunks:
        head, marker, rest = chunk.partition(_FRAMES)
        body, end, tail = rest.rpartition(_FRAMES_END)
        if not marker or not end:
            return None
        item = json.loads(b"{" + head + _FRAMES + b"]" + tail + b"}")
        pieces = body.removeprefix(_FIRST_FRAME).removesuffix(_FRAME_END).split(_NEXT_FRAME)
        for piece in set(pieces).difference(known):
            frame = json.loads(b"{" + piece + b"}")
            known[piece] = table.frame(frame["name"], frame["filename"], frame["line"], frame["module"])
        threads.append(_make_thread(item, tuple([known[piece] for piece in pieces])))
    return tuple(threads)


def _parse_thread(item: Mapping[str, Any], table: FrameTable) -> DumpedThread:
    frames = (
        table.frame(frame["name"], frame["filename"], frame["line"], frame["module"])
        for frame in item["frames"]
    )
    return _make_thread(item, tuple(frames))


def _make_thread(item: Mapping[str, Any], frames: tuple[Frame, ...]) -> DumpedThread:
    return DumpedThread(
        pthread=int(item["thread_id"]),
        tid=item["os_thread_id"] or None,
        name=item["thread_name"],
        owns_gil=bool(item["owns_gil"]),
        frames=frames,
    )


def find_suspicious(threads: Sequence[DumpedThread]) -> frozenset[int]:
    """Pthreads whose stack does not end in a root: torn, or started from C.

    Threads without a name were not made by ``threading`` and may have any root, unless no thread has a name
    (one that is not UTF-8 takes all names away).
    """
    has_names = any(thread.name is not None for thread in threads)
    return frozenset(
        thread.pthread
        for thread in threads
        if thread.frames and (thread.name is not None or not has_names) and not is_rooted(thread.frames)
    )


def is_rooted(frames: Sequence[Frame]) -> bool:
    """Whether a stack ends where the stacks of Python's own threads end."""
    return frames[-1].function.rpartition(".")[2] in _ROOTS


def mark_torn(first: Dump, second: Dump | None) -> Dump:
    """The first dump with those suspicious stacks marked that a second dump does not repeat.

    A stack that is rooted in the second is taken from there.
    """
    suspicious = find_suspicious(first.threads)
    later = {thread.pthread: thread for thread in second.threads} if second else {}
    threads, torn = [], set()
    for thread in first.threads:
        again = later.get(thread.pthread)
        if thread.pthread in suspicious and (again is None or again.frames != thread.frames):
            if again is not None and again.frames and is_rooted(again.frames):
                thread = replace(thread, frames=again.frames)
            else:
                torn.add(thread.pthread)
        threads.append(thread)
    return replace(first, threads=tuple(threads), torn=frozenset(torn))


def find_tids(pid: int, pthreads: Sequence[int], tids: frozenset[int]) -> dict[int, int]:
    """Pthread to tid, both the target's own, where py-spy knows none (before Python 3.11).

    glibc keeps the tid in ``struct pthread``, which ``thread_id`` points at. The offset is the one at which the most
    threads hold the number of a living thread, each its own. Raises ``OSError`` when memory may not be read.
    """
    blocks = memory.gather(pid, [(pthread, _PTHREAD_BYTES) for pthread in pthreads])
    words = [struct.unpack(f"<{_PTHREAD_BYTES // 4}i", block) if block else () for block in blocks]
    best: dict[int, int] = {}
    for index in range(_PTHREAD_BYTES // 4):
        found = {
            pthread: numbers[index]
            for pthread, numbers in zip(pthreads, words, strict=True)
            if numbers and numbers[index] in tids
        }
        # The upper half of a pointer, 0x7f3c say, may be the number of one thread; it is then the same in all blocks.
        if len(found) > len(best) and len(set(found.values())) == len(found):
            best = found
    return best


def attach(
    process: Process,
    dump: Dump,
    inner_tids: Mapping[int, int],
    living: frozenset[int],
    locks: Mapping[int, LockWait] = MappingProxyType({}),
) -> tuple[Process, tuple[Gap, ...]]:
    """The process with the dump's stacks on its threads, and what the dump cannot have seen.

    ``inner_tids``: tid inside the target's PID namespace → ours, when they differ. ``living``: the tids that the
    process has or had during this look; threads of another process are left out. ``locks``: what threads wait for, by
    our tid, which is put on them on the way.
    """
    known = {thread.tid for thread in process.threads}
    found: dict[int | None, DumpedThread] = {}
    loose: list[Thread] = []
    for dumped in dump.threads:
        tid = inner_tids.get(dumped.tid, dumped.tid) if dumped.tid is not None else None
        if tid in known:
            found[tid] = dumped
        elif tid is None or tid in living:  # began after /proc was read, or its tid is unknown
            loose.append(_merge(Thread(tid=tid), dumped, dump))
    threads = [
        _merge(thread, found.get(thread.tid), dump, locks.get(thread.tid or 0)) for thread in process.threads
    ]
    gaps = _doubt(process, dump, inner_tids, living)
    return replace(process, threads=(*threads, *loose), taken_at=dump.taken_at), gaps


def _merge(thread: Thread, dumped: DumpedThread | None, dump: Dump, lock: LockWait | None = None) -> Thread:
    """All at once, for making threads anew is a third of what comes after reading."""
    if dumped is None:
        return thread if lock is None else changed(thread, lock=lock)
    stack = Stack(dumped.frames, dump.method, dumped.pthread in dump.torn) if dumped.frames else None
    return changed(thread, name=dumped.name, stack=stack, owns_gil=dumped.owns_gil, lock=lock or thread.lock)


def _doubt(
    process: Process, dump: Dump, inner_tids: Mapping[int, int], living: frozenset[int]
) -> tuple[Gap, ...]:
    """A sub-interpreter hides the threads of all others from py-spy (seen with 3.14), not from our own reader."""
    tids = {inner_tids.get(thread.tid, thread.tid) for thread in dump.threads if thread.tid is not None}
    main_ended = process.state in ("Z", "X")
    if not tids or process.pid in tids or main_ended:
        return ()
    if living.isdisjoint(tids):
        # Between vfork and exec a child runs in its parent's memory, threads and all.
        reason = "no stacks: it still runs in its parent's memory (vfork) and has not started its program"
        return (
            Gap("py-spy", f"pid {process.pid}", reason, f"cat /proc/{process.pid}/task/*/stack   # as root"),
        )
    is_ours = dump.method is Method.MEMORY
    why = "" if is_ours else ": a sub-interpreter hides the other threads"
    return (
        Gap(
            "stacks" if is_ours else "py-spy",
            f"pid {process.pid}",
            f"the main thread is missing from its stacks{why}",
            f"pystack remote --no-block {process.pid}",
        ),
    )
