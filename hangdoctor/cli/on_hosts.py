"""``--hosts``: attach, collect and check on many hosts at once."""

from __future__ import annotations

import json as json_
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hangdoctor import bundle, cluster
from hangdoctor.cli import options
from hangdoctor.cli.conversation import Conversation
from hangdoctor.cli.diagnosing import load, report_on
from hangdoctor.cli.exit_codes import COULD_NOT_LOOK, DONE
from hangdoctor.cli.group import State
from hangdoctor.cli.looking import make_plan
from hangdoctor.cli.options import HostsChoice, LookChoice, TargetChoice
from hangdoctor.cli.output import refuse_overwriting
from hangdoctor.collect import Plan
from hangdoctor.collect.check import CheckResult
from hangdoctor.knowledge.redaction import Redaction
from hangdoctor.model import Capture, Gap, Host
from hangdoctor.redact import Redactor

SPARE_S = 10.0
"""Beside the looks: Python's own start, reading the last look, sending the capture."""
CHECK_S = 60.0
ONE_FILE_HOSTS = 64
"""Up to here all hosts' captures go into one file; beyond, a reader's limits might refuse it (docs/cluster.md)."""


def attach_on_hosts(values: dict[str, Any], state: State) -> int:
    """Look on all hosts, save, diagnose as one job, report; the exit code of the verdict."""
    report = options.take(options.ReportChoice, values)
    keep = options.take(options.KeepChoice, values)
    run = _Run(values, state)
    report.check()
    refuse_overwriting(report.output, force=report.force)
    where = None if keep.no_bundle else keep.bundle or _default_name()
    capture = run.take(where, force=keep.force or keep.bundle is None)
    return report_on(capture, run.knowledge, report, state, strict=run.is_strict)


def collect_on_hosts(values: dict[str, Any], state: State) -> int:
    """Look on all hosts and save."""
    where = values["output"] or _default_name()
    run = _Run(values, state)
    run.take(where, force=values["force"])
    if where != "-":
        run.conversation.tell(f"Saved {state.bundle}. Diagnose it with: hangdoctor analyze {state.bundle}")
    return DONE


def check_on_hosts(hosts: HostsChoice, pid: int | None, state: State, *, use_ras: bool, json: bool) -> int:
    """Ask every host whether it could be looked at; a host that cannot be asked is a no."""
    import click

    from hangdoctor.cli.check import as_row, print_results

    words = ["check", *([str(pid)] if pid is not None else []), *(["--ras"] if use_ras else []), "--json"]
    errand = cluster.Errand(
        lambda host, meeting: words, waits_for_start=False, work_s=hosts.host_timeout or CHECK_S
    )
    names = cluster.expand(hosts.hosts or "")
    answers = cluster.ask_hosts(
        names, cluster.parse_via(hosts.via), errand, _patience(hosts), python=hosts.remote_python
    )
    rows = {answer.host: _check_results(answer) for answer in answers}
    if json:
        click.echo(
            json_.dumps({host: [as_row(each) for each in found] for host, found in rows.items()}, indent=2)
        )
    else:
        for host, found in rows.items():
            click.echo(f"{host}:")
            print_results(found)
    return COULD_NOT_LOOK if any(each.ok is False for found in rows.values() for each in found) else DONE


