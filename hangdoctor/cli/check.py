"""``hangdoctor check``: can I look?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hangdoctor.cli import options
from hangdoctor.cli.command import Command
from hangdoctor.cli.exit_codes import COULD_NOT_LOOK, DONE
from hangdoctor.cli.group import State
from hangdoctor.cli.streams import print_wrapped

if TYPE_CHECKING:
    from hangdoctor.collect.check import CheckResult

_MARKS = {True: "yes", False: "NO", None: "–"}


@click.pass_obj
def _check(state: State, /, pid: int | None, json: bool, ras: bool, **values: Any) -> int:
    hosts = options.take(options.HostsChoice, values)
    if hosts.hosts is not None:
        from hangdoctor.cli.on_hosts import check_on_hosts

        return check_on_hosts(hosts, pid, state, use_ras=ras, json=json)
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

        click.echo(json_.dumps([as_row(each) for each in results], indent=2))
    else:
        print_results(results)
    return COULD_NOT_LOOK if any(each.ok is False for each in results) else DONE


def as_row(result: CheckResult) -> dict[str, Any]:
    """One answer as JSON."""
    return {"name": result.name, "ok": result.ok, "detail": result.detail, "remedy": result.remedy}


def print_results(results: Sequence[CheckResult]) -> None:
    """A table on stdout, with a remedy below each answer that is not a yes."""
    from hangdoctor.render._wording import clean

    width = max(len(each.name) for each in results) + 2
    for each in results:
        indent = " " * (width + 4)
        print_wrapped(
            clean(each.detail), first=f"{_MARKS[each.ok]:4}{clean(each.name):{width}}", hanging=indent
        )
        if each.remedy and each.ok is not True:
            print_wrapped(clean(each.remedy), first=f"{indent}→ ", hanging=f"{indent}  ")


COMMAND = Command(
    name="check",
    help="Can I look? Tries permissions, py-spy, the driver and what else is needed, and says what to do about each "
    "that is missing.\n\nWith a pid it tries that process. Nothing is stopped.",
    params=[
        click.Argument(["pid"], type=int, required=False, metavar="[PID]"),
        *options.hosts_options(),
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
        "hangdoctor check --hosts @gpu",
        "hangdoctor check --json | jq '.[] | select(.ok == false)'",
    ),
)
