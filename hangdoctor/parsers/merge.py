"""Several captures of one job (a host each) as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest

from hangdoctor.model import Capture, Host, Process, Snapshot


def merge_captures(captures: Sequence[Capture]) -> Capture:
    """Snapshot by snapshot, in order; the first capture gives the target. Raises ValueError for no capture.

    Looks of different hosts are put together by their number, not by their clocks: hosts' clocks differ.
    """
    if not captures:
        raise ValueError("no capture")
    first = captures[0]
    named = [_with_host(capture) for capture in captures]
    snapshots = tuple(
        _join([s for s in row if s is not None]) for row in zip_longest(*(c.snapshots for c in named))
    )
    return replace(
        first,
        hosts=_unique(h for c in captures for h in c.hosts),
        snapshots=snapshots,
        gaps=tuple(gap for c in captures for gap in c.gaps),
        origin=first.origin
        if len({c.origin for c in captures}) == 1
        else ", ".join(dict.fromkeys(c.origin for c in captures)),
    )


def _with_host(capture: Capture) -> Capture:
    """Pids are only unique on their host, so every process must name it."""
    if len(capture.hosts) != 1:
        return capture
    name = capture.hosts[0].name

    def named(process: Process) -> Process:
        return process if process.host is not None else replace(process, host=name)

    return replace(
        capture,
        snapshots=tuple(
            replace(snapshot, processes=tuple(named(p) for p in snapshot.processes))
            for snapshot in capture.snapshots
        ),
    )


def _join(snapshots: Sequence[Snapshot]) -> Snapshot:
    times = [s.taken_at for s in snapshots if s.taken_at is not None]
    durations = [s.duration_s for s in snapshots if s.duration_s is not None]
    pauses = [s.paused_s for s in snapshots if s.paused_s is not None]
    return Snapshot(
        taken_at=min(times, default=None),
        processes=tuple(p for s in snapshots for p in s.processes),
        duration_s=max(durations, default=None),
        gpus=tuple(g for s in snapshots for g in s.gpus),
        file_locks=tuple(x for s in snapshots for x in s.file_locks),
        logs=tuple(x for s in snapshots for x in s.logs),
        load=snapshots[0].load if len(snapshots) == 1 else None,
        gaps=tuple(g for s in snapshots for g in s.gaps),
        paused_s=max(pauses, default=None),
        messages=tuple(m for s in snapshots for m in s.messages),
        ras=tuple(a for s in snapshots for a in s.ras),
    )


def _unique(hosts: Iterable[Host]) -> tuple[Host, ...]:
    return tuple({host.name: host for host in hosts}.values())
