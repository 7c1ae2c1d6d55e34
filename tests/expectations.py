"""What is expected of a recorded bundle, and how an answer compares with it (tests/bundles/README.md)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hangdoctor.report import Culprit, Kind, Report

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BUNDLES = Path(__file__).parent / "bundles"
RECORDED = tuple(sorted(path.parent.name for path in BUNDLES.glob("*/expected.toml")))


@dataclass(frozen=True, slots=True)
class Expectation:
    """The contents of one expected.toml."""

    truth: str
    kinds: tuple[Kind, ...]
    culprits: frozenset[int] = frozenset()
    also: frozenset[int] = frozenset()
    is_unseen: bool = False
    rank: str | None = None
    causes: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """Each complaint is a sentence, or empty."""

    kind: str = ""
    culprit: str = ""
    cause: str = ""
    phase: str = ""

    @property
    def complaints(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.kind, self.culprit, self.cause, self.phase)))


def load(name: str) -> Expectation:
    """Read the expectation of one recorded bundle."""
    raw = tomllib.loads((BUNDLES / name / "expected.toml").read_text(encoding="utf-8"))
    return Expectation(
        truth=raw.pop("truth"),
        kinds=tuple(Kind(kind) for kind in raw.pop("kinds")),
        culprits=frozenset(raw.pop("culprits", ())),
        also=frozenset(raw.pop("also", ())),
        causes=tuple(raw.pop("causes", ())),
        phases=tuple(raw.pop("phases", ())),
        **raw,
    )


def compare(report: Report, expected: Expectation) -> Score:
    """Judge one answer."""
    verdict = report.verdict
    if verdict.kind not in expected.kinds:
        wanted = " or ".join(kind.value for kind in expected.kinds)
        return Score(kind=f"said {verdict.kind.value}, not {wanted}")
    if verdict.kind is Kind.UNKNOWN:
        return Score()
    cause = verdict.cause.value if verdict.cause else None
    return Score(
        culprit=_compare_culprits(verdict.culprits, expected),
        cause="" if not expected.causes or cause in expected.causes else f"cause {cause}",
        phase=_compare_phase(verdict.culprits, expected),
    )


def _compare_culprits(culprits: Sequence[Culprit], expected: Expectation) -> str:
    named = {culprit.pid for culprit in culprits}
    if not expected.culprits:
        return "" if not named else f"blames {_list(culprits)}, nobody is guilty"
    allowed = expected.culprits | expected.also | ({None} if expected.is_unseen else set())
    if named - allowed:
        return f"blames {_list(culprits)}"
    if expected.is_unseen and not named:
        return ""  # it is in no look, so there is no process to name
    if not named & (expected.culprits | ({None} if expected.is_unseen else set())):
        return f"blames {_list(culprits) or 'nobody'}"
    labels = {culprit.rank.label for culprit in culprits if culprit.rank and culprit.pid in expected.culprits}
    if expected.rank and expected.rank not in labels:
        return f"calls the culprit {', '.join(sorted(labels)) or 'no rank'}, not {expected.rank}"
    return ""


def _compare_phase(culprits: Sequence[Culprit], expected: Expectation) -> str:
    guilty = [culprit for culprit in culprits if culprit.pid in expected.culprits]
    if not expected.phases or not guilty:
        return ""
    phases = {(culprit.phase or "").partition(".")[2] for culprit in guilty}
    return "" if phases & set(expected.phases) else f"phase {', '.join(sorted(phases)) or 'none'}"


def _list(culprits: Sequence[Culprit]) -> str:
    return ", ".join(f"{c.rank.label if c.rank else c.role or '?'} (pid {c.pid})" for c in culprits)
