"""Nothing but compilers can be seen: somebody's kernel is being built, and whoever waits for it is slow."""

from __future__ import annotations

import re

from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.standing import is_dead, is_stopped
from hangdoctor.case import Member
from hangdoctor.knowledge.catalogue import RoleKind
from hangdoctor.report import Cause, Confidence, Kind

_SOURCE = re.compile(r"[^\s\"'=]*?([\w.+-]+\.(?:cu|cuh|cpp|cc|cxx|ptx|hip))\b")


def check(situation: Situation) -> Finding | None:
    """Fires when a listing holds living compilers and no rank or supervisor that could be judged."""
    case = situation.case
    compilers = [
        m for m in case.members if m.kind is RoleKind.COMPILER and not is_dead(m) and not is_stopped(m)
    ]
    if not compilers or any(m.lead is not None for m in case.principals):
        return None
    source = next((name for m in compilers if (name := _source(m)) is not None), None)
    return Finding(
        Kind.SLOW,
        Confidence.POSSIBLE,
        Cause.COMPILING,
        f"a compiler works{f' on {source}' if source else ''}: who asked for it is slow rather than stuck",
        tuple(Suspect(m, m.lead) for m in compilers),
        decider="whether the compiler uses the CPU, and what its parent does",
    )


def _source(member: Member) -> str | None:
    match = _SOURCE.search(" ".join(member.last.command))
    return match[1] if match else None


RULE = Rule(
    id="compiling",
    order=48,
    summary="Only compilers were seen: a kernel is being built.",
    refuted_by="the same compiler without CPU time in a second look",
    check=check,
)
