"""Answers of hosts → one capture of the job, in which every host that could not be seen is a gap."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hangdoctor import bundle
from hangdoctor.cluster.answers import Answer, trouble
from hangdoctor.errors import HangdoctorError, NothingCollected
from hangdoctor.model import Capture, Gap, Host
from hangdoctor.parsers.merge import merge_captures, rename_host

_CONTAINER_ID = re.compile(r"[0-9a-f]{12}")
"""What docker calls a host that was given no name; nobody knows it by that."""
LATE_S = 1.0
"""A first look that began later than this after the agreed moment is worth a word."""


def read_captures(answers: Sequence[Answer]) -> tuple[tuple[Capture, ...], tuple[Gap, ...]]:
    """The capture of each host that sent one, with its clock, and a gap for each that did not."""
    read: list[tuple[Answer, Capture]] = []
    gaps: list[Gap] = []
    shared = bundle.Shared()
    for answer in answers:
        if answer.trouble is not None:
            gaps.append(answer.trouble)
            continue
        try:
            read.append((answer, bundle.read(io.BytesIO(answer.output), shared=shared)))
        except HangdoctorError as error:
            gaps.append(trouble(answer.host, error.message, error.hint))
    names = Counter(_own_name(capture) for _, capture in read)
    captures = tuple(_placed(answer, capture, names) for answer, capture in read)
    return captures, tuple(gaps)


def combine(captures: Sequence[Capture], gaps: Sequence[Gap], asked: str) -> Capture:
    """One capture of all hosts. Raises NothingCollected, with every host's reason, when there is none."""
    if not captures:
        reasons = "\n".join(f"  {gap.subject}: {gap.reason}" for gap in gaps)
        remedy = next((gap.remedy for gap in gaps if gap.remedy), None)
        raise NothingCollected(f"no host could be looked at:\n{reasons}", hint=remedy)
    merged = merge_captures(captures)
    target = replace(merged.target, asked=f"{merged.target.asked} on {asked}")
    return replace(merged, target=target, gaps=(*merged.gaps, *gaps))


def _own_name(capture: Capture) -> str | None:
    return capture.hosts[0].name if capture.hosts else None


def _placed(answer: Answer, capture: Capture, names: Counter[str | None]) -> Capture:
    """With its place in the round: the clock, the moment, and a name that no other host has."""
    if not capture.hosts:
        return replace(capture, hosts=(Host(answer.host, asked=answer.host),))
    host = capture.hosts[0]
    began = capture.snapshots[0].taken_at if capture.snapshots else None
    clock = answer.clock
    late = None
    if began is not None and clock is not None and answer.start_at is not None:
        late = began - clock.offset_s - answer.start_at
    known = replace(
        host,
        asked=answer.host,
        clock_offset_s=clock.offset_s if clock else None,
        clock_uncertainty_s=clock.uncertainty_s if clock else None,
        start_delay_s=late,
    )
    capture = replace(capture, hosts=(known,))
    if names[host.name] > 1 or _CONTAINER_ID.fullmatch(host.name):
        capture = rename_host(capture, answer.host)
    if late is not None and late > LATE_S:
        reason = f"its first look began {late:.1f} s after the others' agreed moment"
        capture = replace(
            capture, gaps=(*capture.gaps, trouble(answer.host, reason, "uptime there: is it busy?"))
        )
    return capture
