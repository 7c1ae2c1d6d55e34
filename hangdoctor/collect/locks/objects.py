"""Python's lock objects in the target's memory, and the ``__exit__`` methods that point to them.

Offsets are those of Modules/_threadmodule.c (lockobject, rlockobject), Include/cpython/methodobject.h
(PyCFunctionObject), classobject.h (PyMethodObject), funcobject.h and descrobject.h, the same in 3.10-3.14
except where noted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hangdoctor.collect.cpython.interpreter import Interpreter
from hangdoctor.collect.memory import Memory, Regions

_OBJECT_BYTES = 48
_HEADER = 16
_TYPE, _TYPE_NAME = 8, 24
_NAME_BYTES = 40
LOCK, RLOCK, SEMLOCK, CONDITION = "_thread.lock", "_thread.RLock", "_multiprocessing.SemLock", "Condition"
MANAGERS = frozenset((LOCK, RLOCK, SEMLOCK, CONDITION))
_BUILTIN_METHOD, _METHOD, _DESCRIPTOR, _FUNCTION = (
    "builtin_function_or_method",
    "method",
    "method_descriptor",
    "function",
)


@dataclass(frozen=True, slots=True)
class LockObject:
    """One ``threading.Lock`` or ``RLock``, which is built either on a semaphore or on a PyMutex.

    Which, changed from version to version (Lock within 3.13, RLock with 3.14); what a waiter waits for tells.
    """

    address: int
    is_rlock: bool
    first: int
    """The word after the header: a pointer to the semaphore, or the PyMutex itself."""
    owner: int | None
    """``threading.get_ident()`` of the holder, where the object records it."""
    flag: int
    """Of a Lock with a semaphore: whether it is locked."""

    def is_waited_for(self, futex: int, parked: int) -> bool:
        """``parked`` is the word before the futex: in the parking lot, the address of the PyMutex."""
        return futex == self.first or parked == self.address + _HEADER

    def is_locked(self, parked: int) -> bool:
        """For a Lock, as seen by a thread that waits for it."""
        if parked == self.address + _HEADER:
            return bool(self.first & 1)
        return self.flag == 1


@dataclass(frozen=True, slots=True)
class Value:
    """A pointer to a lock or condition, or to a bound method of one."""

    manager: int
    """Address of the lock or condition."""
    type_name: str
    method: str | None
    """Name of the bound method; ``None`` when the pointer is the object itself."""


class ObjectReader:
    """Resolves many object pointers of one process at once."""

    def __init__(self, interpreter: Interpreter, memory: Memory, regions: Regions) -> None:
        self._memory = memory
        self._regions = regions
        self._type_names: dict[int, str] = {}
        # Characters of a compact ASCII str; 3.10 and 3.11 also have a wstr pointer before them.
        self._characters = 40 if interpreter.version >= (3, 12) else 48

    def resolve(self, pointers: Iterable[int]) -> Mapping[int, Value]:
        """The pointers that are locks, conditions, or bound methods of them."""
        heads = self._heads(pointers)
        kinds = self._name_types(heads)
        found = {at: Value(at, kind, None) for at, kind in kinds.items() if kind in MANAGERS}
        # Both kinds of bound method keep what they call at 16 and their self at 24.
        bound = {
            at: struct.unpack_from("<QQ", heads[at], 16)
            for at, kind in kinds.items()
            if kind in (_BUILTIN_METHOD, _METHOD)
        }
        managers = self._name_types(self._heads(own for _, own in bound.values()))
        bound = {at: pair for at, pair in bound.items() if managers.get(pair[1]) in MANAGERS}
        builtin = {called for at, (called, _) in bound.items() if kinds[at] == _BUILTIN_METHOD}
        names = self._definition_names(builtin)
        names.update(self._object_names({called for called, _ in bound.values()} - builtin, 32))
        for at, (called, own) in bound.items():
            found[at] = Value(own, managers[own], names.get(called))
        return found

    def exit_functions(self, pointers: Iterable[int]) -> frozenset[int]:
        """Those of the pointers that are an unbound ``__exit__`` (of a built-in or a Python class)."""
        heads = self._heads(pointers)
        kinds = self._name_types(heads)
        names = self._object_names({at for at, kind in kinds.items() if kind == _DESCRIPTOR}, 24)
        names.update(self._object_names({at for at, kind in kinds.items() if kind == _FUNCTION}, 32))
        return frozenset(at for at, name in names.items() if name == "__exit__")

    def read_locks(self, addresses: Iterable[int]) -> Mapping[int, LockObject]:
        """Lock objects by address, as they are now; what is no Lock or RLock is left out."""
        heads = self._heads(addresses)
        kinds = self._name_types(heads)
        return {at: _read_lock(at, kind, heads[at]) for at, kind in kinds.items() if kind in (LOCK, RLOCK)}

    def _heads(self, pointers: Iterable[int]) -> dict[int, bytes]:
        """The first bytes of what may be an object: 8-aligned and in writable memory."""
        plausible = sorted({at for at in pointers if at & 7 == 0 and self._is_writable(at)})
        blocks = self._memory.gather([(at, _OBJECT_BYTES) for at in plausible])
        return {at: block for at, block in zip(plausible, blocks, strict=True) if block is not None}

    def _is_writable(self, address: int) -> bool:
        region = self._regions.find(address)
        return region is not None and region.permissions.startswith("rw")

    def _name_types(self, heads: Mapping[int, bytes]) -> dict[int, str]:
        types = {at: int.from_bytes(head[_TYPE : _TYPE + 8], "little") for at, head in heads.items()}
        unknown = sorted({kind for kind in types.values() if kind not in self._type_names and kind & 7 == 0})
        names = self._names_at(self._pointers_at([kind + _TYPE_NAME for kind in unknown]))
        self._type_names.update(zip(unknown, names, strict=True))
        return {at: self._type_names.get(kind, "") for at, kind in types.items()}

    def _definition_names(self, definitions: Iterable[int]) -> dict[int, str]:
        """PyMethodDef begins with a pointer to the method's name."""
        ordered = sorted(definitions)
        return dict(zip(ordered, self._names_at(self._pointers_at(ordered)), strict=True))

    def _object_names(self, objects: Iterable[int], offset: int) -> dict[int, str]:
        """The ``str`` that each object points to: at 32 in a function, at 24 in a descriptor."""
        ordered = sorted(objects)
        strings = self._pointers_at([at + offset for at in ordered])
        names = self._names_at([at + self._characters if at else 0 for at in strings])
        return dict(zip(ordered, names, strict=True))

    def _pointers_at(self, addresses: Sequence[int]) -> list[int]:
        blocks = self._memory.gather([(at, 8) for at in addresses])
        return [int.from_bytes(raw, "little") if raw else 0 for raw in blocks]

    def _names_at(self, addresses: Sequence[int]) -> list[str]:
        blocks = self._memory.gather([(at, _NAME_BYTES) for at in addresses])
        return [(raw or b"").partition(b"\0")[0].decode("ascii", "replace") for raw in blocks]


def _read_lock(address: int, kind: str, head: bytes) -> LockObject:
    """RLock: semaphore or PyMutex, owner, depth. Lock: semaphore, weak references, a char; or a PyMutex."""
    first, second = struct.unpack_from("<QQ", head, _HEADER)
    is_rlock = kind == RLOCK
    return LockObject(address, is_rlock, first, second or None if is_rlock else None, head[32])
