"""Entries as text, for ``hangdoctor explain ID``."""

from __future__ import annotations

from hangdoctor.knowledge.catalogue import Phase, Role, RoleKind
from hangdoctor.knowledge.signatures import Signature

_PARTS = {
    RoleKind.RANK: "It holds a share of the model and takes part in collectives.",
    RoleKind.CONTROL: "It feeds or supervises ranks and takes no part in collectives.",
    RoleKind.LAUNCHER: "It only waits for its children.",
    RoleKind.COMPILER: "It is a build step: while it works, the rank that started it is slow, not hung.",
    RoleKind.HELPER: "It never holds anything up.",
}


def explain_phase(phase: Phase) -> str:
    """Meaning, what it waits for, how long it may stand still, and what to do."""
    lines = [f"{phase.id}: {phase.title} ({phase.stage.value}, {phase.server})", "", phase.meaning]
    if phase.activity is not None:
        lines.append(f"A thread in it {phase.activity.value}.")
    if phase.waits_for is not None:
        lines.append(f"Waits for: {phase.waits_for}.")
    if phase.budget_s is not None:
        lines.append(f"Suspicious after {phase.budget_s:.0f} s in which nothing moves.")
    if phase.cause is not None:
        lines.append(f"As the cause of a wait: {phase.cause}.")
    if phase.advice is not None:
        lines += ["", phase.advice]
    if phase.links:
        lines += ["", *(f"See {link}" for link in phase.links)]
    return "\n".join(lines)


def explain_role(role: Role) -> str:
    """What part the process plays."""
    return f"{role.id}: {role.title} ({role.kind.value}, {role.server})\n\n{_PARTS[role.kind]}"


def explain_signature(signature: Signature) -> str:
    """What it is, when it was seen, and the way around it."""
    lines = [f"{signature.id}: {signature.title}", "", signature.meaning]
    if signature.versions:
        lines.append(
            "Versions: " + ", ".join(f"{name} {range_.text}" for name, range_ in signature.versions.items())
        )
    lines += ["", f"Way around it: {signature.workaround}", "", *(f"See {link}" for link in signature.links)]
    return "\n".join(lines)
