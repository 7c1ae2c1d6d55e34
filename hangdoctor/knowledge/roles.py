"""From a process to its role and rank: by title, command line, comm and environment, in that order of trust.

setproctitle replaces argv by a title (and destroys /proc/PID/environ), pads it to the old length, and the kernel cuts
it to 15 bytes for ``comm``; a dying process has an empty command line and only ``comm`` is left.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from hangdoctor.knowledge.catalogue import Role, RoleMatch
from hangdoctor.knowledge.frames import FramePattern
from hangdoctor.knowledge.match import own_frames
from hangdoctor.model import Frame, Process, Rank, Stack

_COORDINATE = re.compile(r"(ATTN_CP|MOE_DP|MOE_EP|DCP|PCP|DP|PP|TP|EP)(\d+)")
"""Longest names first. ATTN_CP, MOE_DP and DCP divide the TP group and add nothing to TP's number."""
_MAX_FRAMES = 50_000
_MAX_COMMANDS = 50_000
_COMM_BYTES = 15
_FIELDS = {"DP": "dp", "PP": "pp", "TP": "tp", "EP": "ep", "PCP": "cp", "ATTN_CP": "cp"}


@dataclass(frozen=True, slots=True)
class RoleRule:
    """How one role is recognised. All patterns are alternatives."""

    role: Role
    titles: tuple[re.Pattern[str], ...] = ()
    commands: tuple[re.Pattern[str], ...] = ()
    """Searched in the command line, arguments joined by blanks."""
    programs: frozenset[str] = frozenset()
    """Base names of the program (argv[0] or comm), such as ``cicc``."""
    comms: tuple[re.Pattern[str], ...] = ()
    stacks: tuple[FramePattern, ...] = ()
    has_rank_variables: bool = False
    """The environment's RANK is this process' own (false where a parent's may have been inherited)."""
    needs_rank: bool = False
    """The role holds only for a process that has a rank; tried after all others."""
    needs_server: bool = False
    """The role holds only when the server is known from other processes (any program may spawn children)."""
    examples: tuple[str, ...] = ()
    counterexamples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankVariables:
    """Names of the variables by which one launcher tells a process its rank."""

    rank: str
    local: str | None = None


@dataclass(frozen=True, slots=True)
class RankSources:
    """Where ranks of untitled processes are read, best first."""

    flags: tuple[re.Pattern[str], ...]
    """With named groups ``rank`` or ``local``."""
    variables: tuple[RankVariables, ...]


_Fitting: TypeAlias = "tuple[RoleMatch | None, tuple[tuple[RoleRule, str], ...]]"
"""The role by title, else the rules that fit in another way, each with the source that fits."""