def _check_results(answer: cluster.Answer) -> Sequence[CheckResult]:
    gap = answer.trouble
    if gap is not None:
        return (CheckResult("connection", False, gap.reason, gap.remedy),)
    try:
        rows = json_.loads(answer.output)
        found = [
            CheckResult(str(row["name"]), row["ok"], str(row["detail"]), row.get("remedy")) for row in rows
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return (
            CheckResult("connection", False, "its answer cannot be read", "is it the same release there?"),
        )
    clock = answer.clock
    if clock is not None:
        text = f"{clock.offset_s:+.3f} s from ours, known to {clock.uncertainty_s * 1000:.1f} ms"
        is_close = abs(clock.offset_s) < 1.0 + clock.uncertainty_s
        found.insert(0, CheckResult("clock", None if not is_close else True, text, "chronyc tracking"))
    return found


class _Run:
    """One round of looks."""

    def __init__(self, values: dict[str, Any], state: State) -> None:
        talk = options.take(options.TalkChoice, values)
        self._choice = options.take(options.HostsChoice, values)
        self._target = options.take(options.TargetChoice, values)
        self._look = options.take(options.LookChoice, values)
        self._state = state
        self.knowledge = load(talk.knowledge)
        self.is_strict = talk.redact == "strict"
        self.conversation = Conversation(state.say, quiet=talk.quiet, verbosity=talk.verbose)

    def take(self, where: str | None, *, force: bool) -> Capture:
        """The job's capture, saved at ``where``. Raises NothingCollected when no host gave any."""
        choice = self._choice
        names = cluster.expand(choice.hosts or "")
        via = cluster.parse_via(choice.via)
        if where is not None and not where.endswith("/"):
            refuse_overwriting(where, force=force)
        count = len(names)
        self.conversation.tell(f"Asking {count} host{'s' if count != 1 else ''} via {via.name} …")
        errand = self._errand(names, make_plan(self._look, self.knowledge))
        answers = cluster.ask_hosts(
            names, via, errand, _patience(choice), python=choice.remote_python, tell=self.conversation.tell
        )
        captures, gaps = cluster.read_captures(answers)
        for gap in gaps:
            self.conversation.tell(
                f"{gap.subject}: {gap.reason}" + (f"\n  → {gap.remedy}" if gap.remedy else "")
            )
        for answer in answers:
            for line in answer.said:
                self.conversation.explain(f"{answer.host}: {line}", 2)
        redactor = _Renaming(self.knowledge.redaction, names, strict=self.is_strict)
        asked = f"{count} hosts" if self.is_strict else choice.hosts or ""
        whole = redactor.capture(cluster.combine(captures, gaps, asked))
        if where is not None:
            self._save(where, whole, captures, gaps, redactor)
        return whole

    def _errand(self, names: tuple[str, ...], plan: Plan) -> cluster.Errand:
        target, look, first = self._target, self._look, None
        if target.pid is not None:
            first = cluster.local_among(names) or cluster.first_named(self._choice.hosts or "")
            self.conversation.tell(
                f"Looking for pid {target.pid} on {first}, and for the rest of its job elsewhere"
            )
        length_s = plan.offset_s(plan.snapshots - 1)
        work_s = self._choice.host_timeout or length_s + plan.look_s + SPARE_S
        return cluster.Errand(
            lambda host, meeting: _words(host, host == first, target, look, meeting),
            waits_for_start=True,
            first=first,
            work_s=work_s,
        )

    def _save(
        self,
        where: str,
        whole: Capture,
        captures: Sequence[Capture],
        gaps: Sequence[Gap],
        redactor: _Renaming,
    ) -> None:
        if not where.endswith("/") and (where == "-" or len(captures) <= ONE_FILE_HOSTS):
            bundle.write(whole, where)
            self._state.bundle = None if where == "-" else where
            return
        folder = Path(where.removesuffix(".hang") if not where.endswith("/") else where)
        folder.mkdir(parents=True, exist_ok=True)
        for index, capture in enumerate(captures):
            # What is known of no host in particular goes with the first: a folder is read as one job.
            mine = redactor.capture(replace(capture, gaps=(*capture.gaps, *gaps)) if index == 0 else capture)
            bundle.write(mine, folder / f"{_file_name(mine)}.hang")
        self._state.bundle = str(folder)


class _Renaming:
    """Hosts mask secrets before they send; names are changed here, for all hosts alike, also of those that failed."""

    def __init__(self, rules: Redaction, names: Sequence[str], *, strict: bool) -> None:
        self._redactor = Redactor(rules, strict=strict)
        self._asked = tuple(Host(name) for name in names)

    def capture(self, capture: Capture) -> Capture:
        """Redacted; the same name becomes the same in every capture."""
        found = self._redactor.capture(replace(capture, hosts=(*capture.hosts, *self._asked)))
        return replace(found, hosts=found.hosts[: len(capture.hosts)])


def _file_name(capture: Capture) -> str:
    name = capture.hosts[0].asked or capture.hosts[0].name
    return (
        "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in name).lstrip(".-")
        or "host"
    )


def _words(
    host: str, is_first: bool, target: TargetChoice, look: LookChoice, meeting: str | None
) -> Sequence[str]:
    """The command line for a host. ``%h`` in a name or a log's path stands for the host."""
    words = ["collect"]
    if is_first:
        words.append(str(target.pid))
    elif target.pid is not None and meeting is not None:
        words += ["--rendezvous", meeting]
    for name, value in (
        ("--name", target.name),
        ("--port", target.port),
        ("--rendezvous", target.rendezvous),
    ):
        if value is not None:
            words += [name, str(value).replace("%h", host)]
    for name, amount in (("--snapshots", look.snapshots), ("--interval", look.interval)):
        if amount is not None:
            words += [name, str(amount)]
    flags = {
        "--native": look.native,
        "--allow-pause": look.allow_pause,
        "--ras": look.ras,
        "--ras-force": look.ras_force,
    }
    words += [name for name, is_set in flags.items() if is_set]
    for path in look.log:
        words += ["--log", path.replace("%h", host)]
    return [*words, "--start-at", "-", "-q", "-o", "-"]


def _patience(choice: HostsChoice) -> cluster.Patience:
    return cluster.Patience(connect_s=choice.connect_timeout, fanout=choice.fanout)


def _default_name() -> str:
    name = bundle.bundle_name(None, time.time()).replace("unknown", "job")
    return name if os.access(".", os.W_OK) else str(Path(tempfile.gettempdir()) / name)
