"""Objects of the model out of parsed JSON, strictly typed: one function a class, written from its fields.

A large job is millions of small objects, so reading is this. Three things make it some five times faster than
structuring with cattrs (which still says what is wrong with a record that these functions refuse):

- types are compared where the value stands, not in a call for each value;
- a blank that is not frozen is filled and becomes the object then (:mod:`hangdoctor.model.records`);
- texts and addresses that come in lists (kernel stacks, arguments of system calls) are checked and kept once, and so
  is each word: json makes a new object of every "S" and "futex". That is 40 % of the memory, and what comes after
  compares identities.

The source that is compiled here holds names of fields and nothing that was read; dataclasses do the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from types import UnionType
from typing import Any, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from hangdoctor.model import Frame, LockWait, Method, Stack, Syscall
from hangdoctor.model.records import blank_of

ADDRESSES = {LockWait: "address", Syscall: "args"}
"""64-bit values are hexadecimal strings: JavaScript and jq would round them (docs/bundle.md)."""

_MAX_HEX_CHARS = 40

_T = TypeVar("_T")


@dataclass(slots=True)
class Shared:
    """What was read before and is kept once: the looks at a job, and its hosts, have most of their code in common."""

    words: dict[str, str] = field(default_factory=dict)
    texts: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    _frames: dict[Frame, Frame] = field(default_factory=dict)
    _stacks: dict[tuple[tuple[int, ...], Method, bool], Stack] = field(default_factory=dict)

    def frame(self, frame: Frame) -> Frame:
        """The frame that was read first of those equal to this one."""
        return self._frames.setdefault(frame, frame)

    def stack(self, stack: Stack) -> Stack:
        """Likewise. Its frames are shared already, so that they can be told by their identity: hashing takes longer."""
        key = (tuple(map(id, stack.frames)), stack.method, stack.is_torn)
        return self._stacks.setdefault(key, stack)


@dataclass(slots=True)
class Tables:
    """What the objects of a record refer to by number, and what has been read already."""

    shared: Shared = field(default_factory=Shared)
    frames: tuple[Frame, ...] = ()
    stacks: tuple[Stack, ...] = ()
    addresses: dict[tuple[str, ...], tuple[int, ...]] = field(default_factory=dict)
    """A thread that waits for one thing in three looks has the same arguments three times; no other process has."""
    once: Callable[[str, str], str] = field(init=False)
    """The word that was read first of those equal to the first argument, which is also the second."""

    def __post_init__(self) -> None:
        self.once = self.shared.words.setdefault


Build = Callable[[object, Tables], _T]
"""Raises TypeError, ValueError or LookupError for what is no such object; which, and where, is not its business."""


def builder(kind: type[_T]) -> Build[_T]:
    """The function that makes a ``kind`` (a class of the model) of a JSON object; written once.

    Absent fields get their default; without one they are None where they may be, and an error elsewhere.
    """
    return cast("Build[_T]", _build(cast(Hashable, kind)))


@cache
def _build(kind: Hashable) -> Build[Any]:
    model = cast(type, kind)
    writer, hints = _Writer(model), get_type_hints(model)
    for each in fields(model):
        writer.write_field(each, hints[each.name])
    return writer.compiled()


class _Writer:
    """Writes one function."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._globals: dict[str, Any] = {
            "kind": kind,
            "blank": blank_of(kind),
            "new": object.__new__,
            "wrong": _wrong,
            "number": read_number,
            "texts": _texts,
            "addresses": _addresses,
            "address": read_address,
            "stack": _stack,
            "frames": _frames,
            "method": read_method,
        }
        self._lines = [
            "def build(value, tables):",
            "    if type(value) is not dict: wrong(value)",
            "    made = new(blank)",
            "    once = tables.once",
        ]

    def write_field(self, each: Field[Any], hint: Any) -> None:
        """The lines that check, make and store one field."""
        name = each.name
        steps = [f"    item = value[{name!r}]", *self._steps(name, hint, "    "), f"    made.{name} = item"]
        absent = self._default(each, hint)
        if absent is None:
            self._lines += steps
            return
        self._lines.append(f"    if {name!r} in value:")
        self._lines += ["    " + line for line in steps]
        self._lines += ["    else:", f"        made.{name} = {absent}"]

    def compiled(self) -> Callable[[object, Tables], Any]:
        """The function."""
        source = "\n".join([*self._lines, "    made.__class__ = kind", "    return made"])
        exec(compile(source, f"<builder of {self._kind.__name__}>", "exec"), self._globals)
        made: Callable[[object, Tables], Any] = self._globals["build"]
        return made

    def _default(self, each: Field[Any], hint: Any) -> str | None:
        """What stands for an absent field, as an expression; ``None`` where it must not be absent."""
        name = f"default_{each.name}"
        if each.default is not MISSING:
            self._globals[name] = each.default
        elif each.default_factory is not MISSING:
            self._globals[name] = each.default_factory
            name += "()"
        elif type(None) in get_args(hint):
            name = "None"
        else:
            return None
        return name

    def _steps(self, name: str, hint: Any, indent: str) -> Iterator[str]:
        """Lines that check ``item`` and turn it into a ``hint``."""
        if get_origin(hint) in (Union, UnionType):
            (hint,) = (part for part in get_args(hint) if part is not type(None))
            yield f"{indent}if item is not None:"
            indent += "    "
        if ADDRESSES.get(self._kind) == name:
            yield f"{indent}item = {'addresses(item, tables)' if hint is not int else 'address(item)'}"
        elif hint in _PLAIN:
            yield f"{indent}if {_PLAIN[hint]}: wrong(item)"
            if hint is str:
                yield f"{indent}item = once(item, item)"
        elif hint in _MADE:
            yield f"{indent}item = {_MADE[hint]}"
        elif get_origin(hint) is Mapping:
            yield f"{indent}if type(item) is not dict: wrong(item)"
            yield f"{indent}item = {{key: {self._each(name, get_args(hint)[1])} for key, one in item.items()}}"
        elif get_origin(hint) is tuple:
            yield f"{indent}if type(item) is not list: wrong(item)"
            yield f"{indent}item = tuple([{self._each(name, get_args(hint)[0])} for one in item])"
        else:
            self._globals[f"build_{name}"] = builder(hint)
            yield f"{indent}item = build_{name}(item, tables)"

    def _each(self, name: str, hint: Any) -> str:
        """An expression for ``one`` of several."""
        if hint in _PLAIN:
            return f"wrong(one) if {_PLAIN[hint].replace('item', 'one')} else one"
        self._globals[f"build_{name}"] = builder(hint)
        return f"build_{name}(one, tables)"