class RoleFinder:
    """Applies role rules to processes and stacks."""

    def __init__(self, rules: Iterable[RoleRule], sources: RankSources, common: frozenset[str]) -> None:
        self._rules = tuple(sorted(rules, key=lambda rule: rule.needs_rank))
        self._sources = sources
        self._common = common
        self._entries_of: dict[Frame, tuple[RoleRule, ...]] = {}
        self._fitting: dict[tuple[frozenset[str] | None, str, str | None], _Fitting] = {}

    def by_process(self, process: Process, servers: frozenset[str] | None) -> RoleMatch | None:
        """The role of a process among those of ``servers`` (``None``: all) and the common ones."""
        command, comm = _texts_of(process)
        title, others = self._fitting_to(servers, command, comm)
        if title is not None or not others:
            return title
        rank = self._declared_rank(command, process.environ or {})
        for rule, source in others:
            if rank is not None or not rule.needs_rank:
                return self._with_rank(rule, source, rank)
        return None

    def _fitting_to(self, servers: frozenset[str] | None, command: str, comm: str | None) -> _Fitting:
        """Asked once a command line: thousands of ranks have the same few, or a title each in every look."""
        key = servers, command, comm
        known = self._fitting.get(key)
        if known is None:
            if len(self._fitting) >= _MAX_COMMANDS:
                self._fitting.clear()
            known = self._fitting[key] = _find_fitting(self._rules_of(servers), command, comm)
        return known

    def _rules_of(self, servers: frozenset[str] | None) -> tuple[RoleRule, ...]:
        if servers is None:
            return tuple(rule for rule in self._rules if not rule.needs_server)
        scope = servers | self._common
        return tuple(rule for rule in self._rules if rule.role.server in scope)

    def by_stack(self, stack: Stack, servers: frozenset[str] | None) -> RoleMatch | None:
        """The role whose entry function is on the stack, the innermost: a forked child keeps its parent's."""
        for frame in own_frames(stack.frames):
            for rule in self._entries(frame):
                if servers is None or rule.role.server in servers:
                    return RoleMatch(rule.role, None, "stack")
        return None

    def _entries(self, frame: Frame) -> tuple[RoleRule, ...]:
        """The rules whose entry a frame is; asked once a frame, for most threads of most ranks are in the same."""
        known = self._entries_of.get(frame)
        if known is None:
            if len(self._entries_of) >= _MAX_FRAMES:
                self._entries_of.clear()
            known = self._entries_of[frame] = tuple(rule for rule in self._rules if _is_entry(rule, frame))
        return known

    def _with_rank(self, rule: RoleRule, source: str, rank: tuple[Rank, str] | None) -> RoleMatch:
        if rank is None or not rule.has_rank_variables:
            return RoleMatch(rule.role, None, source)
        return RoleMatch(rule.role, rank[0], rank[1])

    def _declared_rank(self, command: str, environ: Mapping[str, str]) -> tuple[Rank, str] | None:
        """The rank of an untitled process; a flag was given to this very process, a variable may be older."""
        flag = self._flag_rank(command)
        variables = self._variable_rank(environ)
        if flag is None or variables is None:
            known = flag or variables
            return None if known is None else (known, "command line" if flag else "environment")
        if flag.global_rank is not None:
            return replace(flag, local=variables.local if flag.local is None else flag.local), "command line"
        return replace(variables, local=flag.local), "environment"

    def _variable_rank(self, environ: Mapping[str, str]) -> Rank | None:
        for names in self._sources.variables:
            rank = _number(environ.get(names.rank))
            if rank is not None:
                return Rank(global_rank=rank, local=_number(environ.get(names.local or "")))
        return None

    def _flag_rank(self, command: str) -> Rank | None:
        for flag in self._sources.flags:
            found = flag.search(command)
            if found is not None:
                groups = found.groupdict()
                return Rank(global_rank=_number(groups.get("rank")), local=_number(groups.get("local")))
        return None


def _find_fitting(rules: Iterable[RoleRule], command: str, comm: str | None) -> _Fitting:
    rules = tuple(rules)
    titles = (found for rule in rules if command and (found := _by_title(rule, command)) is not None)
    title = next(titles, None)
    if title is not None:
        return title, ()
    sources = ((rule, _source(rule, command, comm)) for rule in rules)
    return None, tuple((rule, source) for rule, source in sources if source is not None)


def _texts_of(process: Process) -> tuple[str, str | None]:
    """Title or command line as one line without setproctitle's padding, and comm.

    A process that is being torn down has no command line; ps then shows its comm in brackets, and so may a dump.
    """
    text = " ".join(process.command).replace("\0", " ").strip()
    dying = re.fullmatch(r"\[([^\[\]]+)\]", text)
    return ("", dying[1]) if dying else (text, process.comm)


def read_rank(parts: str) -> Rank | None:
    """``_DP0_PP1_TP3_EP3`` or ``DP0 TP3`` as a rank; ``None`` when no coordinate is in it."""
    found: dict[str, int] = {}
    for name, digits in _COORDINATE.findall(parts):
        found.setdefault(_FIELDS.get(name, name), int(digits))
    rank = Rank(
        dp=found.get("dp"), pp=found.get("pp"), cp=found.get("cp"), tp=found.get("tp"), ep=found.get("ep")
    )
    return None if rank == Rank() else rank


def _by_title(rule: RoleRule, title: str) -> RoleMatch | None:
    for pattern in rule.titles:
        found = pattern.search(title)
        if found is not None:
            parts = found.groupdict().get("parts")
            return RoleMatch(rule.role, read_rank(parts) if parts else None, "title")
    return None


def _source(rule: RoleRule, command: str, comm: str | None) -> str | None:
    """Which of program, command line and comm fits, if any."""
    program = os.path.basename(command.split(" ", 1)[0]) if command else ""
    if program in rule.programs or any(pattern.search(command) for pattern in rule.commands if command):
        return "command line"
    if program and any(pattern.fullmatch(program[:_COMM_BYTES]) for pattern in rule.comms):
        return "command line"
    if comm and (comm in rule.programs or any(pattern.fullmatch(comm) for pattern in rule.comms)):
        return "comm"
    return None


def _is_entry(rule: RoleRule, frame: Frame) -> bool:
    return any(pattern.fits(frame) for pattern in rule.stacks)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None
