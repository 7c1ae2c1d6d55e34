"""What is known about communication settings: which must agree, who sets them, which have hurt (nccl.toml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hangdoctor.knowledge.signatures import Versions
from hangdoctor.knowledge.tables import Table, read_toml

NCCL_FILE = Path(__file__).parent / "hardware" / "nccl.toml"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Variables that must have the same value on every rank, and what happens otherwise."""

    names: tuple[re.Pattern[str], ...]
    why: str
    source: str

    def covers(self, name: str) -> bool:
        """Whether a variable is one of these."""
        return any(pattern.fullmatch(name) for pattern in self.names)


@dataclass(frozen=True, slots=True)
class ServerDefault:
    """A value that a server gives a variable by itself."""

    server: str
    name: str
    value: re.Pattern[str]
    text: str
    source: str
    versions: Versions | None = None

    def applies(self, server: str | None, version: str | None) -> bool:
        """Whether this server (of this version) sets it; an unknown version is not blamed."""
        if server != self.server:
            return False
        return self.versions is None or (version is not None and self.versions.holds(version))


@dataclass(frozen=True, slots=True)
class Combination:
    """Settings that together have hung, slowed or blinded jobs."""

    id: str
    when: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]
    """Name and value, each matched whole; all must hold."""
    text: str
    source: str
    versions: Mapping[str, Versions]

    def holds(self, environ: Mapping[str, str], versions: Mapping[str, str]) -> bool:
        """Whether one rank's settings fit; a version that must be known and is not does not fit."""
        if not all(part in versions and rng.holds(versions[part]) for part, rng in self.versions.items()):
            return False
        return all(self._is_set(name, value, environ) for name, value in self.when)

    def settings(self, environ: Mapping[str, str]) -> str:
        """``NAME=value`` of the variables that fit."""
        found = [
            f"{key}={environ[key]}" for name, _ in self.when for key in sorted(environ) if name.fullmatch(key)
        ]
        return " ".join(found)

    @staticmethod
    def _is_set(name: re.Pattern[str], value: re.Pattern[str], environ: Mapping[str, str]) -> bool:
        return any(name.fullmatch(key) and value.fullmatch(text) for key, text in environ.items())


@dataclass(frozen=True, slots=True)
class NcclKnowledge:
    """The file as a whole."""

    shown: tuple[re.Pattern[str], ...]
    own: tuple[re.Pattern[str], ...]
    distinct: tuple[str, ...]
    agreements: tuple[Agreement, ...]
    defaults: tuple[ServerDefault, ...]
    combinations: tuple[Combination, ...]

    def shows(self, name: str) -> bool:
        """Whether a variable belongs in the report's environment."""
        return any(pattern.fullmatch(name) for pattern in self.shown)

    def is_own(self, name: str) -> bool:
        """Whether ranks may differ in it without saying anything by that."""
        return any(pattern.fullmatch(name) for pattern in self.own)


@lru_cache(maxsize=4)
def load_nccl_knowledge(path: Path = NCCL_FILE) -> NcclKnowledge:
    """Reads the file strictly; raises :class:`~hangdoctor.knowledge.tables.BadKnowledge`."""
    table = read_toml(path)
    knowledge = NcclKnowledge(
        shown=table.regexes("shown"),
        own=table.regexes("own"),
        distinct=table.texts("distinct"),
        agreements=tuple(_agreement(item) for item in table.tables("agree", "names")),
        defaults=tuple(_default(item) for item in table.tables("default", "name")),
        combinations=tuple(_combination(item) for item in table.tables("combination")),
    )
    table.close()
    return knowledge


def _agreement(table: Table) -> Agreement:
    agreement = Agreement(table.regexes("names"), table.text("why"), table.text("source"))
    table.close()
    return agreement


def _default(table: Table) -> ServerDefault:
    versions = table.optional_text("versions")
    default = ServerDefault(
        server=table.text("server"),
        name=table.text("name"),
        value=table.needed_regex("value"),
        text=table.text("text"),
        source=table.text("source"),
        versions=None if versions is None else _versions(table, versions),
    )
    table.close()
    return default


def _combination(table: Table) -> Combination:
    when = table.mapping("when")
    if not when:
        raise table.complain("key 'when' is missing")
    combination = Combination(
        id=table.text("id"),
        when=tuple((_pattern(table, name), _pattern(table, value)) for name, value in when.items()),
        text=table.text("text"),
        source=table.text("source"),
        versions={part: _versions(table, text) for part, text in table.mapping("versions").items()},
    )
    table.close()
    return combination


def _versions(table: Table, text: str) -> Versions:
    try:
        return Versions.parse(text)
    except ValueError as problem:
        raise table.complain(str(problem)) from problem


def _pattern(table: Table, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as problem:
        raise table.complain(f"{text!r} is no regular expression ({problem})") from problem
