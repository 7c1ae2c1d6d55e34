"""``hangdoctor list``: what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from hangdoctor.cli import options
from hangdoctor.cli.command import Command
from hangdoctor.cli.exit_codes import DONE

if TYPE_CHECKING:
    from hangdoctor.knowledge import Knowledge

Row = tuple[str, str]


def _list(what: str, knowledge: str | None) -> int:
    from hangdoctor.cli.diagnosing import load

    rows = list(_LISTS[what](load(knowledge)))
    width = max(len(name) for name, _ in rows) + 2
    for name, meaning in rows:
        click.echo(f"{name:{width}}{meaning}".rstrip())
    return DONE


def _phases(known: Knowledge) -> Iterable[Row]:
    return ((phase.id, f"{phase.title} ({phase.stage.value})") for _, phase in sorted(known.phases.items()))


def _servers(known: Knowledge) -> Iterable[Row]:
    return ((server.name, server.title) for _, server in sorted(known.servers.items()))


def _collectors(known: Knowledge) -> Iterable[Row]:
    from hangdoctor.cli.sources import SOURCES

    return ((source.id, f"{source.reads} ({source.tier})") for source in SOURCES)


def _formats(known: Knowledge) -> Iterable[Row]:
    from hangdoctor.parsers import describe_formats
    from hangdoctor.render import RENDERERS

    yield from (
        (f"--format {name}", f"a report, in files named *.{RENDERERS[name].extension}") for name in RENDERERS
    )
    yield from ((name, f"read by analyze: {summary}") for name, summary in describe_formats())


_LISTS: dict[str, Callable[[Knowledge], Iterable[Row]]] = {
    "phases": _phases,
    "servers": _servers,
    "collectors": _collectors,
    "formats": _formats,
}
COMMAND = Command(
    name="list",
    help="List what is known, one a line: phases of servers, servers, sources of evidence, formats that are written "
    "and read.\n\n`hangdoctor explain ID` says more about most of them.",
    params=[click.Argument(["what"], type=click.Choice(list(_LISTS))), options.knowledge_option()],
    callback=_list,
    is_diagnosis=False,
    examples=(
        "hangdoctor list phases | grep sglang",
        "hangdoctor list collectors",
        "hangdoctor list formats",
    ),
)
