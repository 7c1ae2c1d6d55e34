"""``hangdoctor analyze``: diagnose what is already there."""

from __future__ import annotations

import gc
from typing import Any

import click

from hangdoctor.cli import options
from hangdoctor.cli.command import Command
from hangdoctor.cli.group import State


@click.pass_obj
def _analyze(state: State, /, **values: Any) -> int:
    # Captures have no cycles, and the process ends with its report; looking for some again and again among all the
    # objects of a large job took a tenth of the time.
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return _diagnose(state, values)
    finally:
        if is_collecting:
            gc.enable()


def _diagnose(state: State, values: dict[str, Any]) -> int:
    report = options.take(options.ReportChoice, values)
    talk = options.take(options.TalkChoice, values)
    files = values["files"]
    report.check(is_kept="-" not in files)

    from hangdoctor.cli.diagnosing import load, report_on
    from hangdoctor.cli.output import refuse_overwriting
    from hangdoctor.parsers import read_files
    from hangdoctor.redact import redact_capture

    refuse_overwriting(report.output, force=report.force)
    knowledge = load(talk.knowledge)
    is_strict = talk.redact == "strict"
    capture = redact_capture(read_files(files, knowledge), knowledge.redaction, strict=is_strict)
    if talk.verbose:
        for gap in capture.gaps:
            state.say(f"not read: {gap.subject}: {gap.reason}")
    if len(files) == 1 and files[0].endswith(".hang"):
        state.bundle = files[0]
    return report_on(capture, knowledge, report, state, strict=is_strict, sources=files)


COMMAND = Command(
    name="analyze",
    help="Diagnose captures, stack dumps and logs that are already there.\n\n"
    "Reads bundles (several are merged, one a host), py-spy and pystack dumps, gdb and faulthandler stacks, NCCL "
    "watchdog messages, Flight Recorder files and server logs, also all together; '-' is standard input. The format "
    "is recognised by content: `hangdoctor list formats`.",
    params=[
        click.Argument(["files"], nargs=-1, required=True, metavar="FILE..."),
        *options.report_options(),
        *options.talk_options(),
    ],
    callback=_analyze,
    examples=(
        "hangdoctor analyze hangdoctor-41822-20261129T174302Z.hang",
        "hangdoctor analyze node1.hang node2.hang -o report.html",
        "for p in $(pgrep -f sglang::); do py-spy dump -p $p; done | hangdoctor analyze -",
        "hangdoctor analyze server.log nccl_trace_rank_* -f markdown -o - | gh issue create -t Hang -F -",
    ),
)
