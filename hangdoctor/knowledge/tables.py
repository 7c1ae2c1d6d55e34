"""Reading TOML strictly: every key is asked for by name, and what nobody asked for is an error.

Knowledge files are edited by people who do not write Python, and ``--knowledge DIR`` reads files that we have never
seen. A misspelt key that is silently ignored would switch a rule off, so it is refused, with file, table and key.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hangdoctor.errors import UnreadableInput

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class BadKnowledge(UnreadableInput):
    """A knowledge file that cannot be used; the message names file, table and key."""


@dataclass(slots=True)
class Table:
    """One TOML table that remembers which of its keys were read."""

    where: str
    """``sglang.toml: [[phase]] sglang.idle``: the beginning of every complaint."""
    values: dict[str, object]
    used: set[str] = field(default_factory=set)

    def complain(self, what: str, *, hint: str | None = None) -> BadKnowledge:
        """An error about this table, to be raised by the caller."""
        return BadKnowledge(f"{self.where}: {what}", hint=hint)

    def has(self, key: str) -> bool:
        """Whether the key is there; does not count as reading it."""
        return key in self.values

    def text(self, key: str) -> str:
        """A non-empty string that must be there."""
        value = self.optional_text(key)
        if value is None:
            raise self.complain(f"key {key!r} is missing")
        return value

    def optional_text(self, key: str) -> str | None:
        """A non-empty string, or ``None`` where the key is absent."""
        value = self._take(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self.complain(f"{key!r} must be a non-empty string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of non-empty strings; empty where the key is absent."""
        value = self._take(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.complain(f"{key!r} must be a list of non-empty strings")
        return tuple(str(item) for item in value)

    def number(self, key: str) -> float | None:
        """A positive number, or ``None`` where the key is absent."""
        value = self._take(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise self.complain(f"{key!r} must be a positive number")
        return float(value)

    def whole(self, key: str, default: int) -> int:
        """A whole number."""
        value = self._take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.complain(f"{key!r} must be a whole number")
        return value

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        """One of a closed set of words."""
        value = self.text(key)
        if value not in allowed:
            raise self.complain(f"{key!r} is {value!r}", hint=f"It may be one of: {', '.join(allowed)}.")
        return value

    def flag(self, key: str) -> bool:
        """A boolean; false where the key is absent."""
        value = self._take(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.complain(f"{key!r} must be true or false")
        return value

    def needed_regex(self, key: str) -> re.Pattern[str]:
        """A regular expression that must be there."""
        return self._compile(key, self.text(key))

    def regex(self, key: str) -> re.Pattern[str] | None:
        """A regular expression, or ``None`` where the key is absent."""
        value = self.optional_text(key)
        return None if value is None else self._compile(key, value)

    def regexes(self, key: str) -> tuple[re.Pattern[str], ...]:
        """A list of regular expressions; empty where the key is absent."""
        return tuple(self._compile(key, value) for value in self.texts(key))

    def mapping(self, key: str) -> dict[str, str]:
        """A table of strings; empty where the key is absent."""
        value = self._take(key)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise self.complain(f"{key!r} must be a table of strings")
        return {str(name): str(item) for name, item in value.items()}

    def tables(self, key: str, name_key: str = "id") -> Iterator[Table]:
        """The tables of ``[[key]]``, each labelled with its ``name_key`` or its position."""
        value = self._take(key)
        if value is None:
            return
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.complain(f"{key!r} must be a list of tables, written [[{key}]]")
        for position, item in enumerate(value, start=1):
            yield Table(f"{self.where}: [[{key}]] {item.get(name_key, f'number {position}')}", item)

    def table(self, key: str) -> Table | None:
        """The table ``[key]``, or ``None``."""
        value = self._take(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.complain(f"{key!r} must be a table, written [{key}]")
        return Table(f"{self.where}: [{key}]", value)

    def close(self) -> None:
        """Refuses the keys that nobody read."""
        unknown = sorted(set(self.values) - self.used)
        if unknown:
            known = ", ".join(sorted(self.used))
            raise self.complain(f"unknown key {unknown[0]!r}", hint=f"Keys known there: {known}.")

    def _take(self, key: str) -> object | None:
        self.used.add(key)
        return self.values.get(key)

    def _compile(self, key: str, text: str) -> re.Pattern[str]:
        try:
            return re.compile(text)
        except re.error as problem:
            raise self.complain(f"{key!r} is no regular expression: {text!r} ({problem})") from problem


def read_toml(path: Path) -> Table:
    """The file as a table; raises :class:`BadKnowledge` when it cannot be read or is no TOML."""
    try:
        return Table(path.name, tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as problem:
        raise BadKnowledge(f"{path}: cannot be read ({problem.strerror})") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise BadKnowledge(f"{path.name}: not valid TOML ({problem})") from problem
