"""Locks of the C library, recognised by how glibc waits for them, and the owner each one records.

Layouts of 64-bit glibc (sysdeps/nptl/bits/struct_mutex.h, struct_rwlock.h, nptl/sem_waitcommon.c), seen on
2.36 and 2.43; std::mutex, std::shared_mutex and std::condition_variable are these. An owner is believed only
when it is a live thread of the process and does not change while we look.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from hangdoctor.collect.locks.futex import LOCK_PI, LOCK_PI2, WAIT, FutexWait
from hangdoctor.collect.memory import gather
from hangdoctor.model import LockWait

_BEFORE, _AFTER = 16, 32
_TID_MASK, _OWNER_BIT = 0x3FFFFFFF, 0x80000000
"""FUTEX_TID_MASK; FUTEX_WAITERS, set in the word of a contended robust or PI mutex."""
_MAX_KIND = 1024
_MAX_USERS = 1 << 20
# A pthread_rwlock_t is waited for at its phase (+8) or its writers futex (+12); the writer's tid is at +24.
_RWLOCK_WRITER_FROM_FUTEX = (16, 12)
_WRITER_OFFSET = 24
# The word at +0 of a pthread_rwlock_t (nptl/pthread_rwlock_common.c): bit 0 the phase (1: a writer's), bit 1 that a
# writer has or wants it, bit 2 that readers wait, from bit 3 on how many readers there are.
_WRITE_PHASE, _WRITE_LOCKED, _READER_SHIFT = 1, 2, 3
_MAX_READERS = 1 << 16


def find_native_waits(
    pid: int, waits: Sequence[FutexWait], inner_tids: Mapping[int, int]
) -> dict[int, LockWait]:
    """Host tid to lock for the waits that are recognised. Raises ``OSError`` when memory may not be read."""
    items = [(wait.address, _AFTER) for wait in waits]
    first, before = gather(pid, items), gather(pid, [(wait.address - _BEFORE, _BEFORE) for wait in waits])
    found = {}
    for wait, after, front in zip(waits, first, before, strict=True):
        lock = None if after is None else _classify(wait, front or bytes(_BEFORE), after, inner_tids)
        if lock is not None:
            found[wait.tid] = lock
    return found


def _classify(wait: FutexWait, before: bytes, after: bytes, inner_tids: Mapping[int, int]) -> LockWait | None:
    if wait.command in (LOCK_PI, LOCK_PI2):
        return _owned(wait, "mutex", wait.address, _word(after, 0) & _TID_MASK, inner_tids)
    if wait.command == WAIT:
        return _classify_mutex(wait, after, inner_tids)
    if not wait.is_private and _is_join(wait, after, inner_tids):
        return _owned(wait, "thread.join", wait.address, wait.expected, inner_tids)
    if wait.expected in (2, 3):
        lock = _classify_rwlock(wait, before, after, inner_tids)
        if lock is not None or wait.expected == 2:  # 2 is also the contended value of Rust's Mutex
            return lock
    if wait.expected == 0 and wait.address % 16 == 0 and 1 <= _word(after, 4) < _MAX_USERS:
        # sem_t: value, then the number of waiters; it has no owner. CPython's locks are made of these.
        return LockWait("semaphore", wait.address, is_shared=not wait.is_private)
    return LockWait("condition", wait.address) if wait.is_private else None


def _classify_mutex(wait: FutexWait, after: bytes, inner_tids: Mapping[int, int]) -> LockWait | None:
    if wait.expected & _OWNER_BIT and wait.expected & _TID_MASK:  # robust: the word holds the owner
        return _owned(wait, "mutex", wait.address, _word(after, 0) & _TID_MASK, inner_tids)
    if wait.expected != 2:
        return None
    lock, _, owner, users, kind = struct.unpack_from("<5I", after)
    if not lock or kind >= _MAX_KIND or not 1 <= users < _MAX_USERS or not owner:
        # 2 is also the contended value of locks without an owner field: malloc's, stdio's, the loader's.
        return None
    return _owned(wait, "mutex", wait.address, owner, inner_tids)


def _classify_rwlock(
    wait: FutexWait, before: bytes, after: bytes, inner_tids: Mapping[int, int]
) -> LockWait | None:
    """Only a writer is recorded; of readers that hold the lock, no more than their number is known."""
    whole = before + after
    for distance in _RWLOCK_WRITER_FROM_FUTEX:
        address = wait.address + distance - _WRITER_OFFSET
        writer = _word(whole, _BEFORE + distance)
        tid = inner_tids.get(writer)
        if tid is not None and tid != wait.tid:
            return LockWait("rwlock", address, tid, owner_how="recorded")
        word = _word(whole, _BEFORE + distance - _WRITER_OFFSET)
        readers = word >> _READER_SHIFT
        is_read_held = word & (_WRITE_PHASE | _WRITE_LOCKED) == _WRITE_LOCKED
        if not writer and is_read_held and 1 <= readers < _MAX_READERS and _has_few_writers(whole, distance):
            return LockWait("rwlock", address, readers=readers)
    return None


def _has_few_writers(whole: bytes, distance: int) -> bool:
    """Whether the count of waiting writers at +4 is one that threads could make up."""
    return _word(whole, _BEFORE + distance - _WRITER_OFFSET + 4) < _MAX_USERS


def _is_join(wait: FutexWait, after: bytes, inner_tids: Mapping[int, int]) -> bool:
    """pthread_join waits on the joined thread's own tid word, which the kernel clears when it ends."""
    return wait.expected in inner_tids and _word(after, 0) == wait.expected


def _owned(
    wait: FutexWait, kind: str, address: int, owner: int, inner_tids: Mapping[int, int]
) -> LockWait | None:
    tid = inner_tids.get(owner)
    if tid is not None:
        return LockWait(kind, address, tid, owner_how="recorded", is_shared=not wait.is_private)
    if not owner or not wait.is_private:
        # Shared between processes: the owner may live in another one.
        return LockWait(kind, address, is_shared=not wait.is_private)
    return LockWait(kind, address, is_orphaned=True)


def _word(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "little")
