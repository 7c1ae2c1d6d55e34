"""The wait-for graph: threads and processes as nodes, "cannot go on before" as edges, and where the paths end.

An idle wait (a worker waiting for its next request) is no edge: nobody owes it anything. That is why a worker
that idles while its peer stands in a collective becomes a sink, the culprit, and not a victim of the engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from hangdoctor.analysis.cycles import find_cycles
from hangdoctor.analysis.identify import CHILD, FOREIGN
from hangdoctor.analysis.progress import newest_sequences
from hangdoctor.case import Case, Key, Member, Movement, ThreadTrack
from hangdoctor.knowledge.catalogue import RoleKind, Stage
from hangdoctor.model import Activity, Process, Rank
from hangdoctor.report import Strength

_WAITING_KINDS = (RoleKind.RANK, RoleKind.CONTROL, RoleKind.LAUNCHER)
"""A compiler that waits for its compiler, or a resource tracker for its parent, is nobody's news."""


class EdgeKind(str, Enum):
    """What sort of wait an edge is."""

    LOCK = "lock"
    COLLECTIVE = "collective"
    GPU = "gpu"
    PHASE = "phase"
    LOCK_FILE = "lock file"
    CHILD = "child"
    CONNECTION = "connection"


class Node(NamedTuple):
    """A thread of a process; ``tid`` is ``None`` for a process whose threads were not seen."""

    key: Key
    tid: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """``waiter`` cannot go on before ``holder`` acts; ``holder`` is ``None`` when it is not among what was seen."""

    kind: EdgeKind
    waiter: Node
    holder: Node | None
    reason: str
    object: str | None
    strength: Strength


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """All edges, and the nodes at which waiting ends."""

    edges: tuple[Edge, ...]
    sinks: tuple[Node, ...]
    """Nodes that something waits for and that wait for nobody themselves."""
    cycles: tuple[tuple[Node, ...], ...]
    """Groups of nodes that wait for each other."""

    def edges_from(self, node: Node) -> tuple[Edge, ...]:
        """The edges that start at ``node``."""
        return tuple(e for e in self.edges if e.waiter == node)

    def waiters_on(self, node: Node) -> tuple[Node, ...]:
        """Nodes that reach ``node``, directly or through others."""
        incoming: dict[Node, list[Node]] = defaultdict(list)
        for edge in self.edges:
            if edge.holder is not None:
                incoming[edge.holder].append(edge.waiter)
        found: list[Node] = []
        queue = list(incoming[node])
        while queue:
            waiter = queue.pop(0)
            if waiter != node and waiter not in found:
                found.append(waiter)
                queue.extend(incoming[waiter])
        return tuple(found)


def lead_node(member: Member) -> Node:
    """The node that stands for a process."""
    return Node(member.key, member.lead.tid if member.lead else None)


def is_stopped(member: Member) -> bool:
    """Stopped by a signal or held by a debugger at the last look."""
    return not member.is_gone and member.last.state in ("T", "t")


def is_dead(member: Member) -> bool:
    """Gone, a zombie, or being torn down: it will never answer."""
    return member.is_gone or member.last.state in ("Z", "X", "x") or _is_dying(member.last)


def _is_dying(process: Process) -> bool:
    """Its memory is gone already: it looks like a kernel thread, for up to seconds after a kill (seen with vLLM)."""
    return process.rss_bytes == 0 and not process.command and process.state != "I"


def in_collective(member: Member) -> bool:
    """Whether its lead stands in a collective and is alive to take part in it."""
    lead = member.lead
    return (
        lead is not None
        and not is_stopped(member)
        and not is_dead(member)
        and lead.last.activity is Activity.WAIT_COLLECTIVE
    )


def is_settled(track: ThreadTrack | None) -> bool:
    """Whether a wait has lasted over all looks, so that it is worth following.

    An event loop that polls through a collective is woken all the time (CYCLING): it waits for nobody.
    """
    if track is None:
        return False
    if track.movement in (Movement.STILL, Movement.BUSY, Movement.UNKNOWN):
        return True
    if track.movement is Movement.CYCLING:
        return track.last.activity not in (Activity.WAIT_COLLECTIVE, Activity.WAIT_WORK)
    return _same_wait_throughout(track)


def _same_wait_throughout(track: ThreadTrack) -> bool:
    """The stack changed only inside one and the same wait (a poll loop within a rendezvous)."""
    views = [view for view in track.views if view is not None]
    ids = {
        v.match.aspect.id if v.match and v.match.aspect else v.match.phase.id if v.match else None
        for v in views
    }
    waits = {Activity.WAIT_PEER, Activity.WAIT_CHILD, Activity.WAIT_LOCK}
    return len(views) > 1 and len(ids) == 1 and None not in ids and all(v.activity in waits for v in views)


