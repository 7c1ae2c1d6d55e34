"""Capture + knowledge → Case: interpret every thread of every look and lay the looks side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hangdoctor.analysis import identify
from hangdoctor.analysis.activity import classify
from hangdoctor.analysis.identify import FOREIGN, PARENT, PROCESS, Identity
from hangdoctor.analysis.lead import choose_lead
from hangdoctor.analysis.loads import Pair
from hangdoctor.analysis.progress import (
    compare_views,
    compile_progress,
    movement_of,
    progress_of,
    strongest,
)
from hangdoctor.analysis.world import read_world
from hangdoctor.case import Case, Key, Member, Movement, ThreadTrack, ThreadView
from hangdoctor.knowledge import Knowledge
from hangdoctor.knowledge.catalogue import PhaseMatch, Role, RoleKind, Stage
from hangdoctor.model import Activity, Capture, Process, Rank, Stack, Thread
from hangdoctor.report import Progress, ProgressClass

DEFAULT_TICKS_PER_S = 100
_IDLE_PARENT = frozenset(
    {
        Activity.WAIT_CHILD,
        Activity.WAIT_WORK,
        Activity.WAIT_PEER,
        Activity.TIMED_SLEEP,
        Activity.BLOCKED,
        Activity.WAIT_EVENT,
        Activity.WAIT_LOCK,
        Activity.WAIT_IO,
        Activity.STOPPED,
    }
)


def build_case(capture: Capture, knowledge: Knowledge) -> Case:
    """Interpret a capture. Pure; the same capture and knowledge give the same case."""
    everyone = [p for snapshot in capture.snapshots for p in snapshot.processes]
    server = knowledge.find_server(everyone)
    identities = identify.collect_identities(capture, knowledge, server)
    world = read_world(everyone, server)
    builder = _Builder(capture, knowledge, server, identities, world.per_node)
    drafts = [builder.draft(identity) for identity in identities]
    members = builder.finish(drafts)
    return Case(
        capture=capture,
        server=server,
        server_version=_version(everyone, server),
        members=members,
        expected_world=world.ranks,
        expected_local=world.local,
        world=world,
    )


def _version(processes: Sequence[Process], server: str | None) -> str | None:
    return next((p.versions[server] for p in processes if server and server in p.versions), None)


class _Builder:
    """One pass over one capture; holds what every thread needs (clock, tick length, match cache)."""

    def __init__(
        self,
        capture: Capture,
        knowledge: Knowledge,
        server: str | None,
        identities: Sequence[Identity],
        expected: int | None,
    ) -> None:
        self._expected = expected
        self._capture = capture
        self._knowledge = knowledge
        self._server = server
        self._identities = identities
        ticks = next((h.ticks_per_s for h in capture.hosts if h.ticks_per_s), None)
        self._ticks_per_s = ticks or DEFAULT_TICKS_PER_S
        self._matches: dict[tuple[int, str | None], PhaseMatch | None] = {}
        self._children: dict[tuple[str | None, int], list[Identity]] = {}
        for identity in identities:
            ppid = identity.last.ppid
            if ppid is not None:
                self._children.setdefault((identity.key.host, ppid), []).append(identity)

    # -- threads ---------------------------------------------------------------------------------

    def draft(self, identity: Identity) -> tuple[Identity, tuple[ThreadTrack, ...]]:
        """Interpret the threads of one process over all its looks."""
        role_id = identity.role.id if identity.role else None
        rows: dict[object, list[ThreadView | None]] = {}
        for index, process in enumerate(identity.looks):
            if process is None:
                continue
            for position, thread in enumerate(process.threads):
                # Dumps without tids: a thread is recognised by its name, else by its place.
                handle = thread.tid if thread.tid is not None else (thread.name, position)
                row = rows.setdefault(handle, [None] * len(identity.looks))
                row[index] = self._view(thread, process, role_id)
        is_dark = not any(t.stack for look in identity.looks if look is not None for t in look.threads)
        seconds = [self._seconds(identity, index) for index in range(len(identity.looks) - 1)]
        return identity, tuple(self._track(row, seconds, is_dark=is_dark) for row in rows.values())

    def _view(self, thread: Thread, process: Process, role_id: str | None) -> ThreadView:
        match = self._match(thread.stack, role_id)
        return ThreadView(
            thread=thread,
            activity=classify(thread, match, process),
            match=match,
            machinery=self._knowledge.machinery(thread),
        )

    def _match(self, stack: Stack | None, role_id: str | None) -> PhaseMatch | None:
        if stack is None or not stack.frames:
            return None
        key = (id(stack), role_id)  # stacks live as long as the capture, so their ids are stable
        if key not in self._matches:
            self._matches[key] = self._knowledge.match(stack, self._server, role_id)
        return self._matches[key]

    def _track(
        self, row: Sequence[ThreadView | None], seconds: Sequence[float], *, is_dark: bool
    ) -> ThreadTrack:
        windows = [
            compare_views(row[index], row[index + 1], length, self._ticks_per_s, is_dark=is_dark)
            for index, length in enumerate(seconds)
        ]
        tid = next((view.thread.tid for view in row if view is not None), None)
        return ThreadTrack(tid, tuple(row), tuple(windows), movement_of(windows))

    def _seconds(self, identity: Identity, index: int) -> float:
        """Wall time between look ``index`` and the next, by the process' own clock where it has one."""
        before, after = identity.looks[index], identity.looks[index + 1]
        own = [p.taken_at for p in (before, after) if p is not None and p.taken_at is not None]
        if len(own) == 2:
            return max(0.0, own[1] - own[0])
        a, b = self._capture.snapshots[index].taken_at, self._capture.snapshots[index + 1].taken_at
        return max(0.0, b - a) if a is not None and b is not None else 0.0

    # -- processes -------------------------------------------------------------------------------

    def finish(self, drafts: Sequence[tuple[Identity, tuple[ThreadTrack, ...]]]) -> tuple[Member, ...]:
        """Decide the roles that text did not give, number the nameless ranks, add progress."""
        has_python = any(_is_python(identity) for identity, _ in drafts)
        leads = {identity.key: choose_lead(identity, tracks) for identity, tracks in drafts}
        resolved = [
            replace(identity, role=self._role(identity, leads[identity.key], has_python))
            for identity, _ in drafts
        ]
        dealt = identify.number_unnamed_ranks(resolved, self._expected)
        return tuple(
            self._member(identity, tracks, leads[identity.key], dealt)
            for identity, (_, tracks) in zip(resolved, drafts, strict=True)
        )

    def _role(self, identity: Identity, lead: ThreadTrack | None, has_python: bool) -> Role:
        if identity.role is not None:
            return identity.role
        if not _is_python(identity):
            # A lone native process is what the user asked about; beside Python it is an accessory.
            return FOREIGN if has_python else PROCESS
        children = self._children.get((identity.key.host, identity.key.pid), [])
        feeds_python = any(_is_python(child) and not _is_helper(child) for child in children)
        waits = lead is not None and lead.last.activity in _IDLE_PARENT
        return PARENT if feeds_python and waits and identity.rank is None else PROCESS

    def _member(
        self,
        identity: Identity,
        tracks: tuple[ThreadTrack, ...],
        lead: ThreadTrack | None,
        dealt: Mapping[Key, Rank],
    ) -> Member:
        assert identity.role is not None
        compilers = self._compilers(identity)
        latest = tuple(c for c in (i.looks[-1] for i in compilers) if c is not None)
        return Member(
            key=identity.key,
            role=identity.role,
            rank=identity.rank or dealt.get(identity.key),
            looks=identity.looks,
            threads=tracks,
            lead=lead,
            progress=self._progress(identity, lead, compilers),
            compilers=latest,
        )

    def _compilers(self, identity: Identity) -> list[Identity]:
        """Build tools anywhere below a process (ninja → nvcc → cicc)."""
        if identity.role is None or identity.role.kind is not RoleKind.RANK:
            return []
        found: list[Identity] = []
        queue = list(self._children.get((identity.key.host, identity.key.pid), []))
        seen = {identity.key}
        while queue:
            child = queue.pop()
            if child.key in seen:
                continue
            seen.add(child.key)
            kind = child.role.kind if child.role else None
            if kind is RoleKind.RANK:
                continue
            if kind is RoleKind.COMPILER:
                found.append(child)
            queue.extend(self._children.get((child.key.host, child.key.pid), []))
        return found

    def _progress(
        self, identity: Identity, lead: ThreadTrack | None, compilers: Sequence[Identity]
    ) -> Progress:
        pairs, build = [], []
        for index in range(len(identity.looks) - 1):
            before, after = identity.looks[index], identity.looks[index + 1]
            if before is None or after is None:
                continue
            seconds = self._seconds(identity, index)
            pairs.append(Pair(before, after, seconds))
            if compilers:
                build.append(
                    compile_progress(
                        [c for c in (i.looks[index] for i in compilers) if c is not None],
                        [c for c in (i.looks[index + 1] for i in compilers) if c is not None],
                        seconds,
                    )
                )
        own = progress_of(pairs, is_loading=_is_loading(lead), is_serving=_is_serving(lead))
        candidates = [own, *reversed(build)]
        if lead is not None and lead.movement is Movement.MOVING:
            candidates.append(Progress(ProgressClass.WEAK, "its stack changes"))
        return strongest(candidates)


def _is_loading(lead: ThreadTrack | None) -> bool:
    return lead is not None and any(p is not None and p.cause == "loading" for p in lead.phases)


def _is_serving(lead: ThreadTrack | None) -> bool:
    return lead is not None and any(p is not None and p.stage is Stage.SERVING for p in lead.phases)


def _is_python(identity: Identity) -> bool:
    process = identity.last
    if any(thread.stack is not None for thread in process.threads):
        return True
    names = (process.comm or "", (process.exe or "").rsplit("/", 1)[-1], *process.command[:1])
    return any("python" in name for name in names) or "python" in process.versions


def _is_helper(identity: Identity) -> bool:
    return identity.role is not None and identity.role.kind in (RoleKind.HELPER, RoleKind.COMPILER)
