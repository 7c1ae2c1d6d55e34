"""Pickles as plain data: an interpreter for the container opcodes alone.

Python's ``pickle`` runs what a pickle says; even its restricted form allocates what a length field claims. Here
``GLOBAL``, ``REDUCE``, ``BUILD`` and everything else that could call code is unknown, lengths are checked against the
data that is there, and the memo is a dict. Truncated dumps give what was complete.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

_MOST_VALUES = 20_000_000
_MARK = object()


class PickleRefused(Exception):
    """The pickle needs an opcode that is not read here, or is damaged."""


class _Truncated(Exception):
    pass


def read_containers(data: bytes) -> tuple[object, str | None]:
    """The value of a pickle of dicts, lists, tuples, numbers and text, and what was wrong with it, if anything.

    Shared references stay shared, so a small pickle cannot grow. Raises :class:`PickleRefused`.
    """
    return _Machine(data).run()


class _Machine:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}

    def run(self) -> tuple[object, str | None]:
        operations, data, size = _OPERATIONS, self._data, len(self._data)
        count = 0
        try:
            while True:
                if self._at >= size:
                    raise _Truncated
                code = data[self._at]
                self._at += 1
                if code == 0x2E:  # STOP
                    return self._top(), None
                operation = operations.get(code)
                if operation is None:
                    raise PickleRefused(
                        f"opcode {bytes([code])!r} at byte {self._at - 1} could run code or is unknown"
                    )
                operation(self)
                count += 1
                if count > _MOST_VALUES:
                    raise PickleRefused("it is too large")
        except _Truncated:
            return self._collapse(), f"cut short at byte {self._at:,}; what was complete was read"
        except (IndexError, KeyError, TypeError, ValueError, struct.error, AttributeError) as error:
            raise PickleRefused(f"damaged at byte {self._at:,} ({type(error).__name__})") from None

    # -- pieces ------------------------------------------------------------------------------------

    def _bytes(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._data):
            raise _Truncated
        self._at += count
        return self._data[self._at - count : self._at]

    def _number(self, form: str, count: int) -> int:
        (number,) = struct.unpack(form, self._bytes(count))
        return int(number)

    def _top(self) -> object:
        if not self._stack:
            raise PickleRefused("it is empty")
        return self._stack[-1]

    def push(self, value: object) -> None:
        self._stack.append(value)

    def _to_mark(self) -> list[object]:
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index] is _MARK:
                items = self._stack[index + 1 :]
                del self._stack[index:]
                return items
        raise IndexError

    def _collapse(self) -> object:
        """Close whatever was open when the data ended: inner containers into outer ones."""
        items: list[object] = []
        while self._stack:
            top = self._stack.pop()
            if top is not _MARK:
                items.append(top)
                continue
            items.reverse()
            if not self._stack:
                break
            target = self._stack[-1]
            _extend(target, items)
            items = []
        return self._stack[0] if self._stack else (items[-1] if items else None)

    # -- operations --------------------------------------------------------------------------------

    def proto(self) -> None:
        self._bytes(1)

    def frame(self) -> None:
        self._bytes(8)

    def text(self, form: str, width: int) -> None:
        self.push(self._bytes(self._number(form, width)).decode("utf-8", "replace"))

    def blob(self, form: str, width: int) -> None:
        self.push(self._bytes(self._number(form, width)).decode("latin-1"))

    def integer(self, form: str, width: int) -> None:
        self.push(self._number(form, width))

    def long(self, form: str, width: int) -> None:
        count = self._number(form, width)
        if count > 64:
            raise PickleRefused("it holds an absurdly long number")
        self.push(int.from_bytes(self._bytes(count), "little", signed=True))

    def float_(self) -> None:
        self.push(struct.unpack(">d", self._bytes(8))[0])

    def mark(self) -> None:
        self.push(_MARK)

    def tuple_(self, count: int | None) -> None:
        if count is None:
            self.push(tuple(self._to_mark()))
            return
        if count > len(self._stack):
            raise IndexError
        items = tuple(self._stack[len(self._stack) - count :]) if count else ()
        if count:
            del self._stack[-count:]
        self.push(items)

    def build_list(self) -> None:
        self.push(self._to_mark())

    def build_dict(self) -> None:
        items = self._to_mark()
        target: dict[object, object] = {}
        _extend(target, items)
        self.push(target)

    def append(self) -> None:
        item = self._stack.pop()
        _extend(self._top(), [item])

    def appends(self) -> None:
        items = self._to_mark()
        _extend(self._top(), items)

    def setitem(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        _extend(self._top(), [key, value])

    def put(self, index: int) -> None:
        self._memo[index] = self._top()

    def get(self, index: int) -> None:
        self.push(self._memo[index])

    def pop(self) -> None:
        self._stack.pop()


def _extend(target: object, items: list[object]) -> None:
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, dict):
        for key, value in zip(items[::2], items[1::2]):  # noqa: B905  (a truncated pair is dropped)
            if isinstance(key, (str, int, float, bool, type(None))):
                target[key] = value
    else:
        raise TypeError


_Operation = Callable[[_Machine], None]

_OPERATIONS: dict[int, _Operation] = {
    0x80: _Machine.proto,
    0x95: _Machine.frame,
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("K"): lambda m: m.integer("<B", 1),
    ord("M"): lambda m: m.integer("<H", 2),
    ord("J"): lambda m: m.integer("<i", 4),
    0x8A: lambda m: m.long("<B", 1),
    0x8B: lambda m: m.long("<i", 4),
    ord("G"): _Machine.float_,
    ord("X"): lambda m: m.text("<I", 4),
    0x8C: lambda m: m.text("<B", 1),
    0x8D: lambda m: m.text("<Q", 8),
    ord("U"): lambda m: m.blob("<B", 1),
    ord("T"): lambda m: m.blob("<i", 4),
    ord("C"): lambda m: m.blob("<B", 1),
    ord("B"): lambda m: m.blob("<I", 4),
    ord("("): _Machine.mark,
    ord(")"): lambda m: m.push(()),
    0x85: lambda m: m.tuple_(1),
    0x86: lambda m: m.tuple_(2),
    0x87: lambda m: m.tuple_(3),
    ord("t"): lambda m: m.tuple_(None),
    ord("]"): lambda m: m.push([]),
    ord("}"): lambda m: m.push({}),
    ord("l"): _Machine.build_list,
    ord("d"): _Machine.build_dict,
    ord("a"): _Machine.append,
    ord("e"): _Machine.appends,
    ord("s"): _Machine.setitem,
    ord("u"): _Machine.appends,
    ord("0"): _Machine.pop,
    ord("q"): lambda m: m.put(m._number("<B", 1)),
    ord("r"): lambda m: m.put(m._number("<I", 4)),
    0x94: lambda m: m.put(len(m._memo)),
    ord("h"): lambda m: m.get(m._number("<B", 1)),
    ord("j"): lambda m: m.get(m._number("<I", 4)),
}
