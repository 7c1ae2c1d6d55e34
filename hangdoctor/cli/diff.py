"""``hangdoctor diff``: what moved between two looks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from hangdoctor.cli import options
from hangdoctor.cli.command import Command
from hangdoctor.cli.exit_codes import DONE
from hangdoctor.cli.group import State

if TYPE_CHECKING:
    from hangdoctor.knowledge import Knowledge
    from hangdoctor.model import Capture


@click.pass_obj
def _diff(state: State, /, before: str, after: str | None, **values: Any) -> int:
    from hangdoctor.analysis.differences import compare
    from hangdoctor.cli.diagnosing import load
    from hangdoctor.cli.output import is_ascii_only
    from hangdoctor.render._difference import difference_json, difference_text
    from hangdoctor.render._wording import to_ascii

    talk = options.take(options.TalkChoice, values)
    knowledge = load(talk.knowledge)
    is_strict = talk.redact == "strict"
    first = _read(before, knowledge, strict=is_strict)
    second = first if after is None else _read(after, knowledge, strict=is_strict)
    difference = compare(first, second, knowledge)
    if values["json"]:
        text = difference_json(difference)
    else:
        text = difference_text(difference, detail=values["detail"])
        text = to_ascii(text) if is_ascii_only(sys.stdout) else text
    sys.stdout.write(text)
    return DONE


def _read(path: str, knowledge: Knowledge, *, strict: bool) -> Capture:
    """A bundle, or any dump that analyze reads."""
    from hangdoctor.parsers import read_files
    from hangdoctor.redact import redact_capture

    return redact_capture(read_files((path,), knowledge), knowledge.redaction, strict=strict)


COMMAND = Command(
    name="diff",
    help="What moved between two captures, rank by rank and thread by thread: phases, frames, bytes, CPU time.\n\n"
    "Of two captures their last looks are compared, in the order of their clocks; of a single one its first and its "
    "last look. Ranks in which nothing moved share one line.",
    params=[
        click.Argument(["before"], required=True, metavar="A"),
        click.Argument(["after"], required=False, metavar="[B]"),
        click.Option(["--json"], is_flag=True, help="The difference as JSON (hangdoctor.diff/1)."),
        click.Option(["--detail"], is_flag=True, help="Every thread and every counter that moved."),
        *options.talk_options(),
    ],
    callback=_diff,
    is_diagnosis=False,
    examples=(
        "hangdoctor diff monday.hang tuesday.hang",
        "hangdoctor diff hangdoctor-41822-20261129T174302Z.hang",
        "hangdoctor diff first.hang later.hang --json | jq '.processes[] | select(.progress)'",
    ),
)
