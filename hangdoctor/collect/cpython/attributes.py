"""The attribute values of an instance of a plain Python class, without their names.

Only instances in the usual state are read: attributes set in ``__init__`` and no ``__dict__`` asked for. Offsets:
Include/internal/pycore_dict.h and pycore_object.h of 3.10.13, 3.11.7, 3.12.1, 3.13.0 and 3.14.10.
"""

from __future__ import annotations

from hangdoctor.collect.cpython.interpreter import Interpreter
from hangdoctor.collect.memory import Memory

_MAX_ATTRIBUTES = 64
_TYPE, _BASIC_SIZE = 8, 32


def read_attributes(interpreter: Interpreter, memory: Memory, instance: int) -> tuple[int, ...]:
    """Pointers to the values, in the order in which they were set; empty when they are kept otherwise."""
    try:
        found = _locate(interpreter, memory, instance)
        if found is None or not 0 < found[1] <= _MAX_ATTRIBUTES:
            return ()
        return memory.unpack(f"{found[1]}Q", found[0])
    except OSError:
        return ()


def read_int(interpreter: Interpreter, memory: Memory, address: int) -> int | None:
    """A positive ``int`` of two digits of 30 bits, as thread idents are; ``None`` for everything else."""
    try:
        size, first, second = memory.unpack("QII", address + 16)
    except OSError:
        return None
    # 3.12 keeps the number of digits above three bits of flags; before, it is the size itself.
    digits = size >> 3 if interpreter.version >= (3, 12) else size
    return first | second << 30 if digits == 2 else None


def _locate(interpreter: Interpreter, memory: Memory, instance: int) -> tuple[int, int] | None:
    """Address and number of the values."""
    if interpreter.version == (3, 10):
        # __dict__ stands right after the header; a split dict has its count at 16 and its values at 40.
        attributes = memory.u64(instance + 16)
        return (memory.u64(attributes + 40), memory.u64(attributes + 16)) if attributes else None
    if interpreter.version in ((3, 11), (3, 12)):
        # Before the object: 3.11 has the pointer to the values at -32, 3.12 at -24 with a 1 subtracted. The byte
        # before the last one in front of the values counts those that were set.
        if interpreter.version == (3, 11):
            values = memory.u64(instance - 32)
        else:
            tagged = memory.u64(instance - 24)
            values = tagged + 1 if tagged & 1 else 0
        return (values, memory.read(values - 2, 1)[0]) if values else None
    # 3.13 and 3.14 keep them behind the object: capacity, size, embedded, valid (a byte each), then the values.
    at = instance + memory.u64(memory.u64(instance + _TYPE) + _BASIC_SIZE)
    _, size, is_embedded, is_valid = memory.read(at, 4)
    return (at + 8, size) if is_embedded and is_valid else None
