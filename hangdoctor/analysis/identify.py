"""Who is who: role and rank of every process, from the most to the least trustworthy source.

Title and command line first, then the live environment, then the outermost frames, then the order in which a
parent started its children (weak, and marked so). A process that is being torn down has lost its title; its
earlier looks are asked too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoctor.case import Key
from hangdoctor.knowledge import Knowledge
from hangdoctor.knowledge.catalogue import Role, RoleKind, RoleMatch
from hangdoctor.model import Capture, Process, Rank

PROCESS = Role("process", "process", RoleKind.RANK, "python")
"""A Python process that no knowledge names: in a plain torch.distributed job that is a rank."""
PARENT = Role("parent", "parent process", RoleKind.LAUNCHER, "python")
CHILD = Role("child", "child of a rank", RoleKind.HELPER, "python")
"""Started by a rank for a purpose that is not known; blamed only when something waits for it."""
FOREIGN = Role("other", "other process", RoleKind.HELPER, "python")
"""Not Python and not known: listed, never blamed."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What is known of one process before its threads are looked at."""

    key: Key
    looks: tuple[Process | None, ...]
    role: Role | None
    rank: Rank | None

    @property
    def last(self) -> Process:
        """The newest look at it."""
        return next(look for look in reversed(self.looks) if look is not None)


def key_of(process: Process) -> Key:
    """The identity of a process."""
    return Key(process.host, process.pid, process.start_ticks)


def collect_identities(capture: Capture, knowledge: Knowledge, server: str | None) -> tuple[Identity, ...]:
    """Every process of the capture with the role and rank that its own text gives it."""
    looks: dict[Key, list[Process | None]] = {}
    count = len(capture.snapshots)
    for index, snapshot in enumerate(capture.snapshots):
        for process in snapshot.processes:
            looks.setdefault(key_of(process), [None] * count)[index] = process
    found = [_identify(key, tuple(seen), knowledge, server) for key, seen in looks.items()]
    ranks = {(i.key.host, i.key.pid): i.rank for i in found if i.rank is not None}
    return tuple(_without_inherited_rank(identity, ranks) for identity in found)


def _without_inherited_rank(identity: Identity, ranks: Mapping[tuple[str | None, int], Rank]) -> Identity:
    """A helper started by a rank inherits RANK in its environment; that does not make it a rank."""
    parent = ranks.get((identity.key.host, identity.last.ppid or 0))
    if parent is None or identity.rank is None or parent.label != identity.rank.label:
        return identity
    return replace(identity, role=CHILD, rank=None)


def _identify(
    key: Key, looks: tuple[Process | None, ...], knowledge: Knowledge, server: str | None
) -> Identity:
    role: Role | None = None
    rank: Rank | None = None
    for process in reversed([look for look in looks if look is not None]):
        match = knowledge.find_role(process, server) or _role_by_stack(process, knowledge, server)
        if match is None or (server is None and _is_of_a_server(match.role, knowledge)):
            continue  # one process alone does not make a server: any Python program may spawn children
        role = role or match.role
        if rank is None and match.rank is not None and match.role.kind is RoleKind.RANK:
            rank = match.rank
        if rank is not None:
            break
    if rank is None:
        hint = next((look.rank_hint for look in looks if look is not None and look.rank_hint), None)
        rank = parse_rank(hint) if hint else None
        if rank is not None and role is None:
            role = PROCESS  # the text calls it a rank: also one that shows no thread (NCCL's watchdog, RAS)
    if rank is not None and key.host is not None and rank.host is None:
        rank = replace(rank, host=key.host)
    return Identity(key, looks, role, rank)


def _is_of_a_server(role: Role, knowledge: Knowledge) -> bool:
    """Whether a role exists in one engine only. RANK in the environment makes a rank without any launcher."""
    known = knowledge.servers.get(role.server)
    return known is not None and known.kind == "engine"


def _role_by_stack(process: Process, knowledge: Knowledge, server: str | None) -> RoleMatch | None:
    for thread in process.threads:
        if thread.stack is not None and (thread.tid in (process.pid, None) or thread.name == "MainThread"):
            match = knowledge.find_role_by_stack(thread.stack, server)
            if match is not None:
                return match
    return None


_PARTS = re.compile(r"(DP|PP|TP|EP)[ _=:]?(\d+)", re.IGNORECASE)
_PLAIN = re.compile(r"\brank[ _=:#]*(\d+)", re.IGNORECASE)


def parse_rank(text: str) -> Rank:
    """``TP1``, ``DP0 TP3 EP3``, ``rank 5`` → coordinates; anything else is kept verbatim."""
    parts = {name.lower(): int(value) for name, value in _PARTS.findall(text)}
    plain = _PLAIN.search(text)
    if parts or plain:
        return Rank(
            global_rank=int(plain[1]) if plain else None,
            tp=parts.get("tp"),
            pp=parts.get("pp"),
            dp=parts.get("dp"),
            ep=parts.get("ep"),
        )
    return Rank(text=text)


def number_unnamed_ranks(identities: Sequence[Identity], expected: int | None) -> dict[Key, Rank]:
    """Ranks for siblings that carry no number yet, by elimination or by the order of their start.

    A vLLM worker has no number before its process group exists, and nothing else tells. Pids wrap, so the start
    time decides; when some siblings do have numbers the missing ones are dealt out. ``expected`` ranks at most:
    a server starts its ranks before its other children, which look alike until they have a title.
    """
    families: dict[tuple[str | None, int | None], list[Identity]] = defaultdict(list)
    for identity in identities:
        if identity.role is not None and identity.role.kind is RoleKind.RANK:
            families[(identity.key.host, identity.last.ppid)].append(identity)
    dealt: dict[Key, Rank] = {}
    for siblings in families.values():
        unnamed = [i for i in siblings if i.rank is None]
        if not unnamed or len(siblings) < 2:
            continue
        if all(i.last.ppid is None and i.key.start_ticks is None for i in unnamed):
            dealt.update(_numbered_apart(unnamed))  # a foreign dump: neither family nor order is known
            continue
        named = [i.rank for i in siblings if i.rank is not None]
        taken = {_ordinal(rank) for rank in named}
        free = (n for n in range(expected or len(siblings) + len(taken)) if n not in taken)
        coordinate = _coordinate(named, siblings)
        for identity in sorted(unnamed, key=lambda i: (i.key.start_ticks or 0, i.key.pid)):
            number = next(free, None)
            if number is None:
                break
            dealt[identity.key] = Rank(
                tp=number if coordinate == "tp" else None,
                global_rank=number if coordinate == "global_rank" else None,
                local=number if coordinate == "local" else None,
                host=identity.key.host,
                text="by order of start",
            )
    return dealt


def _numbered_apart(unnamed: Sequence[Identity]) -> dict[Key, Rank]:
    """Names that tell processes without a pid apart: the place of their dump in the text, and no rank."""
    nameless = [i for i in unnamed if i.last.known_pid is None]
    if len(nameless) < 2:
        return {}
    return {i.key: Rank(text=f"process {-i.key.pid}", host=i.key.host) for i in nameless}


def _coordinate(named: Sequence[Rank], siblings: Sequence[Identity]) -> str:
    """Which number the siblings go by: the one that those with a number have."""
    for rank in named:
        for name in ("tp", "global_rank", "local"):
            if getattr(rank, name) is not None:
                return name
    return "local" if any(i.role is PROCESS for i in siblings) else "tp"


def _ordinal(rank: Rank | None) -> int | None:
    if rank is None:
        return None
    for value in (rank.tp, rank.global_rank, rank.local):
        if value is not None:
            return value
    return None
