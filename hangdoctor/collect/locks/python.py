"""Locks of CPython: the GIL, ``threading.Lock`` and ``RLock``, conditions, and joins.

A Lock waits on a semaphore, or (newer versions) in the parking lot, on a semaphore in the waiter's own stack that
has the lock's address just before it. Which Python object it is, the waiter's innermost
frame tells: the object is an argument, a local or a temporary there, and its semaphore or address must match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoctor.collect.cpython.attributes import read_attributes, read_int
from hangdoctor.collect.cpython.frames import FrameReader
from hangdoctor.collect.cpython.interpreter import Interpreter
from hangdoctor.collect.cpython.traces import trace_threads
from hangdoctor.collect.locks.futex import WAIT_BITSET, FutexWait
from hangdoctor.collect.locks.held import BUDGET_BYTES, HolderSearch
from hangdoctor.collect.locks.objects import LockObject, ObjectReader
from hangdoctor.collect.memory import Memory, Regions
from hangdoctor.model import LockWait

_WEAK_REFERENT = 16
"""wr_object of PyWeakReference."""
_EVENT_WINDOW = 48
"""In a ThreadHandle (3.13+) the ident and the handle stand this close before the event that ends a join."""


@dataclass(frozen=True, slots=True)
class _Waiter:
    """A thread that waits on a semaphore, and what its innermost Python frame knows."""

    wait: FutexWait
    parked: int
    """What stands before the futex: in the parking lot, the address of the lock or event waited for."""
    function: str
    file: str
    values: tuple[int, ...]

    def waits_for(self, lock: LockObject) -> bool:
        return lock.is_waited_for(self.wait.address, self.parked)

    @property
    def is_threading(self) -> bool:
        return self.file.endswith("threading.py")

    @property
    def is_importlib(self) -> bool:
        """Inside ``_ModuleLock.acquire``: another thread imports the module that this one wants."""
        return self.function == "acquire" and self.file == "<frozen importlib._bootstrap>"


def find_python_waits(
    interpreter: Interpreter,
    regions: Regions,
    waits: Sequence[FutexWait],
    native: Mapping[int, LockWait],
) -> dict[int, LockWait]:
    """Host tid to lock, for waits that are Python's; they replace what ``native`` made of the same futex."""
    found: dict[int, LockWait] = {}
    holder = interpreter.gil_holder() if any(interpreter.is_gil(wait.address) for wait in waits) else None
    candidates = []
    for wait in waits:
        if interpreter.is_gil(wait.address):
            is_other = holder is not None and holder != wait.tid
            found[wait.tid] = LockWait(
                "gil",
                interpreter.gil or wait.address,
                holder if is_other else None,
                owner_how="recorded" if is_other else None,
            )
        elif wait.command == WAIT_BITSET and wait.is_private:
            candidates.append(wait)
    found.update(_find_object_waits(interpreter, regions, candidates, native))
    return found


def _find_object_waits(
    interpreter: Interpreter,
    regions: Regions,
    waits: Sequence[FutexWait],
    native: Mapping[int, LockWait],
) -> dict[int, LockWait]:
    memory = Memory(interpreter.memory.pid, BUDGET_BYTES, is_dense=True)
    waiters = _look_at_waiters(interpreter, memory, waits, native)
    objects = ObjectReader(interpreter, memory, regions)
    resolved = objects.resolve({value for waiter in waiters for value in waiter.values})
    locks = objects.read_locks({value.manager for value in resolved.values()})
    found: dict[int, LockWait] = {}
    unowned: dict[int, int] = {}
    for waiter in waiters:
        own = {resolved[value].manager for value in waiter.values if value in resolved}
        lock = next((locks[at] for at in own if at in locks and waiter.waits_for(locks[at])), None)
        if lock is None:
            joined = _find_joined_event(interpreter, memory, waiter)
            if joined is not None:
                found[waiter.wait.tid] = joined
            continue
        described = _describe(interpreter, memory, waiter, lock)
        found[waiter.wait.tid] = described
        if described.kind == "threading.Lock" and lock.is_locked(waiter.parked):
            unowned[waiter.wait.tid] = lock.address
    if unowned:
        holders = HolderSearch(interpreter, regions, memory).find(frozenset(unowned.values()))
        for tid, address in unowned.items():
            if address in holders and holders[address] != tid:
                found[tid] = replace(found[tid], owner_tid=holders[address], owner_how="value-stack")
    return found


