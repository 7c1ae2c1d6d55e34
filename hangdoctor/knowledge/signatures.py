"""Known hangs, as data: what they look like, since and until which version, and the way around them.

A match is a hint for the reader of a report, never proof: it says "this combination has hung before".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hangdoctor.knowledge.frames import FramePattern
from hangdoctor.model import Stack

_CONDITION = re.compile(r"^(>=|<=|==|>|<)\s*(\d[\w.+-]*)$")


@dataclass(frozen=True, slots=True)
class Versions:
    """A range such as ``>=2.26,<2.30``; compared number by number, local parts (``+cu130``) are ignored."""

    text: str
    bounds: tuple[tuple[str, tuple[int, ...]], ...]

    @staticmethod
    def parse(text: str) -> Versions:
        """Raises ``ValueError`` for anything else than comparisons joined by commas."""
        bounds = []
        for part in text.split(","):
            found = _CONDITION.match(part.strip())
            if found is None:
                raise ValueError(f"expected comparisons such as '>=2.26,<2.30', not {text!r}")
            bounds.append((found[1], release_of(found[2])))
        return Versions(text, tuple(bounds))

    def holds(self, version: str) -> bool:
        """Whether a version lies inside; one that has no number at all does not."""
        release = release_of(version)
        return bool(release) and all(_compare(release, sign, bound) for sign, bound in self.bounds)


@dataclass(frozen=True, slots=True)
class Signature:
    """One known hang. All conditions that are given must hold; those that cannot be checked weaken the match."""

    id: str
    title: str
    meaning: str
    workaround: str
    links: tuple[str, ...]
    servers: tuple[str, ...] = ()
    versions: Mapping[str, Versions] = field(default_factory=dict)
    """By component: ``sglang``, ``vllm``, ``nccl``, ``torch`` …"""
    environ: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    """Variable to full match of its value."""
    phases: tuple[str, ...] = ()
    """One of these phases or aspects was seen."""
    frames: tuple[FramePattern, ...] = ()
    """One of these frames was seen."""
    logs: tuple[re.Pattern[str], ...] = ()
    """One of these was found in a log line."""


@dataclass(frozen=True, slots=True)
class SignatureMatch:
    """A signature that fits what was seen, and which of its conditions were really checked."""

    signature: Signature
    because: tuple[str, ...]
    unchecked: tuple[str, ...] = ()
    """Conditions that could not be checked: ``nccl version unknown``."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What is known of a target when signatures are compared."""

    server: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    phases: frozenset[str] = frozenset()
    stacks: tuple[Stack, ...] = ()
    lines: tuple[str, ...] = ()


def match_signatures(signatures: Iterable[Signature], seen: Observed) -> tuple[SignatureMatch, ...]:
    """The signatures that fit, those with most checked conditions first."""
    found = [match for signature in signatures if (match := _match(signature, seen)) is not None]
    return tuple(sorted(found, key=lambda match: (-len(match.because), match.signature.id)))


def _match(signature: Signature, seen: Observed) -> SignatureMatch | None:
    because: list[str] = []
    unchecked: list[str] = []
    if signature.servers and seen.server not in signature.servers:
        return None
    for component, wanted in signature.versions.items():
        version = seen.versions.get(component)
        if version is None:
            unchecked.append(f"{component} version unknown (affected: {wanted.text})")
        elif not wanted.holds(version):
            return None
        else:
            because.append(f"{component} {version} is {wanted.text}")
    for name, pattern in signature.environ.items():
        value = seen.environ.get(name)
        if value is None or pattern.fullmatch(value) is None:
            return None
        because.append(f"{name}={value}")
    for condition in (_phase_seen, _frame_seen, _line_seen):
        reason = condition(signature, seen)
        if reason is None:
            return None
        if reason:
            because.append(reason)
    return SignatureMatch(signature, tuple(because), tuple(unchecked))


def _phase_seen(signature: Signature, seen: Observed) -> str | None:
    """The phase that was seen; empty when none is asked for, ``None`` when none of those asked for was seen."""
    if not signature.phases:
        return ""
    return next((phase for phase in signature.phases if phase in seen.phases), None)


def _frame_seen(signature: Signature, seen: Observed) -> str | None:
    if not signature.frames:
        return ""
    for stack in seen.stacks:
        for frame in stack.frames:
            if any(pattern.fits(frame) for pattern in signature.frames):
                return f"{frame.function} ({frame.file})"
    return None


def _line_seen(signature: Signature, seen: Observed) -> str | None:
    if not signature.logs:
        return ""
    for line in reversed(seen.lines):
        if any(pattern.search(line) for pattern in signature.logs):
            return f"log: {line.strip()[:160]}"
    return None


def release_of(version: str) -> tuple[int, ...]:
    """``2.11.0+cu130`` → (2, 11, 0); ``0.5.12.post1`` → (0, 5, 12); words end the release."""
    found = re.match(r"\d+(?:\.\d+)*", version.strip().lstrip("v"))
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _compare(version: tuple[int, ...], sign: str, bound: tuple[int, ...]) -> bool:
    length = max(len(version), len(bound))
    left = version + (0,) * (length - len(version))
    right = bound + (0,) * (length - len(bound))
    return {
        ">=": left >= right,
        "<=": left <= right,
        "==": left == right,
        ">": left > right,
        "<": left < right,
    }[sign]
