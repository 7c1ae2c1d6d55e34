"""Judge the threads at which all waiting ends: the main road to a verdict."""

from __future__ import annotations

from dataclasses import replace

from hangdoctor.analysis.behind import name_the_last
from hangdoctor.analysis.charges import Charge
from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.judge import judge
from hangdoctor.analysis.naming import without_bystanders
from hangdoctor.analysis.waits import EdgeKind
from hangdoctor.report import Cause, Confidence, Kind, ProgressClass

_CONFIDENCE = (Confidence.CERTAIN, Confidence.LIKELY, Confidence.POSSIBLE)


def check(situation: Situation) -> Finding | None:
    """Fires when a suspect is stuck, slow, or remarkable without being provable."""
    findings = [
        finding
        for suspect in situation.suspects
        if (finding := judge(_charge(situation, suspect))) is not None
    ]
    if not findings:
        return None
    best = min(findings, key=_rank)
    alike = [f for f in findings if f.kind is best.kind and f.cause is best.cause]
    found = without_bystanders(situation, name_the_last(best, alike))
    return replace(found, kind=Kind.SLOW) if _works_by_nature(situation, found) else found


def _works_by_nature(situation: Situation, finding: Finding) -> bool:
    """One look at a dump met a thread of a load on a CPU, and nobody waits for it: that is what loads look like."""
    if finding.kind is not Kind.UNKNOWN or situation.case.look_count > 1 or situation.is_waited_for:
        return False
    threads = [s.track.last.thread for s in finding.suspects if s.track is not None]
    return (
        finding.cause in (Cause.LOADING, Cause.DEQUANTIZING)
        and bool(threads)
        and all(t.is_active_hint is True for t in threads)
    )


def _charge(situation: Situation, suspect: Suspect) -> Charge:
    wanted = tuple(e for e in situation.graph.edges if e.kind is EdgeKind.LOCK and e.holder == suspect.node)
    pid, host = suspect.member.pid, suspect.member.key.host
    gpu = next((g for g in situation.gpus if pid in g.pids and g.host in (None, host)), None)
    return Charge(situation.case, suspect, situation.is_waited_for, wanted, situation.log, gpu)


def _rank(finding: Finding) -> tuple[int, int]:
    """Proven progress anywhere beats a suspected hang elsewhere: the motionless one may wait for the moving one."""
    moving = finding.progress is not None and finding.progress.kind in (
        ProgressClass.PROOF,
        ProgressClass.WEAK,
    )
    sure = _CONFIDENCE.index(finding.confidence)
    if finding.kind is Kind.HUNG and finding.confidence is Confidence.CERTAIN:
        return 0, sure
    if finding.kind is Kind.SLOW and moving and finding.confidence is not Confidence.POSSIBLE:
        return 1, sure
    if finding.kind is Kind.HUNG:
        return 2, sure
    if finding.kind is Kind.SLOW:
        return 3, sure
    return 4, sure


RULE = Rule(
    id="sinks",
    order=50,
    summary="All waiting ends at these threads; they are stuck, slow, or busy without proof.",
    refuted_by="the named thread moving on, or proof of progress in a longer look",
    check=check,
)
