"""``hangdoctor watch``: look again and again, and act when it stops moving."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hangdoctor.cli import options
from hangdoctor.cli.command import Command
from hangdoctor.cli.exit_codes import COULD_NOT_LOOK, DONE
from hangdoctor.cli.group import State

if TYPE_CHECKING:
    from hangdoctor.collect import Plan, Tree
    from hangdoctor.knowledge import Knowledge
    from hangdoctor.watching.loop import Orders, Watch


@dataclass(frozen=True, slots=True)
class WatchChoice:
    """How to watch and what to do."""

    interval: float
    stall: float
    probe: str | None
    probe_timeout: float
    log_pattern: tuple[str, ...]
    log: tuple[str, ...]
    exec: str | None
    once: bool
    for_s: float | None
    output: str | None
    keep: int
    allow_pause: bool
    no_color: bool


def watch_options() -> list[click.Parameter]:
    """Everything that only watch understands."""
    return [
        click.Option(["--interval"], type=click.FloatRange(0.2, 3600), default=10.0, show_default=True,
                     metavar="S", help="Seconds between looks."),
        click.Option(["--stall"], type=click.FloatRange(0.2, 86400), default=60.0, show_default=True,
                     metavar="S", help="Act when nothing proves progress for so long; a certain hang needs two looks."),
        click.Option(["--probe"], metavar="URL", help="Also ask this health endpoint; act when it falls silent."),
        click.Option(["--probe-timeout"], type=click.FloatRange(0.1, 600), default=5.0, show_default=True,
                     metavar="S", help="How long the health endpoint may take; it must fail twice in a row."),
        click.Option(["--log-pattern"], multiple=True, metavar="RE",
                     help="Act when a new line of the log matches this regular expression."),
        click.Option(["--log"], multiple=True, metavar="FILE", help="A log of the job, besides those that are found."),
        click.Option(["--exec"], metavar="CMD",
                     help="Run this with sh after each report; HANGDOCTOR_REPORT, HANGDOCTOR_BUNDLE and "
                     "HANGDOCTOR_VERDICT tell it what."),
        click.Option(["--once"], is_flag=True, help="End after the first report, with the exit code of its verdict."),
        click.Option(["--for", "for_s"], type=click.FloatRange(0.2, 10_000_000), metavar="S",
                     help="End after so many seconds."),
        click.Option(["-o", "--output"], metavar="DIR",
                     help="Folder for the last looks and the reports.  [default: hangdoctor-watch-PID]"),
        click.Option(["--keep"], type=click.IntRange(3, 1000), default=12, show_default=True, metavar="N",
                     help="How many looks to keep."),
        click.Option(["--allow-pause"], is_flag=True,
                     help="On a trigger, stop a process for milliseconds where its stack cannot be read otherwise."),
        click.Option(["--no-color"], is_flag=True, help="No colour."),
    ]  # fmt: skip


@click.pass_obj
def _watch(state: State, /, **values: Any) -> int:
    from hangdoctor.cli.conversation import Conversation
    from hangdoctor.cli.diagnosing import load
    from hangdoctor.discover import Request, find_tree

    target = options.take(options.TargetChoice, values)
    choice = options.take(WatchChoice, values)
    talk = options.take(options.TalkChoice, values)
    conversation = Conversation(state.say, quiet=talk.quiet, verbosity=talk.verbose)
    knowledge = load(talk.knowledge)
    orders = _orders(choice, knowledge, strict=talk.redact == "strict")
    tree = find_tree(Request(target.pid, target.name, target.port, target.rendezvous), knowledge)
    watch, folder = _make(choice, orders, tree, knowledge, conversation.tell, strict=talk.redact == "strict")
    state.bundle = str(folder / "watch.hang")
    conversation.tell(
        f"Watching {tree.server or 'the job'} at pid {tree.root} every {choice.interval:g} s; "
        f"the last {choice.keep} looks and all reports are in {folder}"
    )
    return _run(watch, choice)


def _run(watch: Watch, choice: WatchChoice) -> int:
    import os

    from hangdoctor.cli.output import exit_code, is_ascii_only, wants_color
    from hangdoctor.collect.deadline import LOW_PRIORITY
    from hangdoctor.watching.loop import Ending
    from hangdoctor.watching.view import open_view

    # For hours beside a job: diagnoses, too, leave the cores to it. (A command of --exec inherits this.)
    os.nice(max(0, LOW_PRIORITY - os.getpriority(os.PRIO_PROCESS, 0)))
    is_live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    color = not choice.no_color and wants_color(sys.stdout, os.environ)
    is_ascii = is_ascii_only(sys.stdout)
    try:
        with open_view(sys.stdout, is_live=is_live, is_ascii=is_ascii, color=color) as view:
            ending = watch.run(view)
    except KeyboardInterrupt:
        if choice.for_s is None:
            raise
        return DONE if watch.last_report is None else exit_code(watch.last_report)
    if ending is Ending.TARGET_ENDED:
        return COULD_NOT_LOOK
    return DONE if watch.last_report is None else exit_code(watch.last_report)


def _orders(choice: WatchChoice, knowledge: Knowledge, *, strict: bool) -> Orders:
    """What is asked for, checked before anything is looked at."""
    from hangdoctor.redact import redacted_kinds
    from hangdoctor.watching.log_search import compile_patterns
    from hangdoctor.watching.loop import Orders
    from hangdoctor.watching.probe import check_url

    return Orders(
        interval_s=choice.interval,
        stall_s=choice.stall,
        plan=_plan(choice, knowledge),
        probe=check_url(choice.probe) if choice.probe is not None else None,
        probe_s=choice.probe_timeout,
        patterns=compile_patterns(choice.log_pattern),
        is_once=choice.once,
        for_s=choice.for_s,
        redacted=redacted_kinds(strict=strict),
    )


def _plan(choice: WatchChoice, knowledge: Knowledge) -> Plan:
    from hangdoctor.collect import Plan

    return replace(
        Plan(),
        allow_pause=choice.allow_pause,
        logs=tuple(str(Path(path).absolute()) for path in choice.log),
        is_env_allowed=knowledge.is_env_allowed,
        knowledge_revision=knowledge.revision,
    )


def _make(
    choice: WatchChoice,
    orders: Orders,
    tree: Tree,
    knowledge: Knowledge,
    say: Callable[[str], None],
    *,
    strict: bool,
) -> tuple[Watch, Path]:
    from hangdoctor.collect import RollingCapture
    from hangdoctor.redact import Redactor
    from hangdoctor.watching.hook import Hook
    from hangdoctor.watching.loop import Watch
    from hangdoctor.watching.store import Store

    redactor = Redactor(knowledge.redaction, strict=strict)
    folder = _folder(choice.output, tree.root)
    store = Store(folder, choice.keep, redactor)
    rolling = RollingCapture(tree, orders.plan, choice.keep)
    hook = Hook(choice.exec) if choice.exec is not None else None
    return Watch(rolling, orders, knowledge, store, redactor, hook, say), folder


def _folder(given: str | None, pid: int) -> Path:
    import os
    import tempfile

    if given is not None:
        return Path(given)
    name = f"hangdoctor-watch-{pid}"
    # In containers the working folder is often read-only.
    return Path(name) if os.access(".", os.W_OK) else Path(tempfile.gettempdir(), name)


COMMAND = Command(
    name="watch",
    help="Look again and again, at little cost, and act when the job stops moving: when nothing proves progress for "
    "--stall seconds, a hang is certain, a rank is gone, or (if asked) a health endpoint falls silent or a line "
    "appears in the log.\n\nThen it looks as closely as attach does, writes a report and its capture into the folder, "
    "runs --exec, and goes on; one hang is reported once until it changes. The last looks are in DIR/watch.hang at any "
    "time.",
    params=[*options.target_options(), *watch_options(), *options.talk_options()],
    callback=_watch,
    examples=(
        "hangdoctor watch 41822",
        "hangdoctor watch --name sglang --stall 120 --probe http://127.0.0.1:30000/health -o /var/log/watch",
        "hangdoctor watch --port 8000 --exec './page-oncall.sh'",
        "hangdoctor watch 41822 --once --log-pattern 'CUDA error'",
    ),
)
