"""Every text of a capture, visited once: a new capture with the visitor's answers, untouched parts shared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, Protocol, TypeVar, cast, get_args, get_type_hints

from hangdoctor.model import Frame, LogMessage, LogTail, Process, Stack

_T = TypeVar("_T")


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
        self._frames: dict[Frame, Frame] = {}
        self._shared: dict[int, object] = {}

    def any(self, value: object) -> object:
        kind = type(value)
        if kind is str:
            return self._visitor.text(cast(str, value))
        if kind is tuple:
            return self._tuple(cast("tuple[object, ...]", value))
        if kind is Stack:
            return self._once(value, self._record)
        if kind is Frame:
            frame = cast(Frame, value)
            if frame not in self._frames:
                self._frames[frame] = cast(Frame, self._record(frame))
            return self._frames[frame]
        if isinstance(value, Mapping):
            return {self._visitor.text(key): self.any(item) for key, item in value.items()}
        return self._record(value) if is_dataclass(value) else value

    def _once(self, value: _T, visit: Callable[[_T], object]) -> object:
        known = self._shared.get(id(value))
        if known is None:
            known = self._shared[id(value)] = visit(value)
        return known

    def _tuple(self, value: tuple[object, ...]) -> tuple[object, ...]:
        if value and type(value[0]) is str:
            return cast("tuple[object, ...]", self._once(value, self._each))
        return self._each(value)

    def _each(self, value: tuple[object, ...]) -> tuple[object, ...]:
        mapped = tuple(map(self.any, value))
        return value if all(map(_is, mapped, value)) else mapped

    def _record(self, value: Any) -> object:
        changed = {}
        for name in _names_of_texts(cast(Hashable, type(value))):
            old = getattr(value, name)
            if old is None or old == ():
                continue
            new = self._special(value, name, old)
            if new is not old:
                changed[name] = new
        return replace(value, **changed) if changed else value

    def _special(self, record: object, name: str, value: Any) -> object:
        visitor, kind = self._visitor, type(record)
        if kind is Process:
            if name == "command":
                return visitor.command(value)
            if name == "environ":
                return visitor.environ(value)
            if name == "versions":
                return {visitor.text(key): visitor.version(item) for key, item in value.items()}
        elif kind is LogTail and name == "lines":
            return visitor.lines(value)
        elif kind is LogMessage and name == "text":
            return visitor.lines((value,))[0]
        return self.any(value)


def _is(one: object, other: object) -> bool:
    return one is other


@cache
def _names_of_texts(kind: Hashable) -> tuple[str, ...]:
    """The fields in which a text may be: half of them are numbers. A function's name is code, and rules match it."""
    hints = get_type_hints(kind)
    return tuple(
        field.name
        for field in fields(cast(Any, kind))
        if field.name != "function" and _may_hold_text(hints[field.name])
    )


def _may_hold_text(hint: Any) -> bool:
    parts = get_args(hint)
    if not parts:
        return hint not in _TEXTLESS and not (isinstance(hint, type) and issubclass(hint, Enum))
    return any(map(_may_hold_text, parts))


_TEXTLESS = (int, float, bool, type(None), ...)