def is_idle(member: Member) -> bool:
    """Whether it waits for work in its own main loop at the last look (or cycles there)."""
    lead = member.lead
    if lead is None or is_stopped(member) or is_dead(member):
        return False
    match = lead.last.match
    if match is not None and match.phase.stage is Stage.IDLE:
        # SGLang's idle loop stands in a collective: idle only while it is woken again and again.
        if lead.last.activity is Activity.WAIT_COLLECTIVE:
            return lead.movement is not Movement.STILL or not lead.has_counters
        return True
    return (
        lead.last.activity is Activity.WAIT_WORK
        or _listens_to_its_parent(member)
        or _serves_in_a_thread(member)
    )


_SERVING = ("python.serve", "python.event-loop")


def _serves_in_a_thread(member: Member) -> bool:
    """A main thread that only sits in an Event or a join while another thread runs the server's loop."""
    lead = member.lead
    if lead is None or lead.last.activity not in (Activity.WAIT_EVENT, Activity.WAIT_LOCK):
        return False
    aspect = lead.last.match.aspect if lead.last.match else None
    if lead.last.activity is Activity.WAIT_LOCK and (aspect is None or aspect.waits_for != "thread"):
        return False
    matches = [track.last.match for track in member.threads if track is not lead]
    return any(m is not None and (m.aspect or m.phase).id in _SERVING for m in matches)


def _listens_to_its_parent(member: Member) -> bool:
    """A worker that reads the pipe its parent writes to waits for its next task."""
    lead, process = member.lead, member.last
    call = lead.last.thread.syscall if lead else None
    if lead is None or call is None or call.fd is None or lead.last.activity is not Activity.WAIT_PEER:
        return False
    ends = {pid for f in process.files if f.fd == call.fd for pid in f.other_end}
    ends |= {pid for s in process.sockets if s.fd == call.fd for pid in s.peers}
    return process.ppid is not None and process.ppid in ends


def build_graph(case: Case) -> WaitGraph:
    """All edges of a case, its sinks and its cycles."""
    edges = tuple(_unique(_edges(case)))
    graph: dict[Node, list[Node]] = defaultdict(list)
    for edge in edges:
        if edge.holder is not None:
            graph[edge.waiter].append(edge.holder)
    cycles = find_cycles(graph)
    in_cycle = {node for cycle in cycles for node in cycle}
    waiting = {e.waiter for e in edges}
    held = [e.holder for e in edges if e.holder is not None]
    sinks = [node for node in dict.fromkeys(held) if node not in waiting and node not in in_cycle]
    return WaitGraph(edges, tuple(sinks), cycles)


def _edges(case: Case) -> Iterator[Edge]:
    for member in case.members:
        yield from _lock_edges(case, member)
        if member.kind not in _WAITING_KINDS or is_stopped(member) or is_dead(member) or is_idle(member):
            continue
        yield from _lock_file_edges(case, member)  # a polled lock: a wait is a wait, however short so far
        if not is_settled(member.lead):
            continue
        yield from _collective_edges(case, member)
        yield from _gpu_edges(case, member)
        yield from _phase_edges(case, member)
        yield from _child_edges(case, member)
        yield from _connection_edges(case, member)


# -- locks ---------------------------------------------------------------------------------------


def _lock_edges(case: Case, member: Member) -> Iterator[Edge]:
    for track in member.threads:
        lock = track.last.thread.lock
        if lock is None or lock.owner_tid is None or track.tid is None or not is_settled(track):
            continue
        owner = _find_thread(case, member, lock.owner_pid, lock.owner_tid)
        if owner is None or owner == Node(member.key, track.tid):
            continue
        strength = {"recorded": Strength.CERTAIN, "value-stack": Strength.LIKELY}.get(
            lock.owner_how or "", Strength.POSSIBLE
        )
        yield Edge(
            EdgeKind.LOCK,
            Node(member.key, track.tid),
            owner,
            f"a {lock.kind} it holds",
            f"{lock.address:#x}",
            strength,
        )


def _find_thread(case: Case, member: Member, pid: int | None, tid: int) -> Node | None:
    candidates = [member] if pid in (None, member.pid) else [m for m in case.members if m.pid == pid]
    for candidate in candidates:
        for track in candidate.threads:
            if track.tid == tid:
                return Node(candidate.key, tid)
        if candidate is not member and candidate.key.host == member.key.host:
            return lead_node(candidate)
    return None


# -- collectives ---------------------------------------------------------------------------------


def same_group(a: Rank | None, b: Rank | None) -> bool:
    """Whether two ranks share the coordinates outside tensor parallelism; unknown counts as the same."""
    if a is None or b is None:
        return True
    return a.dp == b.dp and a.pp == b.pp


