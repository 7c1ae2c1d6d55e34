"""TOML files to rules. Strict: unknown keys, duplicate ids, missing examples and bad patterns are refused.

One file a server. A file may hold ``[server]``, ``[[role]]``, ``[[phase]]``, ``[[machinery]]``, ``[[log]]``,
``[[signature]]``, ``[redaction]`` and ``[ranks]``; nothing else. README.md beside this file describes the keys.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from hangdoctor.knowledge.catalogue import Stage, Via
from hangdoctor.knowledge.entries import (
    Contents,
    read_log,
    read_machinery,
    read_phase,
    read_ranks,
    read_redaction,
    read_role,
    read_server,
    read_signature,
)
from hangdoctor.knowledge.match import Rule
from hangdoctor.knowledge.tables import BadKnowledge, Table, read_toml

BUILT_IN = Path(__file__).parent


def read_directory(directory: Path) -> Contents:
    """Reads all ``*.toml`` of a folder; raises :class:`BadKnowledge` naming file, table and key."""
    paths = sorted(directory.glob("*.toml"))
    if not paths:
        raise BadKnowledge(f"{directory}: no knowledge files", hint="A folder with *.toml files is expected.")
    contents = Contents()
    digest = hashlib.sha256()
    for path in paths:
        table = read_toml(path)
        _read_file(table, path.stem, contents)
        table.close()
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    contents.revision = digest.hexdigest()[:12]
    _lend(contents)
    _check_references(contents)
    return contents


def _read_file(file: Table, stem: str, into: Contents) -> None:
    server = stem
    about = file.table("server")
    if about is not None:
        server = read_server(about, into)
    for table in file.tables("role"):
        read_role(table, server, into)
    for table in file.tables("phase"):
        read_phase(table, server, into)
    for table in file.tables("machinery", "name"):
        read_machinery(table, into)
    for table in file.tables("log", "literal"):
        read_log(table, server, into)
    for table in file.tables("signature"):
        read_signature(table, into)
    redaction = file.table("redaction")
    if redaction is not None:
        into.redaction = read_redaction(redaction)
    ranks = file.table("ranks")
    if ranks is not None:
        into.ranks = read_ranks(ranks)


def _lend(contents: Contents) -> None:
    """Gives phases the frames of the aspects they name: a server's JIT phase is any JIT compiler at work."""
    for phase, aspects, where in contents.borrowed:
        for aspect in aspects:
            known = contents.phases.get(aspect)
            if known is None or known.stage is not Stage.ASPECT:
                raise BadKnowledge(f"{where}: 'aspects' names {aspect!r}, which is no aspect")
            own = [rule for rule in contents.rules if rule.phase is known and rule.via is not Via.OUTER]
            contents.rules.extend(Rule(phase, rule.via, rule.pattern) for rule in own)


def _check_references(contents: Contents) -> None:
    roles = {rule.role.id for rule in contents.roles}
    for phase in contents.phases.values():
        unknown = [role for role in phase.roles if role not in roles]
        if unknown:
            raise BadKnowledge(f"[[phase]] {phase.id}: 'roles' names {unknown[0]!r}, which is no role")
    for server in contents.servers.values():
        missing = [name for name in server.includes if name not in contents.servers]
        if missing:
            raise BadKnowledge(f"[server] {server.name}: 'includes' names {missing[0]!r}, which is no server")
    for rule in contents.logs:
        if rule.phase is not None and rule.phase not in contents.phases:
            raise BadKnowledge(f"[[log]] {rule.literal}: 'phase' names {rule.phase!r}, which is no phase")
    for signature in contents.signatures:
        absent = [phase for phase in signature.phases if phase not in contents.phases]
        if absent:
            raise BadKnowledge(
                f"[[signature]] {signature.id}: 'phases' names {absent[0]!r}, which is no phase"
            )
    if contents.redaction is None or contents.ranks is None:
        raise BadKnowledge(
            "tables [redaction] and [ranks] are missing",
            hint="Copy all files of the built-in knowledge and change the copies.",
        )
