"""What the names of servers mean: TOML files and a small matcher.

Entries say what a name means, never what to conclude from it; conclusions are rules in `analysis/`.

    knowledge = load_knowledge()
    knowledge.find_server(processes)              "sglang"
    knowledge.find_role(process, "sglang")        scheduler, TP3, read in the title
    knowledge.match(stack, "sglang", role_id)     sglang.graph-capture, torch.barrier further in
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hangdoctor.knowledge.catalogue import Phase, PhaseMatch, Role, RoleMatch, Server
from hangdoctor.knowledge.entries import Contents, Example
from hangdoctor.knowledge.explain import explain_phase, explain_role, explain_signature
from hangdoctor.knowledge.loader import BUILT_IN, read_directory
from hangdoctor.knowledge.logs import LogReader
from hangdoctor.knowledge.machinery import MachineryFinder
from hangdoctor.knowledge.match import Matcher
from hangdoctor.knowledge.redaction import Redaction
from hangdoctor.knowledge.roles import RoleFinder
from hangdoctor.knowledge.servers import ServerFinder
from hangdoctor.knowledge.signatures import Observed, Signature, SignatureMatch, match_signatures
from hangdoctor.knowledge.tables import BadKnowledge
from hangdoctor.model import LogMessage, Process, Stack, Thread

__all__ = [
    "BadKnowledge",
    "Example",
    "Knowledge",
    "Observed",
    "Redaction",
    "Signature",
    "SignatureMatch",
    "load_knowledge",
]

_COMMON = frozenset(("build", "launch", "python", "ray", "torch"))
"""Files whose roles occur below every server: compilers, shells, interpreters' helpers, Ray's daemons."""


class Knowledge:
    """Everything known about servers. Immutable; answers are remembered, so one instance serves a whole run."""

    revision: str
    """First 12 hex digits of a hash over all files, so that a verdict can be reproduced."""
    servers: Mapping[str, Server]
    phases: Mapping[str, Phase]
    roles: Mapping[str, Role]
    redaction: Redaction
    signatures: tuple[Signature, ...]
    examples: tuple[Example, ...]

    def __init__(self, contents: Contents) -> None:
        assert contents.redaction is not None and contents.ranks is not None, "the loader checks this"
        self.revision = contents.revision
        self.servers = contents.servers
        self.phases = contents.phases
        self.roles = {rule.role.id: rule.role for rule in contents.roles}
        self.redaction = contents.redaction
        self.signatures = tuple(contents.signatures)
        self.examples = tuple(contents.examples)
        self.contents = contents
        self._matcher = Matcher(contents.rules, contents.servers)
        self._roles = RoleFinder(contents.roles, contents.ranks, _COMMON)
        self._servers = ServerFinder(contents.servers, self._roles)
        self._machinery = MachineryFinder(contents.machinery)
        self._logs = LogReader(contents.logs)

    def find_server(self, processes: Iterable[Process]) -> str | None:
        """The kind of job these processes are; ``None`` for plain Python and for what is not known."""
        return self._servers.find(processes)

    def find_role(self, process: Process, server: str | None) -> RoleMatch | None:
        """The role of a process and its rank, by title, command line, comm and environment; ``None`` if unknown."""
        return self._roles.by_process(process, self._scope(server))

    def find_role_by_stack(self, stack: Stack, server: str | None) -> RoleMatch | None:
        """The role of the process that this main-thread stack is of, by its entry function; without a rank."""
        return self._roles.by_stack(stack, self._scope(server))

    def match(self, stack: Stack, server: str | None, role: str | None = None) -> PhaseMatch | None:
        """The phase a stack is in. ``role`` is a role id (:attr:`Role.id`)."""
        return self._matcher.match(stack, server, role)

    def machinery(self, thread: Thread) -> str | None:
        """The pool of helper threads it belongs to (``gloo``, ``libuv workers`` …); such threads are never culprits."""
        return self._machinery.find(thread)

    def read_log_line(self, text: str, server: str | None = None) -> LogMessage | None:
        """What a log line says about phases, readiness, watchdogs and time-outs; ``None`` for all other lines.

        Fields hold ``server``, ``phase`` (an id) where the line belongs to one, ``pid`` where it says so, and the
        numbers in it by name. ``server`` leaves out lines of other servers; without it the words decide.
        """
        return self._logs.read(text, self._log_scope(server))

    def ready_line(self, server: str | None) -> str | None:
        """The words that a server logs once it serves."""
        known = self.servers.get(server) if server else None
        return known.ready if known else None

    def is_env_allowed(self, name: str) -> bool:
        """Whether an environment variable may be collected and shown with its value."""
        return self.redaction.is_env_allowed(name)

    def match_signatures(self, seen: Observed) -> tuple[SignatureMatch, ...]:
        """Known hangs that fit what was seen; hints, never proof."""
        return match_signatures(self.signatures, seen)

    def explain(self, name: str) -> str | None:
        """A phase, role or signature as a few paragraphs of plain text; ``None`` for an unknown id."""
        if name in self.phases:
            return explain_phase(self.phases[name])
        if name in self.roles:
            return explain_role(self.roles[name])
        for signature in self.signatures:
            if signature.id == name:
                return explain_signature(signature)
        return None

    def _log_scope(self, server: str | None) -> frozenset[str] | None:
        scope = self._scope(server)
        return None if scope is None else scope | _COMMON | {"torchrun"}

    def _scope(self, server: str | None) -> frozenset[str] | None:
        known = self.servers.get(server) if server else None
        return frozenset((known.name, *known.includes)) if known else None


def load_knowledge(directory: Path | None = None) -> Knowledge:
    """Reads the built-in knowledge, or that of another folder; raises :class:`BadKnowledge` for a faulty file."""
    return Knowledge(read_directory(directory or BUILT_IN))
