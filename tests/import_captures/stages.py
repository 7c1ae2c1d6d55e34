"""All recorded stages, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hangdoctor.model import Capture
from tests.import_captures import cpu, h200

STARTUP_WINDOWS = (
    ("s02", "s04", "s06"),
    ("s06", "s08", "s10"),
    ("s12", "s14", "s16"),
    ("s16", "s18", "s20"),
    ("s20", "s22"),
    ("s22", "s24", "s26"),
    ("s26", "s27", "s28"),
    ("s28", "s29"),
    ("s29", "s30", "s31"),
    ("s31", "s33", "s34"),
    ("s34", "s40"),
    ("s40", "s43", "s44"),
    ("s43", "s44"),
    ("s44", "s50"),
    ("s50", "s52"),
)
"""Successive looks of one cold start, as people attaching at different moments would have got them."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One recording; ``load`` builds its capture."""

    name: str
    load: Callable[[], Capture]


def find_stages(captures: Path) -> Iterator[Stage]:
    """Every stage below the folder of recordings."""
    for archive in sorted(captures.glob("*-cpu/*.tar.gz")):
        yield Stage(archive.name.removesuffix(".tar.gz"), partial(cpu.load, archive))
    for folder in sorted(path.parent for path in captures.glob("*/t0.json.gz")):
        looks = [folder / f"{look}.json.gz" for look in ("t0", "t1", "t2")]
        yield Stage(folder.name, partial(h200.load, looks, folder / "server.log"))
    startup = captures / "sglang-startup"
    for window in STARTUP_WINDOWS if startup.is_dir() else ():
        looks = [startup / f"{look}.json.gz" for look in window]
        name = f"sglang-startup-{window[0]}-{window[-1]}"
        yield Stage(name, partial(h200.load, looks, startup / "server.log"))
