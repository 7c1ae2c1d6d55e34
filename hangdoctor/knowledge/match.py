"""From a stack to a phase: which step of a server's life, and which kind of wait or work.

The rules, in the order in which they decide (the names in brackets are the real stacks that made them necessary):

1. Frames outside the innermost ``BaseProcess._bootstrap`` are ignored: after a fork they are the parent's.
2. The phase is the innermost own or wait frame of a start-up step; else the innermost own or wait frame of any other,
   unless an outer frame of a start-up step encloses it (a dummy forward); else the innermost outer frame, those
   that stay for life (``always``) last. A start-up frame inside a serving stack is a start-up activity at serving
   time (a kernel compiled for the first request).
3. An aspect (stage ``aspect``) says how the thread waits or works there: the innermost one. An aspect's outer frames
   are primitives through which many waits go (``select``, ``Condition.wait``); a named wait at most
   ``PRIMITIVE_REACH`` frames further out says which wait it is (``select`` below ``Popen._communicate``), else the
   outermost primitive there (``select`` below ``Connection._poll``).
4. Without a phase the aspect is the phase: the work that torch does (``torch.jit-compile``), else what it waits for,
   before how Python waits for it (``python.child-wait``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hangdoctor.knowledge.catalogue import Phase, PhaseMatch, Server, Stage, Via
from hangdoctor.knowledge.frames import FramePattern, StackContext, split_name
from hangdoctor.model import Frame, Stack

PRIMITIVE_REACH = 3
"""``select`` is 1 frame inside ``Popen._communicate`` and 3 inside ``_ConnectionBase.poll``."""
GENERIC_SERVERS = ("torch", "python")
_TORCH_JOB = "torchrun"
"""A target without a known server may be any torch job: it is matched like one of torchrun's."""
_CACHE_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class Rule:
    """One frame pattern of one phase."""

    phase: Phase
    via: Via
    pattern: FramePattern
    is_lifelong: bool = False
    """An outer frame that stays on the stack for the whole life of the process (``run_scheduler_process``)."""


@dataclass(frozen=True, slots=True)
class _Hit:
    frame: int
    rule: Rule


@dataclass(frozen=True, slots=True)
class _Scope:
    """Whose phases may occur in a job of one server."""

    certain: frozenset[str] = frozenset(GENERIC_SERVERS)
    embedded: tuple[tuple[str, str], ...] = ()
    """Servers that it may embed, with their package: they count where a frame of that package is on the stack."""

    def names(self, frames: tuple[Frame, ...]) -> frozenset[str]:
        present = {name for name, folder in self.embedded if any(folder in frame.file for frame in frames)}
        return self.certain | present if present else self.certain


class Matcher:
    """Applies all phases to stacks. Frames are looked up by function name once and remembered."""

    def __init__(self, rules: Iterable[Rule], servers: Mapping[str, Server]) -> None:
        self._by_name: dict[str, list[Rule]] = {}
        self._by_regex: list[Rule] = []
        for rule in rules:
            if rule.pattern.name is None:
                self._by_regex.append(rule)
            else:
                self._by_name.setdefault(rule.pattern.name, []).append(rule)
        self._scopes = {name: _scope(name, servers) for name in servers}
        self._frames: dict[tuple[str, str], tuple[Rule, ...]] = {}
        self._stacks: dict[tuple[tuple[tuple[str, str], ...], str | None, str | None], PhaseMatch | None] = {}

    def match(self, stack: Stack, server: str | None, role: str | None) -> PhaseMatch | None:
        """The phase of a stack; ``server`` and ``role`` (an id) narrow the search where they are known."""
        names = tuple((frame.function, frame.file) for frame in stack.frames)
        key = (names, server, role)
        if key not in self._stacks:
            if len(self._stacks) >= _CACHE_LIMIT:
                self._stacks.clear()
            self._stacks[key] = self._decide(stack.frames, server, role)
        return self._stacks[key]

    def _decide(self, frames: tuple[Frame, ...], server: str | None, role: str | None) -> PhaseMatch | None:
        known = self._scopes.get(server or _TORCH_JOB) or self._scopes.get(_TORCH_JOB, _Scope())
        own = own_frames(frames)
        hits = self._hits(own, known.names(own), role)
        steps = [hit for hit in hits if hit.rule.phase.stage is not Stage.ASPECT]
        aspects = [hit for hit in hits if hit.rule.phase.stage is Stage.ASPECT]
        chosen = _step(steps)
        if chosen is None:
            return _aspect_alone(aspects)
        aspect = _aspect([hit for hit in aspects if hit.frame <= chosen.frame])
        return PhaseMatch(
            phase=chosen.rule.phase,
            frame=chosen.frame,
            via=chosen.rule.via,
            aspect=aspect.rule.phase if aspect else None,
            aspect_frame=aspect.frame if aspect else None,
            enclosing=_enclosing(steps, chosen),
        )

    def _hits(self, frames: tuple[Frame, ...], scope: frozenset[str], role: str | None) -> list[_Hit]:
        hits: list[_Hit] = []
        context = StackContext(frames)
        learned = self._frames
        for index, frame in enumerate(frames):
            rules = learned.get((frame.function, frame.file))
            if rules is None:
                rules = self._learn(frame)
            for rule in rules:
                phase = rule.phase
                if phase.server not in scope or (role and phase.roles and role not in phase.roles):
                    continue
                if context.allows(rule.pattern, index):
                    hits.append(_Hit(index, rule))
        return hits

    def _learn(self, frame: Frame) -> tuple[Rule, ...]:
        if len(self._frames) >= _CACHE_LIMIT:
            self._frames.clear()
        named = self._by_name.get(split_name(frame.function)[0], ())
        found = tuple(rule for rule in (*named, *self._by_regex) if rule.pattern.fits(frame))
        self._frames[frame.function, frame.file] = found
        return found


