"""All recorded stages, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
        name = archive.name.removesuffix(".tar.gz")
        yield Stage(name, partial(cpu.load, archive))
        if "two-nodes" in name:
            yield Stage(f"{name}-node0", partial(_node0, archive))
    for folder in sorted(path.parent for path in captures.glob("*/t0.json.gz")):
        looks = [folder / f"{look}.json.gz" for look in ("t0", "t1", "t2")]
        yield Stage(folder.name, partial(h200.load, looks, folder / "server.log"))
    startup = captures / "sglang-startup"
    for window in STARTUP_WINDOWS if startup.is_dir() else ():
        looks = [startup / f"{look}.json.gz" for look in window]
        name = f"sglang-startup-{window[0]}-{window[-1]}"
        yield Stage(name, partial(h200.load, looks, startup / "server.log"))


def _node0(archive: Path) -> Capture:
    """Only the node that was attached to: in truth both ran on one host, each in a session of its own."""
    whole = cpu.load(archive)
    root = whole.target.root_pid
    return replace(
        whole,
        snapshots=tuple(
            replace(
                snapshot,
                processes=tuple(process for process in snapshot.processes if process.session == root),
                logs=tuple(log for log in snapshot.logs if root in log.pids),
            )
            for snapshot in whole.snapshots
        ),
    )
