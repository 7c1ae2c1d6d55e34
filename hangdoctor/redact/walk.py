"""Every text of a capture, visited once: a new capture with the visitor's answers, untouched parts shared."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, Protocol, TypeVar, cast

from hangdoctor.model import Frame, LogMessage, LogTail, Process

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
    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        # The same few thousand frames make up all stacks of all ranks and looks.
        self._frames: dict[Frame, Frame] = {}

    def any(self, value: object) -> object:
        if isinstance(value, str):
            return value if isinstance(value, Enum) else self._visitor.text(value)
        if isinstance(value, tuple):
            return self._tuple(value)
        if isinstance(value, Mapping):
            return {self._visitor.text(key): self.any(item) for key, item in value.items()}
        if isinstance(value, Frame):
            if value not in self._frames:
                self._frames[value] = cast(Frame, self._record(value))
            return self._frames[value]
        return self._record(value) if is_dataclass(value) else value

    def _tuple(self, value: tuple[object, ...]) -> tuple[object, ...]:
        mapped = tuple(map(self.any, value))
        return value if all(map(_is, mapped, value)) else mapped

    def _record(self, value: Any) -> object:
        changed = {}
        for name in _field_names(cast(Hashable, type(value))):
            old = getattr(value, name)
            # Numbers and absences make up most of a capture. A function's name is code, and rules match it.
            if old is None or old == () or isinstance(old, int | float) or name == "function":
                continue
            new = self._special(value, name, old)
            if new is not old:
                changed[name] = new
        return replace(value, **changed) if changed else value

    def _special(self, record: object, name: str, value: Any) -> object:
        visitor = self._visitor
        if isinstance(record, Process):
            if name == "command":
                return visitor.command(value)
            if name == "environ":
                return visitor.environ(value)
            if name == "versions":
                return {visitor.text(key): visitor.version(item) for key, item in value.items()}
        if isinstance(record, LogTail) and name == "lines":
            return visitor.lines(value)
        if isinstance(record, LogMessage) and name == "text":
            return visitor.lines((value,))[0]
        return self.any(value)


def _is(one: object, other: object) -> bool:
    return one is other


@cache
def _field_names(kind: Hashable) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cast(Any, kind)))