def own_frames(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames that belong to the process itself: a forked child still carries the stack of its parent."""
    for index, frame in enumerate(frames):
        if frame.function.endswith("_bootstrap") and frame.file.endswith("multiprocessing/process.py"):
            return frames[: index + 1]
    return frames


def _scope(name: str, servers: Mapping[str, Server]) -> _Scope:
    included = [servers[other] for other in servers[name].includes]
    return _Scope(
        certain=frozenset((name, *(s.name for s in included if s.package is None), *GENERIC_SERVERS)),
        embedded=tuple((s.name, f"{s.package}/") for s in included if s.package is not None),
    )


def _step(steps: list[_Hit]) -> _Hit | None:
    """Rule 2: ``steps`` are ordered from the innermost frame outwards."""
    inner = [hit for hit in steps if hit.rule.via is not Via.OUTER]
    started = next((hit for hit in inner if hit.rule.phase.stage is Stage.STARTUP), None)
    if started is not None:
        return started
    outer = [hit for hit in steps if hit.rule.via is Via.OUTER and not hit.rule.is_lifelong]
    found = next(iter(inner or outer or steps), None)
    return next((hit for hit in outer if found and _is_startup_around(hit, found)), found)


def _is_startup_around(outer: _Hit, inner: _Hit) -> bool:
    is_startup = outer.rule.phase.stage is Stage.STARTUP and inner.rule.phase.stage is not Stage.STARTUP
    return is_startup and outer.frame > inner.frame


def _aspect(aspects: list[_Hit]) -> _Hit | None:
    """Rule 3."""
    if not aspects:
        return None
    first = aspects[0]
    if first.rule.via is not Via.OUTER:
        return first
    near = [hit for hit in aspects if hit.frame - first.frame <= PRIMITIVE_REACH]
    return next((hit for hit in near if hit.rule.via is not Via.OUTER), near[-1])


def _aspect_alone(aspects: list[_Hit]) -> PhaseMatch | None:
    """Rule 4."""
    how = _aspect(aspects)
    if how is None:
        return None
    torch = [hit for hit in aspects if hit.rule.phase.server == "torch" and hit.rule.via is not Via.OUTER]
    work = [hit for hit in torch if hit.rule.via is Via.OWN]
    what = next(iter(work or torch), how)
    return PhaseMatch(what.rule.phase, what.frame, what.rule.via, how.rule.phase, how.frame)


def _enclosing(steps: list[_Hit], chosen: _Hit) -> tuple[Phase, ...]:
    found: dict[str, Phase] = {}
    for hit in steps:
        phase = hit.rule.phase
        if hit.frame >= chosen.frame and hit.rule.via is not Via.OUTER and phase.id != chosen.rule.phase.id:
            found.setdefault(phase.id, phase)
    return tuple(found.values())
