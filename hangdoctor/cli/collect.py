"""``hangdoctor collect``: look and save; the diagnosis is made elsewhere."""

from __future__ import annotations

from typing import Any

import click

from hangdoctor.cli import options
from hangdoctor.cli.command import Command
from hangdoctor.cli.exit_codes import DONE, INTERRUPTED
from hangdoctor.cli.group import State


@click.pass_obj
def _collect(state: State, /, **values: Any) -> int:
    if values["hosts"] is not None:
        from hangdoctor.cli.on_hosts import collect_on_hosts

        return collect_on_hosts(values, state)
    from hangdoctor.cli.conversation import Conversation

    target = options.take(options.TargetChoice, values)
    look = options.take(options.LookChoice, values)
    talk = options.take(options.TalkChoice, values)
    conversation = Conversation(state.say, quiet=talk.quiet, verbosity=talk.verbose)
    conversation.tell("Looking …")

    from hangdoctor.cli.diagnosing import load
    from hangdoctor.cli.looking import Looking, bundle_path, make_plan
    from hangdoctor.discover import Request, find_tree

    keep = options.KeepChoice(bundle=values["output"], no_bundle=False, force=values["force"])
    knowledge = load(talk.knowledge)
    start_at = values["start_at"]
    request = Request(
        target.pid, target.name, target.port, target.rendezvous, is_of_many=start_at is not None
    )
    tree = find_tree(request, knowledge)
    path = bundle_path(keep, tree.root)
    looking = Looking(
        knowledge, conversation, state, strict=talk.redact == "strict", path=path, must_save=True
    )
    if start_at is not None:
        from hangdoctor.cli.starting import wait_for_start

        wait_for_start(start_at, tree, state.say)
    taken = looking.take(tree, make_plan(look, knowledge), stops_early=False)
    if not taken.capture.snapshots:
        raise KeyboardInterrupt
    if path != "-":
        conversation.tell(f"Saved {path}. Diagnose it with: hangdoctor analyze {path}")
    return INTERRUPTED if taken.is_interrupted else DONE


COMMAND = Command(
    name="collect",
    help="Only take the capture, and save it.\n\nThe file can be diagnosed on any machine with `hangdoctor analyze`; "
    "several of one job, one a host, are merged. Secrets are masked before anything is written.",
    params=[
        *options.target_options(),
        *options.hosts_options(),
        *options.look_options(),
        click.Option(
            ["-o", "--output"],
            metavar="FILE",
            help="Save the capture here; '-' is standard output; with --hosts also DIR/, one file a host.  "
            "[default: hangdoctor-PID-TIME.hang]",
        ),
        click.Option(
            ["--start-at"],
            metavar="TIME",
            help="Begin the first look at this Unix time; '-' says on standard error when it could begin, and "
            "reads the time from standard input.",
        ),
        options.force_option(),
        *options.talk_options(),
    ],
    callback=_collect,
    is_diagnosis=False,
    examples=(
        "hangdoctor collect 41822",
        "hangdoctor collect --name vllm -o $(hostname).hang",
        "hangdoctor collect --hosts node[1-4] --name sglang -o job.hang",
        "ssh node2 hangdoctor collect -q -o - > node2.hang",
    ),
)
