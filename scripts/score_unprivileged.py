#!/usr/bin/env python
"""How often the verdict stays the same when less can be seen: as an ordinary user, without py-spy, without attaching.

    scripts/score_unprivileged.py                   the live scenarios, and the faults of a gloo job
    scripts/score_unprivileged.py load-mmap gloo-gil  only these
    scripts/score_unprivileged.py --tiers "no py-spy"

Run by root it gives its privileges up, and so do the jobs. Exits with 1 below 80 % for the machine without py-spy.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.jobs import gloo_job
from tests.lacking import TIERS, Said, has_privileges, look, without_privileges
from tests.scenarios import SCENARIOS, play

LOOKS = ("--snapshots", "3", "--interval", "2")
WANTED = 0.8
_GLOO = ("idle", "sleep", "lock", "gil", "stopped", "compute", "mismatch")


@dataclass(frozen=True, slots=True)
class Row:
    """One job at all tiers."""

    name: str
    said: dict[str, Said]

    def agrees(self, tier: str) -> bool:
        return self.said[tier].agrees_with(self.said["everything"])


@contextmanager
def started(name: str) -> Iterator[int]:
    """The pid of a job of this name, in the state that the name promises."""
    if not name.startswith("gloo-"):
        with play(SCENARIOS[name]) as playing:
            yield playing.pid
        return
    fault = name.removeprefix("gloo-")
    with gloo_job("popen", world_size=5, culprit=3) as job:
        if fault == "idle":
            yield job.pid
        elif fault == "mismatch":
            with job.mismatch():
                yield job.pid
        else:
            with job.suffer(fault):
                yield job.pid


def names_here() -> list[str]:
    """Everything that this machine can run."""
    scenarios = [name for name, scenario in SCENARIOS.items() if not scenario.missing()]
    return scenarios + ([f"gloo-{fault}" for fault in _GLOO] if find_spec("torch") else [])


def measure(names: Sequence[str], tiers: Sequence[str], *, verbose: bool) -> Iterator[Row]:
    for name in names:
        with ExitStack() as job:
            try:
                pid = job.enter_context(started(name))
            except (OSError, RuntimeError) as error:
                print(f"{name}: cannot be started without privileges ({error})", flush=True)
                continue
            row = Row(name, {tier: look(pid, tier, LOOKS) for tier in tiers})
        marks = ", ".join(
            f"{tier}: {row.said[tier].kind}{'' if row.agrees(tier) else ' (differs)'}" for tier in tiers
        )
        print(f"{name}: {marks}", flush=True)
        if verbose or not all(row.agrees(tier) for tier in tiers):
            for tier in tiers:
                print(f"    {tier}: {row.said[tier].told()}", flush=True)
        yield row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tiers", nargs="*", default=[tier for tier in TIERS if tier != "everything"])
    parser.add_argument("--verbose", action="store_true")
    choice = parser.parse_args()
    if has_privileges():
        command = [*without_privileges(), sys.executable, *sys.argv]
        os.execvpe(command[0], command, {**os.environ, "HOME": "/"})
    tiers = ["everything", *choice.tiers]
    rows = list(measure(choice.names or names_here(), tiers, verbose=choice.verbose))
    shares = {tier: sum(row.agrees(tier) for row in rows) / len(rows) for tier in choice.tiers}
    for tier, share in shares.items():
        print(f"{tier}: the same verdict in {100 * share:.0f} % of {len(rows)} scenarios")
    return 0 if shares.get("no py-spy", 1.0) >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
