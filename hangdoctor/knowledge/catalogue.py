"""The shapes of what is known about servers: roles and phases. Data only; matching is in `match.py`.

Entries say what a name means, never what to conclude from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from hangdoctor.model import Activity, Rank


class RoleKind(str, Enum):
    """What part a process plays in a hang."""

    RANK = "rank"
    """Holds a share of the model and takes part in collectives."""
    CONTROL = "control"
    """Feeds or supervises ranks: API server, engine core, detokenizer, controller."""
    LAUNCHER = "launcher"
    """Only waits for its children: torchrun agent, shell, multiprocessing parent."""
    COMPILER = "compiler"
    """A build step of a rank: ninja, nvcc, cicc, ptxas, gcc, cc1plus, ld."""
    HELPER = "helper"
    """Never holds anything up: resource tracker, idle compile workers, data loaders' monitors."""


class Stage(str, Enum):
    """Where in a server's life a phase belongs."""

    STARTUP = "startup"
    SERVING = "serving"
    IDLE = "idle"
    SHUTDOWN = "shutdown"
    ASPECT = "aspect"
    """Says what kind of wait or work it is, in any stage (collective, lock file, JIT, import …)."""


class Via(str, Enum):
    """How a frame names a phase."""

    OWN = "own"
    """The frame itself is the work of the phase."""
    WAIT = "wait"
    """The frame waits for peers within the phase."""
    OUTER = "outer"
    """An enclosing caller; counts only when nothing further in matched."""


@dataclass(frozen=True, slots=True)
class Server:
    """A kind of job: an LLM server, a launcher of ranks, or a library that both use."""

    name: str
    title: str
    kind: str
    """``engine``, ``launcher`` (of training jobs and the like) or ``library`` (below every other)."""
    includes: tuple[str, ...] = ()
    """Servers whose phases also occur in it: Dynamo embeds vLLM and SGLang."""
    package: str | None = None
    """Python package by which its frames are recognised."""
    ready: str | None = None
    """The words it logs once it serves."""
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """A kind of process of one server."""

    id: str
    title: str
    kind: RoleKind
    server: str
    is_front_end: bool = False
    """Takes requests and computes nothing: it serves nobody once the ranks behind it are gone."""
    remote_ranks: tuple[re.Pattern[str], ...] = ()
    """Searched in a front end's command line: the ranks are no processes of this host's tree."""


@dataclass(frozen=True, slots=True)
class RoleMatch:
    """The role of one process, its coordinates where the same text gave them, and where they were read."""

    role: Role
    rank: Rank | None
    source: str
    """``title``, ``command line``, ``comm``, ``environment``, ``stack``."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A step in a server's life, recognised by frames."""

    id: str
    title: str
    """Finishes the sentence "TP1 is …": ``loading weights``."""
    server: str
    stage: Stage
    meaning: str
    activity: Activity | None = None
    """What a thread in it does, when the phase alone tells."""
    cause: str | None = None
    """Cause id (report.Cause) that this phase explains when it is what holds things up."""
    waits_for: str | None = None
    """``peers``, ``workers``, ``engine-core``, ``children``, ``client``, ``gpu``, ``lock-file`` …"""
    budget_s: float | None = None
    """How long it may show no progress at all before that is suspicious; ``None`` is unknown."""
    advice: str | None = None
    order: int = 0
    roles: tuple[str, ...] = ()
    """Ids of the roles that can be in it; empty means any."""
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PhaseMatch:
    """What a stack says: the phase, the frame that says so, and the kind of wait or work further in."""

    phase: Phase
    frame: int
    """Index into ``stack.frames`` (0 is innermost) of the deciding frame."""
    via: Via
    aspect: Phase | None = None
    aspect_frame: int | None = None
    enclosing: tuple[Phase, ...] = ()
    """Other steps that the same stack is inside of, inner to outer: a kernel compile within a graph capture."""
