"""Locks of CPython: the GIL, ``threading.Lock`` and ``RLock``, conditions, and joins.

A Lock waits on a semaphore, or (newer versions) in the parking lot, on a semaphore in the waiter's own stack that
has the lock's address just before it. Which Python object it is, the waiter's innermost
frame tells: the object is an argument, a local or a temporary there, and its semaphore or address must match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoctor.collect.cpython.attributes import read_attributes, read_int
from hangdoctor.collect.cpython.interpreter import Interpreter, open_interpreter
from hangdoctor.collect.cpython.view import View
from hangdoctor.collect.locks.futex import WAIT_BITSET, FutexWait
from hangdoctor.collect.locks.held import HolderSearch
from hangdoctor.collect.locks.objects import LockObject, ObjectReader
from hangdoctor.collect.memory import Memory, Regions
from hangdoctor.collect.namespaces import is_thread
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
    view: View, regions: Regions, waits: Sequence[FutexWait], native: Mapping[int, LockWait]
) -> dict[int, LockWait]:
    """Host tid to lock, for waits that are Python's; they replace what ``native`` made of the same futex.

    ``view`` may be some moments older than ``waits``.
    """
    interpreter = view.interpreter
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
        elif wait.command == WAIT_BITSET and wait.is_private and _is_semaphore(native.get(wait.tid)):
            candidates.append(wait)
    explained = _explain(view, regions, candidates)
    # These began to wait after the view was taken, or began at all; or it is C code that waits.
    later = {
        wait.tid: wait
        for wait in candidates
        if wait.tid not in explained and (wait.tid in view.threads or wait.tid not in interpreter.tids)
    }
    now = view.anew(later) if later else None
    if now is not None:
        explained.update(_explain(now, regions, list(later.values())))
    found.update({tid: one.wait for tid, one in explained.items()})
    found.update(_find_holders(view, regions, explained))
    return found


def _is_semaphore(lock: LockWait | None) -> bool:
    """What Python's locks look like to the C library."""
    return lock is not None and lock.kind in ("semaphore", "condition")


@dataclass(frozen=True, slots=True)
class _Explained:
    wait: LockWait
    taken: int | None = None
    """Address of the lock, where it is one that is locked and records no owner."""


def _explain(view: View, regions: Regions, waits: Sequence[FutexWait]) -> dict[int, _Explained]:
    """By host tid; without those that the frames of the view do not explain."""
    waiters = _look_at_waiters(view, waits)
    objects = ObjectReader(view.interpreter, view.memory, regions)
    resolved = objects.resolve({value for waiter in waiters for value in waiter.values})
    locks = objects.read_locks({value.manager for value in resolved.values()})
    explained = {}
    for waiter in waiters:
        own = {resolved[value].manager for value in waiter.values if value in resolved}
        lock = next((locks[at] for at in own if at in locks and waiter.waits_for(locks[at])), None)
        if lock is None:
            joined = _find_joined_event(view.interpreter, view.memory, waiter)
            if joined is not None:
                explained[waiter.wait.tid] = _Explained(joined)
            continue
        described = _describe(view, objects, waiter, lock)
        is_taken = described.kind == "threading.Lock" and lock.is_locked(waiter.parked)
        explained[waiter.wait.tid] = _Explained(described, lock.address if is_taken else None)
    return explained


def _find_holders(view: View, regions: Regions, explained: Mapping[int, _Explained]) -> dict[int, LockWait]:
    """Those of the waits whose lock somebody is seen to hold."""
    taken = {tid: one.taken for tid, one in explained.items() if one.taken is not None}
    if not taken:
        return {}
    holders = HolderSearch(view, regions).find(frozenset(taken.values()))
    return {
        tid: replace(explained[tid].wait, owner_tid=holders[address], owner_how="value-stack")
        for tid, address in taken.items()
        if address in holders and holders[address] != tid
    }


def _look_at_waiters(view: View, waits: Sequence[FutexWait]) -> list[_Waiter]:
    before = view.memory.gather([(wait.address - 8, 8) for wait in waits])
    waiters = []
    for wait, raw in zip(waits, before, strict=True):
        seen = view.threads.get(wait.tid)
        frame = view.frames.innermost(seen.trace) if seen is not None else None
        if frame is not None:
            parked = int.from_bytes(raw, "little") if raw else 0
            names = view.frames.name_of(frame.code)
            waiters.append(_Waiter(wait, parked, *names, view.frames.slot_values(frame)))
    return waiters


def _describe(view: View, objects: ObjectReader, waiter: _Waiter, lock: LockObject) -> LockWait:
    interpreter, memory = view.interpreter, view.memory
    if lock.is_rlock:
        return _describe_rlock(interpreter, objects, lock)
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


def _describe_rlock(interpreter: Interpreter, objects: ObjectReader, lock: LockObject) -> LockWait:
    if lock.owner is None:
        return LockWait("threading.RLock", lock.address)
    pid = interpreter.memory.pid
    owner = interpreter.tid_of(lock.owner)
    if owner is None or not is_thread(pid, owner):
        # It is younger than the view, or has ended. Rare, so all threads are asked for again, and then the lock.
        now = open_interpreter(pid)
        owner = now.tid_of(lock.owner) if now is not None else None
        if owner is None:
            still = objects.read_locks([lock.address]).get(lock.address)
            is_same = still is not None and still.owner == lock.owner
            return LockWait("threading.RLock", lock.address, is_orphaned=is_same)
    return LockWait("threading.RLock", lock.address, owner, owner_how="recorded")


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
