"""Tables of knowledge files to typed entries; everything that a single table can get wrong is refused here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hangdoctor.knowledge.catalogue import Phase, Role, RoleKind, Server, Stage, Via
from hangdoctor.knowledge.frames import FramePattern, parse, parse_stack
from hangdoctor.knowledge.logs import LOG_KINDS, LogRule
from hangdoctor.knowledge.machinery import MachineryRule
from hangdoctor.knowledge.match import Rule
from hangdoctor.knowledge.redaction import Redaction
from hangdoctor.knowledge.roles import RankSources, RankVariables, RoleRule
from hangdoctor.knowledge.signatures import Signature, Versions
from hangdoctor.knowledge.tables import Table
from hangdoctor.model import Activity, Frame

WAITS_FOR = (
    "children",
    "client",
    "engine-core",
    "gpu",
    "lock",
    "lock-file",
    "network",
    "operator",
    "parent",
    "peers",
    "queue",
    "storage",
    "thread",
    "time",
    "trainer",
    "workers",
)
"""What a phase may wait for."""


@dataclass(frozen=True, slots=True)
class Example:
    """A stack that must (or must not) be recognised as a phase."""

    phase: str
    server: str
    role: str | None
    text: str
    frames: tuple[Frame, ...]
    matches: bool


@dataclass(slots=True)
class Contents:
    """Everything read so far, in the order of the files (alphabetical) and of the tables in them."""

    revision: str = ""
    servers: dict[str, Server] = field(default_factory=dict)
    phases: dict[str, Phase] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    roles: list[RoleRule] = field(default_factory=list)
    machinery: list[MachineryRule] = field(default_factory=list)
    logs: list[LogRule] = field(default_factory=list)
    signatures: list[Signature] = field(default_factory=list)
    borrowed: list[tuple[Phase, tuple[str, ...], str]] = field(default_factory=list)
    """Phases that count an aspect's frames as their own, the aspects' ids, and where that is written."""
    redaction: Redaction | None = None
    ranks: RankSources | None = None


def read_server(table: Table, into: Contents) -> str:
    """``[server]``; returns its name."""
    server = Server(
        name=table.text("name"),
        title=table.text("title"),
        kind=table.choice("kind", ("engine", "launcher", "library")),
        includes=table.texts("includes"),
        package=table.optional_text("package"),
        ready=table.optional_text("ready"),
        link=table.optional_text("link"),
    )
    table.close()
    if server.name in into.servers:
        raise table.complain(f"server {server.name!r} is already described in another file")
    into.servers[server.name] = server
    return server.name


def read_role(table: Table, server: str, into: Contents) -> None:
    """``[[role]]``."""
    role = Role(
        id=table.text("id"),
        title=table.text("title"),
        kind=RoleKind(table.choice("kind", tuple(kind.value for kind in RoleKind))),
        server=server,
        is_front_end=table.flag("front_end"),
        remote_ranks=table.regexes("remote_ranks"),
    )
    rule = RoleRule(
        role=role,
        titles=table.regexes("titles"),
        commands=table.regexes("commands"),
        programs=frozenset(table.texts("programs")),
        comms=table.regexes("comms"),
        stacks=_patterns(table, "stacks"),
        has_rank_variables=table.flag("rank_variables"),
        needs_rank=table.flag("needs_rank"),
        needs_server=table.flag("needs_server"),
        examples=table.texts("examples"),
        counterexamples=table.texts("counterexamples"),
    )
    table.close()
    if any(known.role.id == role.id for known in into.roles):
        raise table.complain("a role with this id is already there")
    if not (rule.titles or rule.commands or rule.programs or rule.comms or rule.stacks):
        raise table.complain("nothing says how the role is recognised")
    if not rule.examples or not rule.counterexamples:
        raise table.complain("needs at least one entry in 'examples' and one in 'counterexamples'")
    into.roles.append(rule)


def read_phase(table: Table, server: str, into: Contents) -> None:
    """``[[phase]]``."""
    phase = _phase(table, server)
    if not phase.id.startswith(f"{server}."):
        raise table.complain(f"the id must begin with {server + '.'!r}, the server of this file")
    if phase.id in into.phases:
        raise table.complain("a phase with this id is already there")
    into.phases[phase.id] = phase
    rules = [
        Rule(phase, via, pattern)
        for via in (Via.OWN, Via.WAIT, Via.OUTER)
        for pattern in _patterns(table, via.value)
    ]
    rules += [Rule(phase, Via.OUTER, pattern, is_lifelong=True) for pattern in _patterns(table, "always")]
    borrowed = table.texts("aspects")
    if not rules and not borrowed:
        raise table.complain("no frames: give 'own', 'wait', 'outer', 'always' or 'aspects'")
    into.rules.extend(rules)
    if borrowed:
        into.borrowed.append((phase, borrowed, table.where))
    into.examples.extend(_examples(table, phase))
    table.close()


def _phase(table: Table, server: str) -> Phase:
    activity = table.choice("activity", tuple(Activity.__members__)) if table.has("activity") else None
    return Phase(
        id=table.text("id"),
        title=table.text("title"),
        server=server,
        stage=Stage(table.choice("stage", tuple(stage.value for stage in Stage))),
        meaning=table.text("meaning"),
        activity=None if activity is None else Activity[activity],
        cause=table.optional_text("cause"),
        waits_for=table.choice("waits_for", WAITS_FOR) if table.has("waits_for") else None,
        budget_s=table.number("budget_s"),
        advice=table.optional_text("advice"),
        order=table.whole("order", 0),
        roles=table.texts("roles"),
        links=table.texts("links"),
    )


def _examples(table: Table, phase: Phase) -> Iterable[Example]:
    role = table.optional_text("example_role")
    for key, matches in (("examples", True), ("counterexamples", False)):
        texts = table.texts(key)
        if not texts:
            raise table.complain(f"needs at least one stack in {key!r}")
        for text in texts:
            try:
                frames = parse_stack(text)
            except ValueError as problem:
                raise table.complain(f"{key!r}: {problem}") from problem
            yield Example(phase.id, phase.server, role, text, frames, matches)


def _patterns(table: Table, key: str) -> tuple[FramePattern, ...]:
    found = []
    for text in table.texts(key):
        try:
            found.append(parse(text))
        except ValueError as problem:
            raise table.complain(f"{key!r}: {text!r}: {problem}") from problem
    return tuple(found)


def read_machinery(table: Table, into: Contents) -> None:
    """``[[machinery]]``."""
    rule = MachineryRule(
        name=table.text("name"),
        meaning=table.text("meaning"),
        comms=table.regexes("comms"),
        names=table.regexes("names"),
        stacks=_patterns(table, "stacks"),
        is_native=table.flag("is_native"),
    )
    table.close()
    if any(known.name == rule.name for known in into.machinery):
        raise table.complain("machinery with this name is already there")
    if not (rule.comms or rule.names or rule.stacks):
        raise table.complain("nothing says how the threads are recognised")
    into.machinery.append(rule)


def read_log(table: Table, server: str, into: Contents) -> None:
    """``[[log]]``."""
    rule = LogRule(
        kind=table.choice("kind", LOG_KINDS),
        literal=table.text("literal"),
        pattern=table.regex("pattern"),
        server=server,
        phase=table.optional_text("phase"),
        meaning=table.text("meaning"),
        examples=table.texts("examples"),
        counterexamples=table.texts("counterexamples"),
    )
    table.close()
    if not rule.examples:
        raise table.complain("needs at least one line in 'examples'")
    into.logs.append(rule)


def read_signature(table: Table, into: Contents) -> None:
    """``[[signature]]``."""
    versions = {}
    for component, text in table.mapping("versions").items():
        try:
            versions[component] = Versions.parse(text)
        except ValueError as problem:
            raise table.complain(f"'versions': {problem}") from problem
    environ = table.table("environ")
    names = tuple(environ.values) if environ is not None else ()
    signature = Signature(
        id=table.text("id"),
        title=table.text("title"),
        meaning=table.text("meaning"),
        workaround=table.text("workaround"),
        links=table.texts("links"),
        servers=table.texts("servers"),
        versions=versions,
        environ={name: found for name in names if environ and (found := environ.regex(name)) is not None},
        phases=table.texts("phases"),
        frames=_patterns(table, "frames"),
        logs=table.regexes("logs"),
    )
    table.close()
    if any(known.id == signature.id for known in into.signatures):
        raise table.complain("a signature with this id is already there")
    if not signature.links:
        raise table.complain("'links' must name at least one public report of it")
    if not (signature.environ or signature.phases or signature.frames or signature.logs):
        raise table.complain("versions alone are no sign of a hang: give environ, phases, frames or logs")
    into.signatures.append(signature)


def read_redaction(table: Table) -> Redaction:
    """``[redaction]``."""
    rules = Redaction(
        flags=frozenset(table.texts("flags")),
        list_flags=frozenset(table.texts("list_flags")),
        json_flags=frozenset(table.texts("json_flags")),
        secret_name=table.needed_regex("secret_name"),
        harmless_name=table.needed_regex("harmless_name"),
        secret_variables=frozenset(table.texts("secret_variables")),
        tokens=table.regexes("tokens"),
        assignments=table.needed_regex("assignments"),
        url_userinfo=table.needed_regex("url_userinfo"),
        url_parameters=frozenset(table.texts("url_parameters")),
        environ_prefixes=table.texts("environ_prefixes"),
        environ_names=frozenset(table.texts("environ_names")),
    )
    table.close()
    return rules


def read_ranks(table: Table) -> RankSources:
    """``[ranks]``."""
    variables = []
    for entry in table.tables("variable", "rank"):
        variables.append(RankVariables(entry.text("rank"), entry.optional_text("local")))
        entry.close()
    sources = RankSources(flags=table.regexes("flags"), variables=tuple(variables))
    table.close()
    return sources
