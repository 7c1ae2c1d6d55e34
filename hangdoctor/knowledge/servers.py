"""From processes to the kind of job they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from hangdoctor.knowledge.catalogue import RoleKind, Server
from hangdoctor.knowledge.roles import RoleFinder
from hangdoctor.model import Process

_LAUNCHERS = ("ray", "megatron", "accelerate", "deepspeed", "torchrun")
"""Most specific first: a Megatron job is also one of torchrun."""


class ServerFinder:
    """Lets the roles vote: a title or entry function belongs to one server only."""

    def __init__(self, servers: Mapping[str, Server], roles: RoleFinder) -> None:
        self._servers = servers
        self._roles = roles
        self._packages = {server.package: name for name, server in servers.items() if server.package}

    def find(self, processes: Iterable[Process]) -> str | None:
        """The engine that most processes belong to (not what embeds it); else the most specific launcher."""
        votes = Counter(server for process in processes if (server := self._of(process)) is not None)
        engines = [name for name in votes if self._servers[name].kind == "engine"]
        if engines:
            inner = [name for name in engines if not set(engines) & set(self._servers[name].includes)]
            return max(inner or engines, key=lambda name: (votes[name], name))
        return next((name for name in _LAUNCHERS if votes[name]), None)

    def _of(self, process: Process) -> str | None:
        found = self._roles.by_process(process, None)
        if found is None:
            return self._by_stack(process)
        if found.role.kind in (RoleKind.COMPILER, RoleKind.HELPER):
            return None
        if found.role.server == "torchrun" and found.role.kind is RoleKind.RANK:
            return None  # RANK in the environment is every torch job's; only an agent makes it torchrun's
        known = self._servers.get(found.role.server)
        return known.name if known is not None and known.kind != "library" else None

    def _by_stack(self, process: Process) -> str | None:
        # Two hundred threads of a pool are in one place.
        stacks = {id(thread.stack): thread.stack for thread in process.threads if thread.stack is not None}
        for stack in stacks.values():
            found = self._roles.by_stack(stack, None)
            if found is not None and found.role.server in self._servers:
                return found.role.server
            for frame in reversed(stack.frames):
                package = _package(frame.file)
                if package in self._packages:
                    return self._packages[package]
        return None


def _package(file: str) -> str:
    """``/x/site-packages/vllm/v1/core.py`` and ``vllm/v1/core.py`` → ``vllm``."""
    tail = file.rpartition("-packages/")[2]
    return tail.lstrip("/").split("/", 1)[0]