def _look_at_waiters(
    interpreter: Interpreter,
    memory: Memory,
    waits: Sequence[FutexWait],
    native: Mapping[int, LockWait],
) -> list[_Waiter]:
    reader = FrameReader(interpreter, memory)
    states = {thread.tid: thread for thread in interpreter.threads}
    before = memory.gather([(wait.address - 8, 8) for wait in waits])
    asked = [
        (wait, raw, states[wait.tid])
        for wait, raw in zip(waits, before, strict=True)
        if wait.tid in states and (known := native.get(wait.tid)) and known.kind in ("semaphore", "condition")
    ]
    traces = trace_threads(interpreter, memory, [state for _, _, state in asked], depth=1)
    waiters = []
    for (wait, raw, _), trace in zip(asked, traces, strict=True):
        frame = next(reader.frames(trace), None)
        if frame is not None:
            parked = int.from_bytes(raw, "little") if raw else 0
            names = reader.name_of(frame.code)
            waiters.append(_Waiter(wait, parked, *names, reader.slot_values(frame)))
    return waiters


def _describe(interpreter: Interpreter, memory: Memory, waiter: _Waiter, lock: LockObject) -> LockWait:
    if lock.is_rlock:
        if lock.owner is None:
            return LockWait("threading.RLock", lock.address)
        owner = interpreter.tid_of(lock.owner)
        if owner is None:
            return LockWait("threading.RLock", lock.address, is_orphaned=True)
        return LockWait("threading.RLock", lock.address, owner, owner_how="recorded")
    if waiter.is_importlib:
        owner = _find_importer(interpreter, memory, waiter)
        return LockWait("import lock", lock.address, owner, owner_how="recorded" if owner else None)
    if waiter.is_threading and waiter.function == "wait":
        # Condition.wait (so also Event, Queue, Semaphore, Barrier): a fresh lock that a notify releases.
        return LockWait("condition", lock.address)
    if waiter.is_threading and waiter.function == "_wait_for_tstate_lock":
        ended = _find_joined_thread(interpreter, memory, lock)
        return LockWait("thread.join", lock.address, ended, owner_how="recorded" if ended else None)
    return LockWait("threading.Lock", lock.address)


def _find_importer(interpreter: Interpreter, memory: Memory, waiter: _Waiter) -> int | None:
    """The thread whose ident a ``_ModuleLock``, the waiter's ``self``, has in its attribute ``owner``."""
    attributes = read_attributes(interpreter, memory, waiter.values[0]) if waiter.values else ()
    tids = {
        tid
        for at in attributes
        if (ident := read_int(interpreter, memory, at)) and (tid := interpreter.tid_of(ident)) is not None
    }
    tids.discard(waiter.wait.tid)
    return tids.pop() if len(tids) == 1 else None


def _find_joined_thread(interpreter: Interpreter, memory: Memory, lock: LockObject) -> int | None:
    """Up to 3.12, ``join`` waits for a lock that the ending thread releases; its state refers to it weakly."""
    offset = interpreter.layout.join_lock
    if offset is None:
        return None
    for thread in interpreter.threads:
        try:
            reference = memory.u64(thread.address + offset)
            if reference and memory.u64(reference + _WEAK_REFERENT) == lock.address:
                return thread.tid
        except OSError:
            continue
    return None


def _find_joined_event(interpreter: Interpreter, memory: Memory, waiter: _Waiter) -> LockWait | None:
    """From 3.13 on, ``join`` waits for an event inside the handle of the thread, next to the thread's ident."""
    if not (waiter.is_threading and waiter.function == "join" and interpreter.layout.join_lock is None):
        return None
    start = (waiter.parked & -8) - _EVENT_WINDOW
    try:
        window = memory.unpack(f"{_EVENT_WINDOW // 8}Q", start)
    except OSError:
        return LockWait("thread.join", waiter.wait.address)
    tids = {thread.tid for thread in interpreter.threads if thread.ident in window}
    if len(tids) != 1:
        return LockWait("thread.join", waiter.parked)
    return LockWait("thread.join", waiter.parked, tids.pop(), owner_how="recorded")
