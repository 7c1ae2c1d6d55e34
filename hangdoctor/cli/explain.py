"""``hangdoctor explain ID``: what a word in a report means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hangdoctor.cli import options
from hangdoctor.cli.command import Command
from hangdoctor.cli.exit_codes import DONE
from hangdoctor.cli.streams import print_wrapped

if TYPE_CHECKING:
    from hangdoctor.knowledge import Knowledge


def _explain(id: str, knowledge: str | None) -> int:
    from hangdoctor.cli.diagnosing import load
    from hangdoctor.errors import WrongUsage

    known = load(knowledge)
    text = explanation(id, known)
    if text is None:
        import difflib

        near = difflib.get_close_matches(id, all_ids(known), 3, 0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "hangdoctor list phases shows what there is"
        raise WrongUsage(f"nothing is called '{id}'", hint=hint)
    print_wrapped(text)
    return DONE


def explanation(name: str, known: Knowledge) -> str | None:
    """The text for an id of any kind; ``None`` when nothing has that id."""
    from hangdoctor.analysis.rules import all_rules
    from hangdoctor.cli.causes import CAUSES
    from hangdoctor.cli.sources import SOURCES, explain_source
    from hangdoctor.report import Cause

    texts = [known.explain(name)]
    texts += [f"{cause.value}: a cause\n\n{CAUSES[cause]}" for cause in Cause if cause.value == name]
    texts += [
        f"{rule.id}: a rule\n\n{rule.summary}\n\nWould be refuted by: {rule.refuted_by}."
        for rule in all_rules()
        if rule.id == name
    ]
    texts += [explain_source(source) for source in SOURCES if name in (source.id, *source.aliases)]
    return "\n\n".join(filter(None, texts)) or None


def all_ids(known: Knowledge) -> list[str]:
    """Everything that can be explained."""
    from hangdoctor.analysis.rules import all_rules
    from hangdoctor.cli.sources import SOURCES
    from hangdoctor.report import Cause

    return [
        *known.phases,
        *known.roles,
        *(signature.id for signature in known.signatures),
        *(cause.value for cause in Cause),
        *(rule.id for rule in all_rules()),
        *(name for source in SOURCES for name in (source.id, *source.aliases)),
    ]


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from hangdoctor.cli.diagnosing import load

    return sorted(name for name in all_ids(load(None)) if name.startswith(incomplete))


COMMAND = Command(
    name="explain",
    help="What a word in a report means: a phase, a role, a rule, a cause, a known hang, or the source of a gap.",
    params=[
        click.Argument(["id"], metavar="ID", shell_complete=_complete),
        options.knowledge_option(),
    ],
    callback=_explain,
    is_diagnosis=False,
    examples=(
        "hangdoctor explain sglang.graph-capture",
        "hangdoctor explain stale-lock-file",
        "hangdoctor explain flight-recorder",
    ),
)
