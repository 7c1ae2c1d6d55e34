"""What scenarios.toml holds, typed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ANSWERS = ("kinds", "ranks", "causes", "phases", "sources", "exits")
SCENARIOS = Path(__file__).with_name("scenarios.toml")


@dataclass(frozen=True)
class Expect:
    """The right answer. Empty means "anything"."""

    kinds: tuple[str, ...]
    ranks: tuple[str, ...]
    """Words one of which must be in a culprit's rank or role."""
    causes: tuple[str, ...]
    phases: tuple[str, ...]
    """Ends of phase ids (``jit-compile``), one of which a culprit must be in."""
    sources: tuple[str, ...]
    """Sources (``ncclras``), one of which the evidence must cite."""
    exits: tuple[str, ...]
    """Exit codes that are right without a report, too: the target may be gone by then."""


@dataclass(frozen=True)
class Scenario:
    """One state of the target and what must be said about it."""

    id: str
    arm: str | None
    """A fault of faults/sitecustomize.py."""
    parameter: str
    wait: str
    """``ready``, ``reached``, ``child``, ``log`` or ``time``: what tells that the state is there."""
    wait_for: str
    act: str
    """``request``, ``load``, ``stop``, ``kill``, ``finish`` or nothing."""
    settle_s: float
    options: tuple[str, ...]
    """More words for ``hangdoctor attach``."""
    ras: bool
    """Record what NCCL's RAS service says after the attach, and what reading the Flight Recorders costs."""
    measure: str | None
    """``attach`` or ``watch``: compare the token throughput with and without it."""
    is_last: bool
    """The target is beyond repair afterwards."""
    expect: Expect


@dataclass(frozen=True)
class Life:
    """One start of a target and the scenarios it lives through."""

    id: str
    program: str
    """``sglang``, ``torch`` or ``training`` (targets.py)."""
    ranks: int
    is_cold: bool
    """All caches of compiled kernels are thrown away first."""
    options: tuple[str, ...]
    scenarios: tuple[Scenario, ...]


def read_plan(path: Path = SCENARIOS) -> dict[str, Life]:
    """All lives by id; an unknown key is an error, so that a typo cannot weaken an expectation."""
    lives = [_life(table) for table in tomllib.loads(path.read_text())["life"]]
    return {life.id: life for life in lives}


def _life(table: dict) -> Life:
    scenarios = tuple(_scenario(item) for item in table.pop("scenario"))
    life = Life(
        id=table.pop("id"),
        program=table.pop("program"),
        ranks=int(table.pop("ranks", 2)),
        is_cold=table.pop("cold", False),
        options=tuple(table.pop("options", ())),
        scenarios=scenarios,
    )
    _nothing_left(table, life.id)
    return life


def _scenario(table: dict) -> Scenario:
    expected = table.pop("expect")
    expect = Expect(*(tuple(expected.pop(key, ())) for key in ANSWERS))
    wait = table.pop("wait", "")
    word, _, text = wait.partition(":")
    scenario = Scenario(
        id=table.pop("id"),
        arm=table.pop("arm", None),
        parameter=str(table.pop("parameter", "")),
        wait=word,
        wait_for=text.strip(),
        act=table.pop("act", ""),
        settle_s=float(table.pop("settle_s", 2)),
        options=tuple(table.pop("options", ())),
        ras=table.pop("ras", False),
        measure=table.pop("measure", None),
        is_last=table.pop("last", False),
        expect=expect,
    )
    _nothing_left(table, scenario.id)
    _nothing_left(expected, scenario.id)
    return scenario


def _nothing_left(table: dict, where: str) -> None:
    if table:
        raise SystemExit(f"scenarios.toml: {where}: unknown keys {sorted(table)}")
