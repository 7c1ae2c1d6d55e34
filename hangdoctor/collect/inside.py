"""What the target's own memory adds: lock owners, collectives, spins. Read without a stop, each behind a deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoctor.collect import elf
from hangdoctor.collect.deadline import Clock, Trouble, call, patience
from hangdoctor.collect.denials import explain_denial
from hangdoctor.collect.flight import read_flight
from hangdoctor.collect.locks import find_lock_waits
from hangdoctor.collect.memory import ensure_readable
from hangdoctor.collect.processes import is_denial
from hangdoctor.collect.pyspy import is_python
from hangdoctor.collect.readers import Readers
from hangdoctor.collect.spin import MAX_THREADS, sample_spin
from hangdoctor.model import FlightEntry, Gap, LockWait, Process, Snapshot, SpinSample, Thread

LOCKS_S = 1.0
FLIGHT_S = 3.0
"""The first rank waits for a search through torch's libraries: 0.1 s a library on a warm cache."""
ALL_FLIGHTS_S = 8.0
SPIN_S = 1.0
_SHORTEST_SPIN_S = 0.3
_HOT_S = 0.02


def find_locks(pid: int, threads: Sequence[Thread], peers: Sequence[int]) -> dict[int, LockWait]:
    """Tid to lock of the threads that wait for one. Behind a deadline. Raises ``OSError`` when memory may not be read.

    ``peers`` are the processes of the job, which may hold a shared lock.
    """
    if not _wait_for_locks(threads):
        return {}
    found = find_lock_waits(pid, threads, peers=peers)
    if not found:
        ensure_readable(pid)
    return found


def explain_no_locks(pid: int, trouble: Trouble) -> Gap:
    """Why :func:`find_locks` has no answer, and what to do."""
    if is_denial(trouble.reason):
        denial = explain_denial(pid, is_attach=True)
        return Gap("locks", f"pid {pid}", f"lock owners may not be read ({denial.cause})", denial.remedy)
    reason = f"looking for the owners of its locks {trouble.reason}"
    remedy = f"gdb -p {pid} -batch -ex 'thread apply all bt'   (stops it for seconds)"
    return Gap("locks", f"pid {pid}", reason, remedy)


def _wait_for_locks(threads: Sequence[Thread]) -> bool:
    return any(thread.syscall is not None and thread.syscall.name.startswith("futex") for thread in threads)


def add_locks(process: Process, locks: Mapping[int, LockWait]) -> Process:
    """The process with the lock on every thread that waits for one."""
    if not locks:
        return process
    return _with_threads(
        process, lambda thread, tid: replace(thread, lock=locks[tid]) if tid in locks else thread
    )


def _with_threads(process: Process, change: Callable[[Thread, int], Thread]) -> Process:
    threads = tuple(
        thread if thread.tid is None else change(thread, thread.tid) for thread in process.threads
    )
    return replace(process, threads=threads)


@dataclass(frozen=True, slots=True)
class _Recorder:
    """A process whose Flight Recorder is read, and what is known of files already; or what is known since."""

    pid: int
    symtabs: elf.Symtabs
    answer: tuple[FlightEntry, ...] | Gap | None = None


def read_recorder(asked: _Recorder) -> _Recorder:
    """In a reader."""
    elf.learn_symtabs(asked.symtabs)
    answer = read_flight(asked.pid)
    return _Recorder(asked.pid, elf.known_symtabs(), answer)


def add_flight(
    readers: Readers, processes: Sequence[Process], limit_s: float
) -> tuple[tuple[Process, ...], tuple[Gap, ...]]:
    """The processes with the newest and pending entries of torch's Flight Recorder, and why some have none.

    ``readers`` know :func:`read_recorder`.
    """
    asked = [process.pid for process in processes if is_python(process) and _has_process_group(process)]
    total = Clock(min(limit_s, ALL_FLIGHTS_S * patience()))
    # Whoever is first searches torch's files, and the others are told: ranks load the same.
    batches = (asked,) if elf.known_symtabs() else (asked[:1], asked[1:])
    found: dict[int, tuple[FlightEntry, ...]] = {}
    gaps = []
    for pids in batches:
        for pid, answer in _ask_flights(readers, pids, total.left()):
            if isinstance(answer, Trouble):
                remedy = "start the server with TORCH_NCCL_DUMP_ON_TIMEOUT=1, and give its dump to `hangdoctor analyze`"
                gaps.append(Gap("flight-recorder", f"pid {pid}", f"reading it {answer.reason}", remedy))
            elif isinstance(answer, Gap):
                gaps.append(answer)
            elif answer:
                found[pid] = answer
    return (
        tuple(
            replace(process, flight=found[process.pid]) if process.pid in found else process
            for process in processes
        ),
        tuple(gaps),
    )


def _ask_flights(
    readers: Readers, pids: Sequence[int], total_s: float
) -> Iterator[tuple[int, tuple[FlightEntry, ...] | Gap | Trouble | None]]:
    symtabs = elf.known_symtabs()
    answers = readers.ask(
        read_recorder,
        [_Recorder(pid, symtabs) for pid in pids],
        item_s=FLIGHT_S * patience(),
        total_s=total_s,
        belongs_to=lambda asked: asked.pid,
    )
    for asked, answer in answers:
        if isinstance(answer, _Recorder):
            elf.learn_symtabs(answer.symtabs)
            yield asked.pid, answer.answer
        else:
            yield asked.pid, answer


_GROUP_THREADS = ("pt_gloo", "gloo_", "pt_nccl", "pt_xccl", "pt_ucc")
_RECORDER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


def _has_process_group(process: Process) -> bool:
    """By the threads that torch starts for a group; by the environment for releases that gave them no names.

    A server's 64 compile workers have torch loaded and no group: searching each took 5 s a look (measured).
    """
    names = (thread.comm or "" for thread in process.threads)
    return any(name.startswith(_GROUP_THREADS) for name in names) or any(
        name in (process.environ or {}) for name in _RECORDER_SIZES
    )


def sample_hot_threads(snapshot: Snapshot, seconds: float) -> Mapping[int, SpinSample]:
    """Spin samples by tid of the threads that ran during the last look; takes at most ``seconds``, and at most 1 s.

    Empty when nothing was hot, or sampling is not permitted: a sharper answer is missed, not evidence.
    """
    seconds = min(SPIN_S, seconds)
    tids = _hot_threads(snapshot)
    if not tids or seconds < _SHORTEST_SPIN_S:
        return {}
    samples = call(lambda: sample_spin(tids, seconds), seconds + 2.0)
    return {} if isinstance(samples, Trouble) else samples


def _hot_threads(snapshot: Snapshot) -> list[int]:
    threads = [
        thread for process in snapshot.processes for thread in process.threads if thread.tid is not None
    ]
    running = [thread.tid for thread in threads if thread.state == "R"]
    recent = [
        thread.tid
        for thread in threads
        if thread.state == "S" and thread.last_ran_s is not None and thread.last_ran_s < _HOT_S
    ]
    return [tid for tid in (*running, *recent) if tid is not None][:MAX_THREADS]


def add_spins(process: Process, samples: Mapping[int, SpinSample]) -> Process:
    """The process with the samples on its threads."""
    if not samples:
        return process
    return _with_threads(
        process, lambda thread, tid: replace(thread, spin=samples[tid]) if tid in samples else thread
    )
