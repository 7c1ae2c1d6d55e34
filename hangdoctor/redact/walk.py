"""Every text of a capture, visited once: a new capture with the visitor's answers, untouched parts shared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, Protocol, TypeVar, cast, get_args, get_type_hints

from hangdoctor.model import Frame, LogMessage, LogTail, Process, Stack

_T = TypeVar("_T")
_S = TypeVar("_S")


class Visitor(Protocol):
    """Answers for each kind of text."""

    def text(self, text: str) -> str:
        """Any text: a path, a name, a sentence."""

    def command(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """An argument vector, or a title as its only element."""

    def environ(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Environment variables."""

    def lines(self, lines: tuple[str, ...]) -> tuple[str, ...]:
        """Consecutive lines of a log."""

    def version(self, text: str) -> str:
        """A version number, which may look like an address."""


def map_texts(value: _T, visitor: Visitor) -> _T:
    """`value` (a dataclass of `model`) with every text in it replaced by the visitor's answer."""
    return cast(_T, _Walk(visitor).any(value))


class _Walk:
    """Visits what is shared once: a few hundred stacks make up all threads of all ranks and looks.

    Shared objects are known by their identity, for the hash of a stack costs as much as a visit; all of them live as
    long as the value that is walked.
    """

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self._text = visitor.text
        self._visits: dict[type, Callable[[Any], object]] = {}
        self._frames: dict[Frame, Frame] = {}
        self._shared: dict[int, object] = {}
        self._harmless: set[str] = set()
        """Texts that the visitor left as they are. What it learns later does not matter: then it walks once more."""

    def any(self, value: object) -> object:
        """Visit anything; how is decided once a type."""
        kind = type(value)
        visit = self._visits.get(kind)
        if visit is None:
            visit = self._visits[kind] = self._visit_of(kind)
        return visit(value)

    def _visit_of(self, kind: type) -> Callable[[Any], object]:
        special: dict[type, Callable[[Any], object]] = {
            str: self._word,
            tuple: self._tuple,
            Frame: self._frame,
            Stack: self._stack,
        }
        if kind in special:
            return special[kind]
        if is_dataclass(kind):
            return self._record
        return self._mapping if issubclass(kind, Mapping) else lambda value: value

    def _word(self, text: str) -> str:
        return _unless_equal(self._text(text), text)

    def _stack(self, stack: Stack) -> object:
        return self._once(stack, self._record)

    def _frame(self, frame: Frame) -> Frame:
        if frame not in self._frames:
            self._frames[frame] = cast(Frame, self._record(frame))
        return self._frames[frame]

    def _mapping(self, value: Mapping[str, object]) -> object:
        return _unless_equal({self._text(key): self.any(item) for key, item in value.items()}, value)

    def _once(self, value: _T, visit: Callable[[_T], object]) -> object:
        known = self._shared.get(id(value))
        if known is None:
            known = self._shared[id(value)] = visit(value)
        return known

    def _tuple(self, value: tuple[object, ...]) -> object:
        return self._once(value, self._each) if value and type(value[0]) is str else self._each(value)

    def _each(self, value: tuple[object, ...]) -> tuple[object, ...]:
        mapped = tuple(map(self.any, value))
        return value if all(map(_is, mapped, value)) else mapped

    def _record(self, value: Any) -> object:
        kind = type(value)
        names, texts_of = _texts_of(cast(Hashable, kind))
        changed = {}
        for name, old in zip(names, texts_of(value), strict=True):
            if not old:
                continue
            if type(old) is not str or kind is LogMessage:
                new = self._special(kind, name, old)
            elif old in self._harmless:
                continue
            else:
                new = self._text(old)
                if new == old:
                    self._harmless.add(old)
            if new is not old and new != old:
                changed[name] = new
        return replace(value, **changed) if changed else value

    def _special(self, kind: type, name: str, value: Any) -> object:
        visitor = self._visitor
        if kind is Process:
            if name == "command":
                return _unless_equal(visitor.command(value), value)
            if name == "environ":
                return _unless_equal(visitor.environ(value), value)
            if name == "versions":
                versions = {visitor.text(key): visitor.version(item) for key, item in value.items()}
                return _unless_equal(versions, value)
        elif kind is LogTail and name in ("lines", "earlier"):
            return _unless_equal(visitor.lines(value), value)
        elif kind is LogMessage and name == "text":
            return _unless_equal(visitor.lines((value,))[0], value)
        return self.any(value)


def _unless_equal(new: _S, old: _S) -> _S:
    """Most texts are answered with an equal one; to take that for a change would copy the whole capture."""
    return old if new == old else new


def _is(one: object, other: object) -> bool:
    return one is other


@cache
def _texts_of(kind: Hashable) -> tuple[tuple[str, ...], Callable[[object], tuple[Any, ...]]]:
    """The fields in which a text may be, and how they are read at once; half of all fields are numbers.

    A function's name is code, and rules match it.
    """
    hints = get_type_hints(kind)
    names = tuple(
        field.name
        for field in fields(cast(Any, kind))
        if field.name != "function" and _may_hold_text(hints[field.name])
    )
    # attrgetter gives a tuple from two names on.
    return names, attrgetter(*names) if len(names) > 1 else lambda record: tuple(
        getattr(record, n) for n in names
    )


def _may_hold_text(hint: Any) -> bool:
    parts = get_args(hint)
    if not parts:
        return hint not in _TEXTLESS and not (isinstance(hint, type) and issubclass(hint, Enum))
    return any(map(_may_hold_text, parts))


_TEXTLESS = (int, float, bool, type(None), ...)
