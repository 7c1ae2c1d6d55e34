"""Case + verdict → Report: the tables, chains, environment and next steps a reader needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from hangdoctor.analysis.build import DEFAULT_TICKS_PER_S
from hangdoctor.analysis.describe import moved, name_thread
from hangdoctor.analysis.evidence import EvidenceBook
from hangdoctor.analysis.findings import Finding, Situation
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.analysis.last_words import last_words
from hangdoctor.analysis.matches import known_matches
from hangdoctor.analysis.nccl import read_nccl_env
from hangdoctor.analysis.next_steps import next_steps
from hangdoctor.analysis.ras_view import cite_ras, ras_gaps
from hangdoctor.analysis.series import counters_of
from hangdoctor.analysis.simultaneity import spread_of, start_skew
from hangdoctor.analysis.verdict import assess, write_verdict
from hangdoctor.analysis.waits import Edge, Node
from hangdoctor.analysis.world import world_gaps
from hangdoctor.case import Case, Member, ThreadTrack
from hangdoctor.knowledge import Knowledge
from hangdoctor.knowledge.catalogue import RoleKind
from hangdoctor.model import Frame, Gap, Gpu, Process
from hangdoctor.report import (
    Group,
    Party,
    ProcessRow,
    Report,
    Series,
    TargetInfo,
    ThreadRow,
    Timings,
    Wait,
)


def write_report(case: Case, knowledge: Knowledge) -> Report:
    """Diagnose a case and write everything down. Pure."""
    situation = assess(case, knowledge)
    book = EvidenceBook()
    verdict, finding = write_verdict(situation, book)
    cite_ras(book, case)
    nccl = read_nccl_env(
        {m.label: m.last.environ for m in case.ranks if m.last.environ},
        case.server,
        server_version=case.server_version,
        versions={m.label: m.last.versions for m in case.ranks if m.last.versions},
    )
    return Report(
        tool_version=case.capture.tool.version,
        knowledge=knowledge.revision,
        target=_target(case),
        verdict=verdict,
        processes=tuple(_row(case, m) for m in _in_order(case)),
        groups=_groups(case, finding),
        waits=tuple(_wait(situation, e) for e in situation.graph.edges),
        nccl_env=nccl,
        evidence=book.entries,
        gaps=_gaps(case),
        next_steps=next_steps(situation, finding),
        matches=known_matches(case, knowledge, finding),
        log_tail=_log_tail(case),
        log_line=last_words(case, knowledge),
        timings=_timings(case),
    )


def _target(case: Case) -> TargetInfo:
    target = case.capture.target
    host = case.capture.hosts[0].name if len(case.capture.hosts) > 1 else None
    roots = (m for m in case.members if m.pid == target.root_pid and host in (None, m.key.host))
    root = next(roots, None) or next(iter(case.members), None)
    versions: dict[str, str] = {}
    for member in case.ranks:
        for name, version in member.last.versions.items():
            versions.setdefault(name, version)
    return TargetInfo(
        pid=target.pid or (root.last.known_pid if root else None),
        host=case.capture.hosts[0].name if case.capture.hosts else None,
        server=case.server,
        server_version=case.server_version,
        started_at=root.last.started_at if root else None,
        command=" ".join(root.last.command) if root and root.last.command else None,
        world_size=case.expected_world or (len(case.ranks) or None),
        versions=versions,
    )


_KIND_ORDER = (RoleKind.RANK, RoleKind.CONTROL, RoleKind.LAUNCHER, RoleKind.COMPILER, RoleKind.HELPER)


def _in_order(case: Case) -> list[Member]:
    def position(member: Member) -> tuple[int, int, int, int, str, int]:
        rank = member.rank
        return (
            _KIND_ORDER.index(member.kind),
            _or_zero(rank.dp if rank else None),
            _or_zero(rank.pp if rank else None),
            _or_zero((rank.tp if rank.tp is not None else rank.global_rank) if rank else None),
            member.label,
            member.pid,
        )

    return sorted(case.members, key=position)


def _or_zero(value: int | None) -> int:
    return value or 0


def _row(case: Case, member: Member) -> ProcessRow:
    lead = member.lead
    return ProcessRow(
        pid=member.pid,
        role=member.role.id,
        rank=member.rank,
        state="gone" if member.is_gone else member.last.state,
        phase=member.phase.id if member.phase else None,
        frame=member.frame,
        progress=member.progress if case.look_count > 1 else None,
        activity=lead.last.activity.value if lead else None,
        cpu_percent=_percent(lead.cpu_share if lead else None),
        gpu=tuple(_gpu_row(gpu, member.pid) for gpu in _gpus_of(case, member)),
        threads=tuple(_thread_row(track) for track in member.threads),
        host=member.key.host,
        command=" ".join(member.last.command) or member.last.comm,
        phases=tuple(p.id if p else None for p in lead.phases) if lead else (),
        title=_title(member.last),
        series=_series(case, member),
    )


def _title(process: Process) -> str | None:
    """A command line of one word that is not the program's own name was put there by the process itself."""
    if len(process.command) != 1:
        return None
    (title,) = process.command
    if process.exe is None:
        return title if "::" in title else None
    is_program = title.removeprefix("-").rsplit("/", 1)[-1] == process.exe.rsplit("/", 1)[-1]
    return None if is_program else title


