"""Of several ranks that load at once, who is behind: the others will wait for that one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hangdoctor.analysis.findings import Finding
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.knowledge.catalogue import Stage
from hangdoctor.report import Kind

LEAST_SPREAD = 5.0
"""Percentage points: ranks of one job read the same storage and are never exactly level."""


def name_the_last(best: Finding, findings: Sequence[Finding]) -> Finding:
    """One finding for ``findings`` of the same kind and cause, of which ``best`` is one.

    All are named; where all know how far they are, only those that are behind. Whoever is in a later phase of the same
    start-up is past what the others are in, however much it moved before.
    """
    if best.kind is Kind.SLOW:
        findings = _in_the_earliest_phase(findings)
        best = best if best in findings else findings[0]
    everyone = replace(best, suspects=tuple(s for f in findings for s in f.suspects))
    places = [(f.progress.percent, f) for f in findings if f.progress and f.progress.percent is not None]
    if best.kind is not Kind.SLOW or len(places) < len(findings):
        return everyone
    least, last = min(places, key=lambda place: place[0])
    ahead = [(percent, f) for percent, f in places if percent - least >= LEAST_SPREAD]
    if not ahead:
        return everyone
    level = [f for percent, f in places if percent - least < LEAST_SPREAD and f is not last]
    labels = fold_labels(s.member.label for _, f in ahead for s in f.suspects)
    low, high = min(percent for percent, _ in ahead), max(percent for percent, _ in ahead)
    where = f"{low:.0f} %" if high - low < 1 else f"{low:.0f} to {high:.0f} %"
    return replace(
        last,
        because=f"{last.because}; it is behind {labels} ({where} of the load)",
        suspects=tuple(s for f in (last, *level) for s in f.suspects),
    )


def _in_the_earliest_phase(findings: Sequence[Finding]) -> Sequence[Finding]:
    orders = [_order(finding) for finding in findings]
    known = [order for order in orders if order is not None]
    if len(known) < len(findings):
        return findings
    return [f for f, order in zip(findings, orders, strict=True) if order == min(known)]


def _order(finding: Finding) -> int | None:
    """Place of its first suspect in the start-up of its server; ``None`` outside of one."""
    phase = finding.suspects[0].member.phase if finding.suspects else None
    return phase.order if phase is not None and phase.stage is Stage.STARTUP else None
