"""Several captures of one job (a host each) as one: carried by hand, or brought by ``--hosts``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from hangdoctor.model import Capture, Frame, Gap, Host, Process, Snapshot, Stack, Thread


def merge_captures(captures: Sequence[Capture]) -> Capture:
    """Snapshot by snapshot, in order; the first capture gives the target. Raises ValueError for no capture.

    Looks of different hosts are put together by their number, not by their clocks: hosts' clocks differ. Equal stacks
    become one object, so that a thousand ranks in the same place are matched and compared once.
    """
    if not captures:
        raise ValueError("no capture")
    first = captures[0]
    named = [_with_host(capture) for capture in _told_apart(captures)]
    shared = _SharedStacks()
    snapshots = tuple(
        _join([shared.snapshot(s) for s in row if s is not None])
        for row in zip_longest(*(c.snapshots for c in named))
    )
    return replace(
        first,
        hosts=_unique(h for c in named for h in c.hosts),
        snapshots=snapshots,
        gaps=tuple(dict.fromkeys(gap for c in named for gap in c.gaps)),
        origin=first.origin
        if len({c.origin for c in captures}) == 1
        else ", ".join(dict.fromkeys(c.origin for c in captures)),
    )


def rename_host(capture: Capture, name: str) -> Capture:
    """A capture of one host under another name."""
    (host,) = capture.hosts
    renamed = replace(capture, hosts=(replace(host, name=name),))
    return replace(
        renamed,
        snapshots=tuple(
            replace(
                snapshot,
                processes=tuple(
                    replace(p, host=name) if p.host == host.name else p for p in snapshot.processes
                ),
                gpus=tuple(replace(g, host=name) if g.host == host.name else g for g in snapshot.gpus),
            )
            for snapshot in renamed.snapshots
        ),
    )


def _told_apart(captures: Sequence[Capture]) -> Iterator[Capture]:
    """Two machines that call themselves the same (``localhost``) are two: their boots differ."""
    boots: dict[str, list[str | None]] = {}
    for capture in captures:
        if len(capture.hosts) != 1 or capture.hosts[0].boot_id is None:
            yield capture
            continue
        host = capture.hosts[0]
        known = boots.setdefault(host.name, [])
        if host.boot_id not in known:
            known.append(host.boot_id)
        place = known.index(host.boot_id)
        yield rename_host(capture, f"{host.name} ({place + 1})") if place else capture


def _with_host(capture: Capture) -> Capture:
    """Pids are only unique on their host, so whatever holds one must name it."""
    if len(capture.hosts) != 1:
        return capture
    name = capture.hosts[0].name

    def named(process: Process) -> Process:
        return process if process.host is not None else replace(process, host=name)

    def gap_here(gap: Gap) -> Gap:
        subject = gap.subject
        if subject == name or subject.endswith(f" on {name}") or subject.startswith("host "):
            return gap
        return replace(gap, subject=name if subject == "this machine" else f"{subject} on {name}")

    return replace(
        capture,
        snapshots=tuple(
            replace(
                snapshot,
                processes=tuple(named(p) for p in snapshot.processes),
                gpus=tuple(g if g.host is not None else replace(g, host=name) for g in snapshot.gpus),
                file_locks=tuple(x if x.host else replace(x, host=name) for x in snapshot.file_locks),
                logs=tuple(x if x.host else replace(x, host=name) for x in snapshot.logs),
                gaps=tuple(gap_here(gap) for gap in snapshot.gaps),
            )
            for snapshot in capture.snapshots
        ),
        gaps=tuple(gap_here(gap) for gap in capture.gaps),
    )


class _SharedStacks:
    """Equal stacks and frames of several captures, once each.

    A bundle holds each stack of its own once; between bundles equal ones are found by their frames. Comparing costs
    a bundle's table, not its threads: 8 ranks x 200 threads have some hundred stacks.
    """

    def __init__(self) -> None:
        self._frames: dict[Frame, Frame] = {}
        self._stacks: dict[tuple[tuple[int, ...], str, bool], Stack] = {}
        self._known: dict[int, Stack] = {}
        self._kept: list[Stack] = []

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, processes=tuple(map(self._process, snapshot.processes)))

    def _process(self, process: Process) -> Process:
        threads = tuple(map(self._thread, process.threads))
        if all(a is b for a, b in zip(threads, process.threads, strict=True)):
            return process
        return replace(process, threads=threads)

    def _thread(self, thread: Thread) -> Thread:
        stack = thread.stack
        if stack is None:
            return thread
        same = self._known.get(id(stack))
        if same is None:
            same = self._known[id(stack)] = self._intern(stack)
            self._kept.append(stack)  # an object that was freed would lend its id to another
        return thread if same is stack else replace(thread, stack=same)

    def _intern(self, stack: Stack) -> Stack:
        frames = tuple([self._frames.setdefault(frame, frame) for frame in stack.frames])
        key = (tuple(map(id, frames)), stack.method.value, stack.is_torn)
        known = self._stacks.get(key)
        if known is None:
            is_new = all(a is b for a, b in zip(frames, stack.frames, strict=True))
            known = self._stacks[key] = stack if is_new else replace(stack, frames=frames)
        return known


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
        gaps=tuple(dict.fromkeys(g for s in snapshots for g in s.gaps)),
        paused_s=max(pauses, default=None),
        messages=tuple(m for s in snapshots for m in s.messages),
        ras=tuple(a for s in snapshots for a in s.ras),
    )


def _unique(hosts: Iterable[Host]) -> tuple[Host, ...]:
    return tuple({host.name: host for host in hosts}.values())
