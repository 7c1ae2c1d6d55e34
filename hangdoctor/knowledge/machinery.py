"""Threads that belong to the machinery: they keep a server going and are never what holds it up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hangdoctor.knowledge.frames import FramePattern, StackContext
from hangdoctor.model import Frame, Thread

_MAX_STACKS = 20_000
_MAX_IDENTITIES = 2_000


@dataclass(frozen=True, slots=True)
class MachineryRule:
    """How one pool of helper threads is recognised. All patterns are alternatives."""

    name: str
    meaning: str
    comms: tuple[re.Pattern[str], ...] = ()
    """Full matches of the kernel's thread name (15 bytes)."""
    names: tuple[re.Pattern[str], ...] = ()
    """Full matches of Python's thread name."""
    stacks: tuple[FramePattern, ...] = ()
    """Innermost frames at which the thread is idle, or its entry function."""
    is_native: bool = False
    """The stacks count only for threads without a Python frame."""


class MachineryFinder:
    """Applies machinery rules to threads; names and stacks are few and remembered."""

    def __init__(self, rules: Iterable[MachineryRule]) -> None:
        self.rules = tuple(rules)
        self._by_name: dict[tuple[str | None, str | None], str | None] = {}
        self._by_stack: dict[tuple[Frame, ...], str | None] = {}
        self._by_identity: dict[int, tuple[tuple[Frame, ...], str | None]] = {}
        """The frames are kept, or another stack would get their identity."""

    def find(self, thread: Thread) -> str | None:
        """The name of the pool that the thread belongs to, or ``None`` for a thread that may do real work."""
        if thread.name == "MainThread":
            return None
        key = (thread.comm, thread.name)
        if key not in self._by_name:
            self._by_name[key] = self._find_by_name(thread.comm, thread.name)
        return self._by_name[key] or self._find_by_stack(thread)

    def _find_by_stack(self, thread: Thread) -> str | None:
        """Remembered, for threads of a pool stand in the same place on every rank and in every look."""
        if thread.stack is None:
            return None
        frames = thread.stack.frames
        known = self._by_identity.get(id(frames))
        if known is None:  # to look them up by what they are takes their hash, 15 us for 40 frames
            if len(self._by_identity) >= _MAX_IDENTITIES:
                self._by_identity.clear()
            known = self._by_identity[id(frames)] = (frames, self._find_by_frames(frames))
        return known[1]

    def _find_by_frames(self, frames: tuple[Frame, ...]) -> str | None:
        if frames not in self._by_stack:
            if len(self._by_stack) >= _MAX_STACKS:
                self._by_stack.clear()
            self._by_stack[frames] = self._match_stack(frames)
        return self._by_stack[frames]

    def _find_by_name(self, comm: str | None, name: str | None) -> str | None:
        for rule in self.rules:
            if comm and any(pattern.fullmatch(comm) for pattern in rule.comms):
                return rule.name
            if name and any(pattern.fullmatch(name) for pattern in rule.names):
                return rule.name
        return None

    def _match_stack(self, frames: tuple[Frame, ...]) -> str | None:
        context = StackContext(frames)
        has_python = any(not frame.is_native for frame in frames)
        for index, frame in enumerate(frames):
            for rule in self.rules:
                if rule.is_native and has_python:
                    continue
                for pattern in rule.stacks:
                    if pattern.fits(frame) and context.allows(pattern, index):
                        return rule.name
        return None