def _series(case: Case, member: Member) -> tuple[Series, ...]:
    host = member.key.host
    gpus = [[gpu for gpu in snapshot.gpus if gpu.host in (None, host)] for snapshot in case.capture.snapshots]
    ticks = next((h.ticks_per_s for h in case.capture.hosts if h.ticks_per_s), DEFAULT_TICKS_PER_S)
    return counters_of(member.looks, gpus, ticks)


def _thread_row(track: ThreadTrack) -> ThreadRow:
    view = track.last
    call = view.thread.syscall
    return ThreadRow(
        tid=track.tid,
        name=name_thread(track),
        state=view.thread.state,
        activity=view.activity.value,
        phase=view.match.phase.id if view.match else None,
        stack=view.thread.stack.frames if view.thread.stack else (),
        cpu_percent=_percent(track.cpu_share),
        is_machinery=view.machinery is not None,
        waits_on=(call.detail or call.target) if call else None,
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100.0 * share, 1)


def _gpus_of(case: Case, member: Member) -> list[Gpu]:
    return [
        gpu
        for gpu in case.capture.snapshots[-1].gpus
        if gpu.host in (None, member.key.host) and any(p.pid == member.pid for p in gpu.processes)
    ]


def _gpu_row(gpu: Gpu, pid: int) -> Mapping[str, float | int | str | None]:
    own = next((p for p in gpu.processes if p.pid == pid), None)
    return {
        "index": gpu.index,
        "utilization_percent": gpu.utilization_percent,
        "memory_bytes": own.memory_bytes if own else None,
        "power_w": gpu.power_w,
        "power_limit_w": gpu.power_limit_w,
    }


def _groups(case: Case, finding: Finding) -> tuple[Group, ...]:
    """Equivalence classes of ranks and supervisors: same phase, same place. The culprits' class first."""
    classes: dict[tuple[str | None, tuple[str, str] | None, str, str], list[Member]] = defaultdict(list)
    for member in _in_order(case):
        if member.kind in (RoleKind.RANK, RoleKind.CONTROL) or _is_python_launcher(member):
            frame = member.frame
            place = (frame.function, frame.file) if frame else None
            phase = member.phase.id if member.phase else None
            state = "gone" if member.is_gone else member.last.state or ""
            kind = state if state in ("T", "t", "Z", "D", "gone") else ""
            classes[(phase, place, kind, member.role.id)].append(member)
    guilty = {s.member.key for s in finding.suspects}
    groups = []
    for (phase, _, _, _), members in classes.items():
        lead = members[0].lead
        group = Group(
            ranks=tuple(m.label for m in members),
            label=fold_labels(m.label for m in members),
            phase=phase,
            stack=_stack(lead),
            count=len(members),
            moved=_moved(members),
            frame=members[0].frame,
        )
        is_innocent = not any(m.key in guilty for m in members)
        groups.append((is_innocent, _KIND_ORDER.index(members[0].kind), len(members), group))
    return tuple(group for *_, group in sorted(groups, key=lambda row: row[:3]))


def _is_python_launcher(member: Member) -> bool:
    """A shell above or below the job is no line worth reading."""
    return member.kind is RoleKind.LAUNCHER and bool(_stack(member.lead))


def _stack(lead: ThreadTrack | None) -> tuple[Frame, ...]:
    stack = lead.last.thread.stack if lead else None
    return stack.frames if stack else ()


def _moved(members: list[Member]) -> bool | None:
    answers = {moved(m.lead.movement) for m in members if m.lead is not None} - {None}
    return None if not answers else True in answers


def _wait(situation: Situation, edge: Edge) -> Wait:
    return Wait(
        waiter=_party(situation.case, edge.waiter),
        holder=_party(situation.case, edge.holder) if edge.holder is not None else None,
        reason=edge.reason,
        object=edge.object,
        strength=edge.strength,
    )


def _party(case: Case, node: Node) -> Party:
    member = case.by_key.get(node.key)
    pid = node.key.pid if member is None else member.last.known_pid
    return Party(pid, node.tid, member.label if member else None, node.key.host)


def _gaps(case: Case) -> tuple[Gap, ...]:
    """All gaps once: the same one in every look is one gap."""
    seen: dict[tuple[str, str, str], Gap] = {}
    seen_gaps = (gap for snapshot in case.capture.snapshots for gap in snapshot.gaps)
    for gap in (*case.capture.gaps, *seen_gaps, *ras_gaps(case), *world_gaps(case)):
        seen.setdefault((gap.source, gap.subject, gap.reason), gap)
    return tuple(seen.values())


def _log_tail(case: Case) -> tuple[str, ...]:
    logs = case.capture.snapshots[-1].logs if case.capture.snapshots else ()
    newest = max(logs, key=lambda log: log.modified_at or 0.0, default=None)
    return newest.lines[-8:] if newest else ()


def _timings(case: Case) -> Timings:
    snapshots = case.capture.snapshots
    hosts = case.capture.hosts
    spreads = [spread for snapshot in snapshots if (spread := spread_of(snapshot, hosts)) is not None]
    paused = [s.paused_s for s in snapshots if s.paused_s is not None]
    last = snapshots[-1] if snapshots else None
    wall = case.window_s + (last.duration_s or 0.0) if last else None
    return Timings(
        snapshots=tuple(s.taken_at for s in snapshots),
        skew_s=max(spreads) if spreads else None,
        wall_s=wall,
        target_paused_s=max(paused) if paused else None,
        clocks={h.name: h.clock_offset_s for h in hosts if h.clock_offset_s is not None},
        start_skew_s=start_skew(hosts),
    )