def collective_name(member: Member) -> str | None:
    """The operation its lead stands in (``all_reduce``), without class or wrapper."""
    view = member.lead.last if member.lead else None
    if view is None or view.match is None or view.thread.stack is None:
        return None
    aspect = view.match.aspect or view.match.phase
    if aspect.server == "python":
        return aspect.id.rpartition(".")[2]  # its frames are primitives: Condition.wait says nothing
    index = view.match.aspect_frame if view.match.aspect_frame is not None else view.match.frame
    return view.thread.stack.frames[index].function.rsplit(".", 1)[-1]


def _collective_edges(case: Case, member: Member) -> Iterator[Edge]:
    if member.kind is not RoleKind.RANK or not in_collective(member):
        return
    name = collective_name(member)
    peers = [m for m in case.ranks if m is not member]
    near = [m for m in peers if same_group(member.rank, m.rank)]
    outside = _outside(near, name) or _outside(peers, name)
    for peer in outside:
        sure = is_stopped(peer) or is_dead(peer) or is_behind(peer, member)
        yield Edge(
            EdgeKind.COLLECTIVE,
            lead_node(member),
            lead_node(peer),
            f"in {name}",
            name,
            Strength.CERTAIN if sure else Strength.LIKELY,
        )
    if not outside and case.expected_world is not None and case.expected_world > len(case.ranks):
        missing = case.expected_world - len(case.ranks)
        yield Edge(
            EdgeKind.COLLECTIVE,
            lead_node(member),
            None,
            f"in {name}: {missing} ranks that were not seen here",
            name,
            Strength.POSSIBLE,
        )


def is_behind(peer: Member, member: Member) -> bool:
    """Whether the Flight Recorder shows ``peer`` at a lower number than ``member`` in a group both are in."""
    theirs, ours = newest_sequences(peer.last.flight), newest_sequences(member.last.flight)
    return any(theirs[group] < ours[group] for group in theirs.keys() & ours.keys())


def _outside(peers: Sequence[Member], name: str | None) -> list[Member]:
    return [p for p in peers if not (in_collective(p) and collective_name(p) == name)]


def _gpu_edges(case: Case, member: Member) -> Iterator[Edge]:
    """A GPU that does not finish usually runs a collective: it waits for ranks that are behind in the same step."""
    lead = member.lead
    if lead is None or lead.last.activity is not Activity.WAIT_GPU or member.kind is not RoleKind.RANK:
        return
    for peer in case.ranks:
        if (
            peer is member
            or not same_group(member.rank, peer.rank)
            or is_idle(peer)
            or not is_settled(peer.lead)
        ):
            continue
        if _is_earlier(peer, member) and not is_behind(member, peer):
            yield Edge(
                EdgeKind.GPU,
                lead_node(member),
                lead_node(peer),
                "its GPU runs a collective that needs both",
                None,
                Strength.LIKELY,
            )


def _is_earlier(peer: Member, member: Member) -> bool:
    """Whether ``peer`` stands before ``member`` in the order of a step."""
    if peer.phase is None or member.phase is None or peer.phase.stage is Stage.ASPECT:
        waits = peer.lead.last.activity if peer.lead else None
        return waits not in (Activity.WAIT_GPU, Activity.WAIT_COLLECTIVE)
    if peer.phase.stage is Stage.IDLE:
        return False  # it is done with the step and polls for the next one
    return peer.phase.order < member.phase.order


# -- phases that say whom they wait for ----------------------------------------------------------


def _phase_edges(case: Case, member: Member) -> Iterator[Edge]:
    phase = member.phase
    aspect = member.aspect
    lead = member.lead
    if phase is None or lead is None or lead.last.activity not in (Activity.WAIT_PEER, Activity.WAIT_CHILD):
        return
    if phase.server == "python" or phase.stage is Stage.IDLE:
        return  # a pipe or a queue does not say who is at its other end; connections do
    from_aspect = aspect.waits_for if aspect is not None and aspect.server != "python" else None
    waits_for = phase.waits_for or from_aspect
    if waits_for is None:
        return
    for other in _awaited(case, member, waits_for):
        yield Edge(
            EdgeKind.PHASE,
            lead_node(member),
            lead_node(other),
            phase.title,
            None,
            Strength.LIKELY,
        )


def _awaited(case: Case, member: Member, waits_for: str) -> list[Member]:
    if waits_for == "peers":
        return _peers_elsewhere(case, member)
    if waits_for in ("workers", "ranks", "schedulers"):
        return _unready(case, member)
    if waits_for == "children":
        # Build steps are the rank's own work and judged with it; their end must not make it wait for the dead.
        return [m for m in case.principals if m.last.ppid == member.pid and m.key.host == member.key.host]
    return [
        m
        for m in case.principals
        if waits_for in (m.role.id, m.role.id.rsplit(".", 1)[-1]) and m is not member
    ]


