"""``hangdoctor demo``: a small real job that is stuck, and what attach says about it."""

from __future__ import annotations

from typing import Any

import click

from hangdoctor.cli import options
from hangdoctor.cli.command import Command
from hangdoctor.cli.exit_codes import INTERRUPTED
from hangdoctor.cli.group import State


@click.pass_obj
def _demo(state: State, /, scenario: str | None, **values: Any) -> int:
    from hangdoctor.cli.conversation import Conversation

    look = options.take(options.LookChoice, values)
    keep = options.take(options.KeepChoice, values)
    report = options.take(options.ReportChoice, values)
    talk = options.take(options.TalkChoice, values)
    report.check(is_kept=keep.bundle not in (None, "-"))
    conversation = Conversation(state.say, quiet=talk.quiet, verbosity=talk.verbose)

    from hangdoctor.demo import DEFAULT_SCENARIO, SCENARIOS, run_scenario
    from hangdoctor.errors import WrongUsage

    name = scenario or DEFAULT_SCENARIO
    if name not in SCENARIOS:
        raise WrongUsage(f"there is no scenario '{name}'", hint="one of: " + ", ".join(SCENARIOS))
    conversation.tell(f"Starting a job of four ranks: {SCENARIOS[name].title} …")

    from hangdoctor.cli.diagnosing import load, report_on
    from hangdoctor.cli.looking import Looking, bundle_path, make_plan
    from hangdoctor.cli.output import refuse_overwriting
    from hangdoctor.discover import Request, find_tree

    refuse_overwriting(report.output, force=report.force)
    knowledge = load(talk.knowledge)
    is_strict = talk.redact == "strict"
    path = bundle_path(keep, 0) if keep.bundle is not None else None
    with run_scenario(name) as pid:
        conversation.tell(f"Attaching to it, as `hangdoctor attach {pid}` would:")
        looking = Looking(knowledge, conversation, state, strict=is_strict, path=path, must_save=True)
        plan = make_plan(look, knowledge)
        is_default = look.snapshots is None and look.interval is None
        taken = looking.take(find_tree(Request(pid), knowledge), plan, stops_early=is_default)
    if not taken.capture.snapshots:
        raise KeyboardInterrupt
    code = report_on(taken.capture, knowledge, report, state, strict=is_strict)
    return INTERRUPTED if taken.is_interrupted else code


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from hangdoctor.demo import SCENARIOS

    return [name for name in SCENARIOS if name.startswith(incomplete)]


COMMAND = Command(
    name="demo",
    help="Start a small real job of four ranks that is stuck, slow or idle, attach to it, report, and clean up.\n\n"
    "Everything is real: processes, collectives, locks, signals. Scenarios: laggard (the default), deadlock, gil, "
    "stopped, dead, slow-load, dequantize, compile, idle. No capture is saved unless --bundle names a file.",
    params=[
        click.Argument(["scenario"], required=False, metavar="[SCENARIO]", shell_complete=_complete),
        *options.look_options(),
        *options.keep_options(),
        *options.report_options(),
        *options.talk_options(),
    ],
    callback=_demo,
    examples=(
        "hangdoctor demo",
        "hangdoctor demo deadlock --detail",
        "hangdoctor demo idle --json | jq .verdict",
    ),
)
