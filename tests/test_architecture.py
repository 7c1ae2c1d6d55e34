"""The table of docs/architecture.md is law: which room may import which, and how large a module may grow."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hangdoctor"
DOCUMENT = ROOT / "docs" / "architecture.md"
MODULE_LINES = 400
FUNCTION_LINES = 40
MODULES = sorted(PACKAGE.rglob("*.py"))
# Third-party and system modules that only some rooms may use. Paths are below hangdoctor/.
RESERVED = {
    "ClusterShell": ("cluster/",),
    "psutil": ("collect/", "discover", "demo/", "cli/"),
    "pynvml": ("collect/", "discover", "demo/", "cli/"),
    "subprocess": ("collect/", "discover", "demo/", "cli/", "watching/hook", "cluster/remote"),
    "rich": ("render/terminal", "watching/view", "cli/"),
    "click": ("cli/",),
}


@dataclass(frozen=True)
class Room:
    """One row of the table: what it covers and what it may import, as dotted names below ``hangdoctor``."""

    names: tuple[str, ...]
    allowed: frozenset[str] | None
    """``None``: everything."""

    def covers(self, dotted: str) -> bool:
        return any(dotted == name or dotted.startswith(name + ".") for name in self.names)


def _dotted(path: str) -> str:
    return path.rstrip("/").removesuffix(".py").replace("/", ".")


def read_rooms() -> list[Room]:
    """The table, most specific room first."""
    rooms: list[Room] = []
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `") or len(cells) != 3:
            continue
        names = tuple(_dotted(name) for name in re.findall(r"`([^`]+)`", cells[0]))
        allowed = {_dotted(name.strip(" `")) for name in cells[2].split(",")}
        if allowed == {"the same"}:
            allowed = set(rooms[-1].allowed or ()) | set(rooms[-1].names)
        rooms.append(Room(names, None if allowed == {"everything"} else frozenset(allowed - {"nothing"})))
    return sorted(rooms, key=lambda room: -max(name.count(".") for name in room.names))


ROOMS = read_rooms()


def module_name(path: Path) -> str:
    """``analysis.rules.idle`` for hangdoctor/analysis/rules/idle.py."""
    return _dotted(str(path.relative_to(PACKAGE))).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Absolute dotted names of everything a module imports, wherever the import stands."""
    tree = ast.parse(path.read_text(), str(path))
    package = ["hangdoctor", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from hangdoctor import model` imports a module, `from hangdoctor.model import Frame` a name.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(dotted: str) -> Room | None:
    return next((room for room in ROOMS if room.covers(dotted)), None)


def violations(path: Path) -> list[str]:
    """What ``path`` imports although the table does not let it."""
    name = module_name(path)
    room = room_of(name)
    if room is None or room.allowed is None:
        return []
    found = []
    for imported in imports(path):
        if not imported.startswith("hangdoctor."):
            continue
        target = imported.removeprefix("hangdoctor.")
        is_own = room.covers(target)
        is_allowed = any(target == name or target.startswith(name + ".") for name in room.allowed)
        if not (is_own or is_allowed or target.startswith("__version__")):
            found.append(imported)
    return found


def reserved_violations(path: Path) -> list[str]:
    """Reserved third-party modules that ``path`` imports outside their rooms."""
    where = str(path.relative_to(PACKAGE))
    return sorted(
        {
            name
            for imported in imports(path)
            if (name := imported.partition(".")[0]) in RESERVED and not where.startswith(RESERVED[name])
        }
    )


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_only_what_its_room_may(path: Path) -> None:
    assert violations(path) == []


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_no_reserved_module(path: Path) -> None:
    assert reserved_violations(path) == []


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_stays_within_its_budget(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= MODULE_LINES
    too_long = {
        node.name: length
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert too_long == {}


def test_every_module_has_a_room() -> None:
    homeless = [name for path in MODULES if room_of(name := module_name(path)) is None]
    assert homeless == ["__init__", "__main__"]


def test_every_room_exists() -> None:
    for room in ROOMS:
        for name in room.names:
            stem = PACKAGE / name.replace(".", "/")
            assert stem.is_dir() or stem.with_suffix(".py").is_file(), f"{DOCUMENT.name} lists {name}"


def test_a_forbidden_import_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: the walk sees what it is there to see, however the import is written."""
    package = tmp_path / "hangdoctor"
    (package / "render").mkdir(parents=True)
    culprit = package / "render" / "picture.py"
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", package)
    for line in (
        "import hangdoctor.collect.procfs",
        "from hangdoctor.collect import procfs",
        "from hangdoctor import collect",
        "from ..collect import procfs",
        "def f():\n    from hangdoctor.collect.procfs import read",
    ):
        culprit.write_text(line)
        assert violations(culprit), line
    culprit.write_text(
        "import subprocess\nfrom rich.table import Table\nfrom hangdoctor.report import Report"
    )
    assert violations(culprit) == []
    assert reserved_violations(culprit) == ["rich", "subprocess"]