def _peers_elsewhere(case: Case, member: Member) -> list[Member]:
    """Ranks that have not come to the step this one waits in."""
    phase, aspect = member.phase, member.aspect
    here = {p.id for p in (phase, aspect) if p is not None}
    peers = [m for m in case.ranks if m is not member]
    return [
        m
        for m in peers
        if is_stopped(m)
        or is_dead(m)
        or not here.intersection(p.id for p in (m.phase, m.aspect) if p is not None)
    ]


def _unready(case: Case, member: Member) -> list[Member]:
    """The ranks (of the same DP replica) that a supervisor waits for: those not idle, else all of them."""
    ranks = [
        m
        for m in case.ranks
        if m is not member and (member.rank is None or member.rank.dp is None or same_dp(member.rank, m.rank))
    ]
    unready = [m for m in ranks if not is_idle(m)]
    return unready or ranks


def same_dp(a: Rank | None, b: Rank | None) -> bool:
    """Whether two ranks belong to the same data-parallel replica."""
    return a is None or b is None or a.dp is None or b.dp is None or a.dp == b.dp


# -- lock files, children, connections -----------------------------------------------------------


def _lock_file_edges(case: Case, member: Member) -> Iterator[Edge]:
    aspect = member.aspect
    if aspect is None or aspect.waits_for != "lock-file":
        return
    locks = case.capture.snapshots[-1].file_locks
    for lock in locks:
        if member.pid in lock.waiters and lock.holder is not None and lock.holder != member.pid:
            holder = next((m for m in case.members if m.pid == lock.holder), None)
            node = lead_node(_owner_rank(case, holder)) if holder else None
            yield Edge(
                EdgeKind.LOCK_FILE,
                lead_node(member),
                node,
                "a lock file",
                lock.path,
                Strength.CERTAIN,
            )
            return
    builders = [m for m in case.ranks if m is not member and m.compilers]
    for builder in builders:
        yield Edge(
            EdgeKind.LOCK_FILE,
            lead_node(member),
            lead_node(builder),
            "a build lock file",
            None,
            Strength.LIKELY,
        )
    if not builders:
        yield Edge(
            EdgeKind.LOCK_FILE,
            lead_node(member),
            None,
            "a lock file that no live builder holds",
            None,
            Strength.POSSIBLE,
        )


def _owner_rank(case: Case, holder: Member) -> Member:
    """A compiler that holds a lock works for the rank above it."""
    if holder.kind is not RoleKind.COMPILER:
        return holder
    pids = {c.pid: m for m in case.ranks for c in m.compilers}
    return pids.get(holder.pid, holder)


def _child_edges(case: Case, member: Member) -> Iterator[Edge]:
    if member.lead is None or member.lead.last.activity is not Activity.WAIT_CHILD:
        return
    if member.compilers:
        return  # its build steps are its own work, judged with it
    for child in case.members:
        is_own = child.last.ppid == member.pid and child.key.host == member.key.host
        if is_own and (child.kind in _WAITING_KINDS or child.role in (CHILD, FOREIGN)) and not is_dead(child):
            yield Edge(
                EdgeKind.CHILD,
                lead_node(member),
                lead_node(child),
                "its child process",
                child.last.comm,
                Strength.LIKELY,
            )


def _connection_edges(case: Case, member: Member) -> Iterator[Edge]:
    """A blocking read on a pipe or socket whose other end is a member of the job."""
    lead = member.lead
    call = lead.last.thread.syscall if lead else None
    if lead is None or call is None or call.fd is None or lead.last.activity is not Activity.WAIT_PEER:
        return
    process = member.last
    ends: set[int] = set()
    for file in process.files:
        if file.fd == call.fd:
            ends.update(file.other_end)
    for socket in process.sockets:
        if socket.fd == call.fd:
            ends.update(socket.peers)
    ends.discard(member.pid)
    holders = [
        m for m in case.members if m.pid in ends and (m.kind in _WAITING_KINDS or m.role in (CHILD, FOREIGN))
    ]
    strength = Strength.LIKELY if len(holders) == 1 else Strength.POSSIBLE
    for holder in holders:
        yield Edge(
            EdgeKind.CONNECTION,
            lead_node(member),
            lead_node(holder),
            f"in {call.name}",
            call.target,
            strength,
        )


# -- graph ---------------------------------------------------------------------------------------


def _unique(edges: Iterable[Edge]) -> list[Edge]:
    best: dict[tuple[Node, Node | None], Edge] = {}
    order = (Strength.CERTAIN, Strength.LIKELY, Strength.POSSIBLE)
    for edge in edges:
        known = best.get((edge.waiter, edge.holder))
        if known is None or order.index(edge.strength) < order.index(known.strength):
            best[(edge.waiter, edge.holder)] = edge
    return list(best.values())
