"""The loop: look, judge, show; on a trigger look closely, write it down, call somebody, and go on.

Between triggers a look is light: /proc and stacks, no GPU, no lock owners. As soon as nothing proves progress the
looks become close ones, so that the next verdict has all the evidence.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from re import Pattern

from hangdoctor.analysis import build_case, diagnose, write_report
from hangdoctor.case import Case
from hangdoctor.collect import Plan, RollingCapture, Tree, take_capture
from hangdoctor.errors import HangdoctorError, TargetNotFound
from hangdoctor.knowledge import Knowledge
from hangdoctor.model import Capture, LogTail, Snapshot
from hangdoctor.redact import Redactor
from hangdoctor.report import Confidence, Evidence, Kind, Report
from hangdoctor.watching.cost import Meter
from hangdoctor.watching.hook import Hook
from hangdoctor.watching.log_search import LogSearch
from hangdoctor.watching.picture import Picture, Since
from hangdoctor.watching.probe import PROBE_S, Probe
from hangdoctor.watching.store import Filed, Store, hook_environment
from hangdoctor.watching.triggers import (
    Event,
    LogWatch,
    ProbeAnswer,
    ProbeWatch,
    Reason,
    Roll,
    Sighting,
    StallClock,
    sight,
)
from hangdoctor.watching.view import View

WINDOW = 3
"""Looks that a verdict is made of while watching: old progress must not hide that it has stopped."""


class Ending(Enum):
    """Why a watch came to its end. (Ctrl-C is a KeyboardInterrupt.)"""

    REPORTED = "reported once"
    TIME_UP = "time is up"
    TARGET_ENDED = "the target has ended"


@dataclass(frozen=True, slots=True)
class Orders:
    """What the user asked for."""

    interval_s: float
    stall_s: float
    plan: Plan
    """For the full capture on a trigger."""
    probe: str | None = None
    probe_s: float = PROBE_S
    patterns: tuple[Pattern[str], ...] = ()
    is_once: bool = False
    for_s: float | None = None
    redacted: tuple[str, ...] = ()


class Watch:
    """One watch over one job. :meth:`run` it once."""

    def __init__(
        self,
        rolling: RollingCapture,
        orders: Orders,
        knowledge: Knowledge,
        store: Store,
        redactor: Redactor,
        hook: Hook | None,
        say: Callable[[str], None],
    ) -> None:
        self._rolling = rolling
        self._orders = orders
        self._knowledge = knowledge
        self._store = store
        self._redactor = redactor
        self._hook = hook
        self._say = say
        self._stall = StallClock(orders.stall_s)
        self._roll = Roll()
        self._probing = ProbeWatch()
        self._log = LogWatch(orders.stall_s)
        self._search = LogSearch(orders.patterns, orders.plan.logs)
        self._since = Since()
        self._meter = Meter()
        self._window: deque[Snapshot] = deque(maxlen=WINDOW)
        self._is_close = False
        self._took_s = 0.0
        self._can_store = True
        self.last_report: Report | None = None
        """Of the last trigger."""
        self.filed: list[Filed] = []

    def run(self, view: View) -> Ending:
        """Watch until there is an end to it. Raises KeyboardInterrupt, and HangdoctorError when it cannot begin."""
        self._store.begin(self._rolling.capture())
        began = time.monotonic()
        try:
            while True:
                looked = time.monotonic()
                if not self._step(view):
                    return Ending.TARGET_ENDED
                if self.filed and self._orders.is_once:
                    self._tell_hook(self._hook.finish() if self._hook else None)
                    return Ending.REPORTED
                if not self._rest(looked, began):
                    return Ending.TIME_UP
        except KeyboardInterrupt:
            self._keep_unfinished()
            raise
        finally:
            self._rolling.close()

    def _rest(self, looked: float, began: float) -> bool:
        """Sleep until the next look, at least as long as the last one took. False when time is up."""
        until = looked + max(self._orders.interval_s, 2 * self._took_s)
        if self._orders.for_s is not None:
            end = began + self._orders.for_s
            if time.monotonic() >= end:
                return False
            until = min(until, end)
        time.sleep(max(0.0, until - time.monotonic()))
        return True

    def _step(self, view: View) -> bool:
        """One look and what follows from it. False when there is nothing left to look at."""
        began = time.monotonic()
        url = self._orders.probe
        probe = Probe(url, self._orders.probe_s) if url is not None else None
        capture = self._look()
        answer = probe.answer() if probe is not None else None
        snapshot = capture.snapshots[-1]
        if not snapshot.processes:
            self._finish_ended(capture)
            return False
        # Redacted once and used three times: it costs as much as all of the reading.
        masked = self._redactor.snapshot(snapshot)
        self._keep(masked)
        self._window.append(masked)
        now = time.monotonic()
        head = self._redactor.capture(replace(capture, snapshots=()))
        case = build_case(replace(head, snapshots=tuple(self._window)), self._knowledge)
        report = write_report(case, self._knowledge)
        sighting = sight(case, report, now)
        self._is_close = not sighting.is_moving
        event = self._judge(sighting, answer, snapshot)
        view.show(self._picture(case, report, answer, now))
        self._took_s = time.monotonic() - began
        self._tell_hook(self._hook.poll() if self._hook else None)
        if event is not None:
            self._act(event, capture)
        return True

    def _look(self) -> Capture:
        close = self._is_close
        plan = replace(
            self._orders.plan, native=False, use_gpu=close, use_locks=close, use_flight=close, use_spin=False
        )
        capture = self._rolling.look(plan)
        self._meter.add(capture.snapshots[-1].duration_s, capture.snapshots[-1].paused_s)
        return capture

    def _judge(self, sighting: Sighting, answer: ProbeAnswer | None, snapshot: Snapshot) -> Event | None:
        """All triggers see every look; the most telling one that fires is acted on."""
        was_reported = self._stall.is_reported
        events = [
            self._roll.update(sighting),
            self._stall.update(sighting),
            self._probing.update(answer) if answer is not None else None,
            self._log.update(
                [(p, self._clean(line)) for p, line in self._search.search(snapshot)], sighting.at
            ),
        ]
        if was_reported and not self._stall.is_reported:
            self._say("It moves again.")
        return next((event for event in events if event is not None), None)

    def _clean(self, line: str) -> str:
        """A log line without secrets."""
        masked = self._redactor.snapshot(Snapshot(None, (), logs=(LogTail("", None, None, (line,)),)))
        return masked.logs[0].lines[0]

    def _picture(self, case: Case, report: Report, answer: ProbeAnswer | None, now: float) -> Picture:
        verdict = report.verdict
        cause = f", {verdict.cause.value}" if verdict.cause else ""
        since = self._stall.stopped_since
        return Picture(
            at=time.time(),
            target=f"{self._rolling.tree.server or 'job'} at pid {self._rolling.tree.root}",
            verdict=f"{verdict.kind.value} ({verdict.confidence.value}{cause})",
            summary=verdict.summary,
            rows=self._since.rows(case, report, now),
            stopped_s=None if since is None else now - since,
            probe=None if answer is None else answer.text,
            cost=self._meter.read(),
        )

    def _act(self, event: Event, before: Capture) -> None:
        """Look closely, then report; a stall that the closer look refutes is no news."""
        self._say(f"{event.text[:1].upper()}{event.text[1:]}: looking closely …")
        capture = self._capture_fully(self._rolling.tree, before, event.reason)
        report = diagnose(capture, self._knowledge)
        if event.reason is Reason.STALLED and report.verdict.kind in (Kind.READY, Kind.SLOW):
            self._say(f"It moves after all: {report.verdict.summary}")
            self._stall.refuted()
            return
        if event.reason is Reason.STALLED:
            self._stall.reported()
        self._file(event, capture, report)

    def _capture_fully(self, tree: Tree, before: Capture, reason: Reason) -> Capture:
        """As attach does. Of a rank that is gone the look before is needed, for later ones do not know it."""
        try:
            capture = take_capture(tree, self._orders.plan, is_enough=self._is_proven)
        except TargetNotFound:
            return self._redactor.capture(before)
        if reason is Reason.GONE:
            earlier = before.snapshots[-2:]
            capture = replace(capture, snapshots=(*earlier, *capture.snapshots))
        return self._redactor.capture(capture)

    def _is_proven(self, capture: Capture) -> bool:
        if len(capture.snapshots) < 2:
            return False
        verdict = diagnose(capture, self._knowledge).verdict
        return verdict.confidence is Confidence.CERTAIN and verdict.kind is not Kind.UNKNOWN

    def _finish_ended(self, capture: Capture) -> None:
        """Nothing is left to look at: the last looks are all there is."""
        event = self._roll.end()
        seen = [snapshot for snapshot in capture.snapshots if snapshot.processes][-WINDOW:]
        self._say(f"{event.text[:1].upper()}{event.text[1:]}.")
        if seen:
            last = self._redactor.capture(replace(capture, snapshots=tuple(seen)))
            self._file(event, last, diagnose(last, self._knowledge))
            self._tell_hook(self._hook.finish() if self._hook else None)

    def _file(self, event: Event, capture: Capture, report: Report) -> None:
        """Write the report and call the user's command."""
        report = _with_trigger(replace(report, redacted=self._orders.redacted), event)
        self.last_report = report
        try:
            filed = self._store.file(capture, report, event.reason)
        except HangdoctorError as error:
            self._say(f"hangdoctor: {error.message}; going on")
            return
        self.filed = [*self.filed[-1:], filed]
        self._say(f"{report.verdict.kind.value}: {report.verdict.summary}")
        self._say(f"Report: {filed.report}")
        if self._hook is not None:
            self._tell_hook(self._hook.start(hook_environment(filed, report, event.reason, event.text)))

    def _tell_hook(self, said: str | None) -> None:
        if said is not None:
            self._say(f"--exec: {said}")

    def _keep(self, snapshot: Snapshot) -> None:
        """A full disk must not end the watch; it is said once."""
        try:
            self._store.add(snapshot)
            self._can_store = True
        except HangdoctorError as error:
            if self._can_store:
                self._say(f"hangdoctor: {error.message}; watching on")
            self._can_store = False

    def _keep_unfinished(self) -> None:
        """Interrupted in the first look: what has been seen of it is better than nothing."""
        capture = self._rolling.capture()
        if len(capture.snapshots) == 1 and capture.gaps and capture.snapshots[0].processes:
            self._keep(self._redactor.snapshot(capture.snapshots[0]))


def _with_trigger(report: Report, event: Event) -> Report:
    """What called us is evidence, too."""
    entry = Evidence(f"E{len(report.evidence) + 1}", "the job", None, "hangdoctor watch", event.text)
    return replace(report, evidence=(*report.evidence, entry))
