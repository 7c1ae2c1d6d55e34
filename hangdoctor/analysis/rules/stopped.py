"""A process that is stopped answers nobody, whatever its stack says."""

from __future__ import annotations

from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.analysis.standing import is_stopped
from hangdoctor.report import Cause, Confidence, Kind


def check(situation: Situation) -> Finding | None:
    """Fires when a rank or a process that feeds ranks is stopped or held by a debugger at the last look."""
    case = situation.case
    awaited = [s.member for s in situation.suspects] if situation.is_waited_for else []
    stopped = [m for m in case.members if is_stopped(m) and (m in case.principals or m in awaited)]
    if not stopped:
        target = case.target_member
        stopped = [m for m in case.members if is_stopped(m) and m is target]
    if not stopped:
        return None
    labels = fold_labels(m.label for m in stopped)
    tracers = {m.last.tracer_pid for m in stopped if m.last.tracer_pid}
    if tracers:
        by = f"held by a debugger or tracer (pid {', '.join(map(str, sorted(tracers)))})"
    else:
        by = "stopped by a signal (SIGSTOP or Ctrl-Z)"
    return Finding(
        Kind.HUNG,
        Confidence.CERTAIN,
        Cause.STOPPED_PROCESS,
        f"{labels} is {by}: it runs no instruction until it is continued",
        tuple(Suspect(m, m.lead) for m in stopped),
    )


RULE = Rule(
    id="stopped",
    order=10,
    summary="A rank or supervisor is in state T: stopped by a signal or a debugger.",
    refuted_by="the process being in another state than T when looked at again",
    check=check,
)
