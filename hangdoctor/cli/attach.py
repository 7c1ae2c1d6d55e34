"""``hangdoctor attach``: look, save, diagnose, report."""

from __future__ import annotations

from typing import Any

import click

from hangdoctor.cli import options
from hangdoctor.cli.command import Command
from hangdoctor.cli.exit_codes import INTERRUPTED
from hangdoctor.cli.group import State


@click.pass_obj
def _attach(state: State, /, **values: Any) -> int:
    if values["hosts"] is not None:
        from hangdoctor.cli.on_hosts import attach_on_hosts

        return attach_on_hosts(values, state)
    from hangdoctor.cli.conversation import Conversation

    target = options.take(options.TargetChoice, values)
    look = options.take(options.LookChoice, values)
    keep = options.take(options.KeepChoice, values)
    report = options.take(options.ReportChoice, values)
    talk = options.take(options.TalkChoice, values)
    conversation = Conversation(state.say, quiet=talk.quiet, verbosity=talk.verbose)
    report.check(is_kept=not keep.no_bundle and keep.bundle != "-")
    conversation.tell(_first_words(target))

    from hangdoctor.cli.diagnosing import load, report_on
    from hangdoctor.cli.looking import Looking, bundle_path, make_plan
    from hangdoctor.cli.output import refuse_overwriting
    from hangdoctor.discover import Request, find_tree

    refuse_overwriting(report.output, force=report.force)
    knowledge = load(talk.knowledge)
    tree = find_tree(Request(target.pid, target.name, target.port, target.rendezvous), knowledge)
    path = bundle_path(keep, tree.root)
    looking = Looking(
        knowledge,
        conversation,
        state,
        strict=talk.redact == "strict",
        path=path,
        must_save=keep.bundle is not None,
    )
    # NCCL's counts mean something in two answers some seconds apart.
    stops_early = look.snapshots is None and look.interval is None and not (look.ras or look.ras_force)
    taken = looking.take(tree, make_plan(look, knowledge), stops_early=stops_early)
    if not taken.capture.snapshots:
        raise KeyboardInterrupt
    code = report_on(taken.capture, knowledge, report, state, strict=talk.redact == "strict")
    return INTERRUPTED if taken.is_interrupted else code


def _first_words(target: options.TargetChoice) -> str:
    if target.pid is not None:
        return f"Looking at pid {target.pid} …"
    if target.rendezvous is not None:
        return f"Looking for the job that meets at {target.rendezvous} …"
    if target.name is not None or target.port is not None:
        return f"Looking for {target.name if target.name is not None else f'who listens on port {target.port}'} …"
    return "Looking for the server on this machine …"


COMMAND = Command(
    name="attach",
    help="Say whether a running server or job is hung, slow, ready or cannot be told, and who holds it up.\n\n"
    "Any process of the job will do; without a target, the only server on this machine. By default the target is "
    "never stopped, signalled or written to. The capture is saved, so that it can be looked at again.",
    params=[
        *options.target_options(),
        *options.hosts_options(),
        *options.look_options(),
        *options.keep_options(),
        *options.report_options(),
        *options.talk_options(),
    ],
    callback=_attach,
    examples=(
        "hangdoctor attach 41822",
        "hangdoctor attach --port 30000 --detail | less -R",
        "hangdoctor attach --hosts node[1-4] --name sglang -o report.md",
        "hangdoctor attach 41822 --json --no-bundle 2>/dev/null | jq .verdict.kind",
    ),
)
