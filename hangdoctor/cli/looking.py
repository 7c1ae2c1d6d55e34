"""From a target to a capture that is safely on disk: the part that attach, collect and demo share."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hangdoctor import bundle
from hangdoctor.analysis import diagnose
from hangdoctor.cli.conversation import Conversation
from hangdoctor.cli.group import State
from hangdoctor.cli.options import KeepChoice, LookChoice
from hangdoctor.cli.output import refuse_overwriting
from hangdoctor.collect import Interrupted, Plan, Tree, take_capture
from hangdoctor.collect.ras_asking import WARNING
from hangdoctor.errors import HangdoctorError
from hangdoctor.knowledge import Knowledge
from hangdoctor.model import Capture
from hangdoctor.redact import Redactor
from hangdoctor.report import Confidence, Kind


@dataclass(frozen=True, slots=True)
class Taken:
    """A capture without secrets, and whether it was cut short by a signal."""

    capture: Capture
    is_interrupted: bool


def make_plan(choice: LookChoice, knowledge: Knowledge) -> Plan:
    """What the options ask for."""
    plan = Plan(
        interval_s=choice.interval,
        native=choice.native,
        allow_pause=choice.allow_pause,
        use_ras=choice.ras or choice.ras_force,
        force_ras=choice.ras_force,
        logs=tuple(str(Path(path).absolute()) for path in choice.log),
        is_env_allowed=knowledge.is_env_allowed,
        knowledge_revision=knowledge.revision,
    )
    return plan if choice.snapshots is None else replace(plan, snapshots=choice.snapshots)


def bundle_path(choice: KeepChoice, pid: int) -> str | None:
    """Where the capture goes, decided before the work: the working folder, or the one for temporary files."""
    if choice.no_bundle:
        return None
    if choice.bundle is not None:
        refuse_overwriting(choice.bundle, force=choice.force)
        return choice.bundle
    name = bundle.bundle_name(pid, time.time())
    # In containers the working folder is often read-only.
    return name if os.access(".", os.W_OK) else str(Path(tempfile.gettempdir()) / name)


class Looking:
    """Takes one capture, tells what happens, and keeps a bundle complete after every look."""

    def __init__(
        self,
        knowledge: Knowledge,
        talk: Conversation,
        state: State,
        *,
        strict: bool,
        path: str | None,
        must_save: bool,
    ) -> None:
        self._knowledge = knowledge
        self._talk = talk
        self._state = state
        self._redactor = Redactor(knowledge.redaction, strict=strict)
        self._path = path
        self._must_save = must_save
        self._writer: bundle.BundleWriter | None = None
        self._written = 0

    def take(self, tree: Tree, plan: Plan, *, stops_early: bool) -> Taken:
        """The capture, redacted and saved; a signal ends it early with what there is."""
        if plan.use_ras:
            self._talk.warn(WARNING)
        count = len(tree.members)
        self._talk.tell(
            f"{tree.server or 'job'} at pid {tree.root}: {count} process{'es' if count != 1 else ''}, "
            f"{plan.snapshots} look{'s' if plan.snapshots != 1 else ''} over {plan.offset_s(plan.snapshots - 1):.3g} s"
        )
        is_interrupted = False
        with self._talk.working(f"look 1 of {plan.snapshots}") as label:
            try:
                is_enough = self._is_proven if stops_early else None
                capture = take_capture(tree, plan, on_snapshot=self._follow(plan, label), is_enough=is_enough)
            except Interrupted as interruption:
                capture, is_interrupted = interruption.capture, True
        redacted = self._redactor.capture(capture)
        if redacted.snapshots:
            self._save(lambda path: bundle.write(redacted, path))
        return Taken(redacted, is_interrupted)

    def _follow(self, plan: Plan, label: Callable[[str], None]) -> Callable[[Capture], None]:
        def follow(capture: Capture) -> None:
            done = len(capture.snapshots)
            snapshot = capture.snapshots[-1]
            took = f" in {snapshot.duration_s:.1f} s" if snapshot.duration_s is not None else ""
            label(f"look {done} of {plan.snapshots}: {len(snapshot.processes)} processes{took}")
            for gap in snapshot.gaps:
                self._talk.explain(f"not seen: {gap.source} on {gap.subject}: {gap.reason}", 2)
            if done > self._written:
                self._written = done
                self._save(lambda path: self._add(capture, path))

        return follow

    def _add(self, capture: Capture, path: str) -> None:
        if path == "-":
            return  # A stream cannot be taken back, and a later look may show that something is secret.
        if self._writer is None:
            head = self._redactor.capture(replace(capture, snapshots=()))
            self._writer = bundle.BundleWriter(path, tool=head.tool, target=head.target, hosts=head.hosts)
        self._writer.add(self._redactor.snapshot(capture.snapshots[-1]))
        self._state.bundle = path

    def _save(self, write: Callable[[str], None]) -> None:
        """Write the bundle; a full disk must not cost the diagnosis, unless the bundle is what was asked for."""
        if self._path is None:
            return
        try:
            write(self._path)
            self._state.bundle = None if self._path == "-" else self._path
        except HangdoctorError as error:
            if self._must_save:
                raise
            self._talk.warn(f"hangdoctor: {error.message}; going on without a bundle")
            self._path = None

    def _is_proven(self, capture: Capture) -> bool:
        """Two looks that prove it are as good as three; one alone never shows that nothing moves."""
        if len(capture.snapshots) < 2:
            return False
        verdict = diagnose(capture, self._knowledge).verdict
        return verdict.confidence is Confidence.CERTAIN and verdict.kind is not Kind.UNKNOWN