_PLAIN = {
    int: "type(item) is not int",
    str: "type(item) is not str",
    bool: "item is not True and item is not False",
}
_MADE = {
    float: "number(item)",
    Method: "method(item)",
    Stack: "stack(item, tables)",
    tuple[Frame, ...]: "frames(item, tables)",
    tuple[str, ...]: "texts(item, tables)",
}


def _wrong(value: object) -> NoReturn:
    raise TypeError(type(value).__name__)


def read_number(value: object) -> float:
    """A finite number; raises TypeError for anything else."""
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int:
        return float(value)
    raise TypeError(f"expected a finite number, found {type(value).__name__}")


def read_method(value: object) -> Method:
    """Enums grow in minor versions: what this release does not know is ``OTHER``, not an error."""
    if type(value) is not str:
        raise TypeError(f"expected a string, found {type(value).__name__}")
    return _METHODS.get(value, Method.OTHER)


_METHODS = {method.value: method for method in Method}


def _texts(value: object, tables: Tables) -> tuple[str, ...]:
    if type(value) is not list:
        raise TypeError(type(value).__name__)
    key = tuple(value)
    known = tables.shared.texts.get(key)  # nothing but texts equals texts
    if known is None:
        for item in key:
            if type(item) is not str:
                raise TypeError(type(item).__name__)
        known = tables.shared.texts[key] = key
    return known


def _addresses(value: object, tables: Tables) -> tuple[int, ...]:
    if type(value) is not list:
        raise TypeError(type(value).__name__)
    key = tuple(value)
    known = tables.addresses.get(key)
    if known is None:
        known = tables.addresses[key] = tuple([read_address(item) for item in key])
    return known


def read_address(value: object) -> int:
    """A number in hexadecimal; raises TypeError or ValueError for anything else."""
    if type(value) is not str:
        raise TypeError(f"expected a string, found {type(value).__name__}")
    if len(value) > _MAX_HEX_CHARS:
        raise ValueError("address of absurd length")
    return int(value, 16)


def _stack(value: object, tables: Tables) -> Stack:
    if type(value) is not int or value < 0:
        raise TypeError(type(value).__name__)
    return tables.stacks[value]


def _frames(value: object, tables: Tables) -> tuple[Frame, ...]:
    if type(value) is not list:
        raise TypeError(type(value).__name__)
    for item in value:
        if type(item) is not int or item < 0:
            raise TypeError(type(item).__name__)
    table = tables.frames
    return tuple([table[item] for item in value])
