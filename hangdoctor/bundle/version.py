"""The version of the format, and how records of older majors become records of this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hangdoctor.errors import UnreadableInput

JsonObject = dict[str, object]
Migration = Callable[[JsonObject], JsonObject]


@dataclass(frozen=True, slots=True, order=True)
class FormatVersion:
    """Additive changes raise ``minor``; anything an older reader would misread raises ``major``."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


FORMAT = FormatVersion(1, 0)

MIGRATIONS: Mapping[int, Migration] = {}
"""Major -> what turns any one record of it into a record of the next major. A new major adds one entry."""


def version_of(manifest: JsonObject) -> FormatVersion:
    """Read ``format`` of a manifest record; ``ValueError`` when it is not one."""
    stated = manifest.get("format")
    if isinstance(stated, dict):
        major, minor = stated.get("major"), stated.get("minor", 0)
        if type(major) is int and type(minor) is int and major >= 0 and minor >= 0:
            return FormatVersion(major, minor)
    raise ValueError("states no format version")


def check_readable(version: FormatVersion, manifest: JsonObject, name: str) -> None:
    """Raise UnreadableInput for a major that this release cannot read, naming the release that can."""
    if version.major > FORMAT.major:
        tool = manifest.get("tool")
        wrote = tool.get("version") if isinstance(tool, dict) else None
        needed = f">={wrote}" if isinstance(wrote, str) and wrote.isascii() else ""
        raise UnreadableInput(
            f"{name} has bundle format {version}; this hangdoctor reads formats up to {FORMAT.major}.x",
            hint=f"install the release that wrote it: pip install --upgrade 'hangdoctor{needed}'",
        )
    missing = [major for major in range(version.major, FORMAT.major) if major not in MIGRATIONS]
    if missing:
        raise UnreadableInput(
            f"{name} has bundle format {version}, which was never released",
            hint="take a new capture with `hangdoctor collect`",
        )


def migrate(record: JsonObject, version: FormatVersion) -> JsonObject:
    """The record as this major would have written it. The version was checked before."""
    for major in range(version.major, FORMAT.major):
        record = MIGRATIONS[major](record)
    return record
