"""``hangdoctor check``: can I look?"""

from __future__ import annotations

from typing import Any

import click

from hangdoctor.cli.command import Command
from hangdoctor.cli.exit_codes import COULD_NOT_LOOK, DONE
from hangdoctor.cli.group import State
from hangdoctor.cli.streams import print_wrapped

_MARKS = {True: "yes", False: "NO", None: "–"}


@click.pass_obj
def _check(state: State, /, pid: int | None, json: bool, ras: bool) -> int:
    from hangdoctor.collect.check import check

    if ras:
        from hangdoctor.collect.ras_asking import WARNING
        from hangdoctor.errors import WrongUsage

        if pid is None:
            raise WrongUsage("--ras needs the pid of a rank: hangdoctor check PID --ras")
        state.say(WARNING)
    results = check(pid, use_ras=ras)
    if json:
        import json as json_

        rows: list[dict[str, Any]] = [
            {"name": each.name, "ok": each.ok, "detail": each.detail, "remedy": each.remedy}
            for each in results
        ]
        click.echo(json_.dumps(rows, indent=2))
    else:
        from hangdoctor.render._wording import clean

        width = max(len(each.name) for each in results) + 2
        for each in results:
            indent = " " * (width + 4)
            print_wrapped(
                clean(each.detail), first=f"{_MARKS[each.ok]:4}{clean(each.name):{width}}", hanging=indent
            )
            if each.remedy and each.ok is not True:
                print_wrapped(clean(each.remedy), first=f"{indent}→ ", hanging=f"{indent}  ")
    return COULD_NOT_LOOK if any(each.ok is False for each in results) else DONE


COMMAND = Command(
    name="check",
    help="Can I look? Tries permissions, py-spy, the driver and what else is needed, and says what to do about each "
    "that is missing.\n\nWith a pid it tries that process. Nothing is stopped.",
    params=[
        click.Argument(["pid"], type=int, required=False, metavar="[PID]"),
        click.Option(
            ["--ras"],
            is_flag=True,
            help="Also ask NCCL's RAS service of that rank; questions have crashed jobs (NCCL 2.26 to 2.29).",
        ),
        click.Option(["--json"], is_flag=True, help="The answers as JSON: [{name, ok, detail, remedy}]."),
    ],
    callback=_check,
    is_diagnosis=False,
    examples=(
        "hangdoctor check",
        "hangdoctor check 41822",
        "docker exec server hangdoctor check 1",
        "hangdoctor check --json | jq '.[] | select(.ok == false)'",
    ),
)
