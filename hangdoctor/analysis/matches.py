"""Known hangs that fit what was seen: hints for the reader, never part of the verdict."""

from __future__ import annotations

from hangdoctor.analysis.findings import Finding
from hangdoctor.case import Case
from hangdoctor.knowledge import Knowledge, Observed
from hangdoctor.report import Kind

_MOST_LINES = 400


def known_matches(case: Case, knowledge: Knowledge, finding: Finding) -> tuple[str, ...]:
    """One paragraph a signature, best first. Nothing is matched against a job that is ready."""
    if finding.kind is Kind.READY:
        return ()
    leads = [m.lead.last for m in case.principals if m.lead is not None]
    versions: dict[str, str] = {}
    environ: dict[str, str] = {}
    for member in case.principals:
        versions.update(member.last.versions)
        environ.update(member.last.environ or {})
    if case.server and case.server_version:
        versions[case.server] = case.server_version
    phases = {p.id for m in case.principals for p in (m.phase, m.aspect) if p is not None}
    lines = [line for log in _last_logs(case) for line in log]
    lines += [message.text for s in case.capture.snapshots for message in s.messages]
    seen = Observed(
        server=case.server,
        versions=versions,
        environ=environ,
        phases=frozenset(phases),
        stacks=tuple(view.thread.stack for view in leads if view.thread.stack is not None),
        lines=tuple(lines[-_MOST_LINES:]),
    )
    return tuple(
        f"{m.signature.title} ({'; '.join(m.because)}). {m.signature.meaning} Workaround: {m.signature.workaround}"
        + (f" {m.signature.links[0]}" if m.signature.links else "")
        for m in knowledge.match_signatures(seen)
    )


def _last_logs(case: Case) -> list[tuple[str, ...]]:
    snapshots = case.capture.snapshots
    return [log.lines for log in snapshots[-1].logs] if snapshots else []
