"""Every single wait: who waits for whom, why, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator

from hangdoctor.analysis.connections import connection_edges
from hangdoctor.analysis.crowd import MOST_HOLDERS, Crowd, has_order
from hangdoctor.analysis.dark import dark_edges, is_dark
from hangdoctor.analysis.identify import CHILD, FOREIGN
from hangdoctor.analysis.requests import finishes_steps
from hangdoctor.analysis.standing import (
    collective_name,
    in_collective,
    is_behind,
    is_dead,
    is_idle,
    is_settled,
    is_stopped,
    same_dp,
)
from hangdoctor.analysis.waits import Edge, EdgeKind, Node, lead_node
from hangdoctor.analysis.wires import name_unseen
from hangdoctor.case import Case, Member
from hangdoctor.knowledge.catalogue import RoleKind, Stage
from hangdoctor.model import Activity, FileLock, LockWait
from hangdoctor.report import Strength

_WAITING_KINDS = (RoleKind.RANK, RoleKind.CONTROL, RoleKind.LAUNCHER)
"""A compiler that waits for its compiler, or a resource tracker for its parent, is nobody's news."""


def find_edges(case: Case) -> Iterator[Edge]:
    """Every wait of every process and of every thread in a lock; the same one may come twice."""
    yield from dark_edges(case)
    crowd = Crowd(case)
    for member in case.members:
        yield from _lock_edges(case, member)
        if member.kind not in _WAITING_KINDS or is_stopped(member) or is_dead(member) or is_idle(member):
            continue
        yield from _lock_file_edges(case, member)  # a polled lock: a wait is a wait, however short so far
        if not is_settled(member.lead) or finishes_steps(member):
            continue
        yield from _collective_edges(case, crowd, member)
        yield from _gpu_edges(case, crowd, member)
        yield from _phase_edges(case, crowd, member)
        yield from _child_edges(case, member)
        yield from connection_edges(case, member)


# -- locks ---------------------------------------------------------------------------------------


def _lock_edges(case: Case, member: Member) -> Iterator[Edge]:
    for track in member.threads:
        lock = track.last.thread.lock
        if lock is None or track.tid is None or not is_settled(track):
            continue
        owner = _find_owner(case, member, lock)
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


def _find_owner(case: Case, member: Member, lock: LockWait) -> Node | None:
    if lock.owner_tid is not None:
        return _find_thread(case, member, lock.owner_pid, lock.owner_tid)
    # Of a lock between processes the thread may have ended, or not be told.
    owner = case.by_place.get((member.key.host, lock.owner_pid or 0))
    return lead_node(owner) if owner is not None and owner is not member else None


def _find_thread(case: Case, member: Member, pid: int | None, tid: int) -> Node | None:
    owner = member if pid in (None, member.pid) else case.by_place.get((member.key.host, pid or 0))
    if owner is None:
        return None
    if any(track.tid == tid for track in owner.threads):
        return Node(owner.key, tid)
    return lead_node(owner) if owner is not member else None


# -- collectives ---------------------------------------------------------------------------------


def _collective_edges(case: Case, crowd: Crowd, member: Member) -> Iterator[Edge]:
    if member.kind is not RoleKind.RANK or not in_collective(member):
        return
    name = collective_name(member)
    outside = crowd.outside(member, name)
    for peer in outside:
        is_halted = is_stopped(peer) or is_dead(peer)
        strength = Strength.LIKELY if is_halted or not is_dark(peer) else Strength.POSSIBLE
        if is_halted or is_behind(peer, member):
            strength = Strength.CERTAIN
        yield Edge(EdgeKind.COLLECTIVE, lead_node(member), lead_node(peer), f"in {name}", name, strength)
    if not outside and case.expected_world is not None and case.expected_world > len(case.ranks):
        missing = case.expected_world - len(case.ranks)
        yield Edge(
            EdgeKind.COLLECTIVE,
            lead_node(member),
            None,
            f"in {name}: {missing} ranks that were not seen here{name_unseen(case.wires, member)}",
            name,
            Strength.POSSIBLE,
        )


def _gpu_edges(case: Case, crowd: Crowd, member: Member) -> Iterator[Edge]:
    """A GPU that does not finish usually runs a collective: it waits for ranks that are behind in the same step."""
    lead = member.lead
    if lead is None or lead.last.activity is not Activity.WAIT_GPU or member.kind is not RoleKind.RANK:
        return
    count = 0
    for peer in crowd.in_step(member):
        if not _is_earlier(peer, member):
            if has_order(peer) and _order(peer) >= _order(member):
                return  # so is everybody behind it
            continue
        if peer is member or is_behind(member, peer):
            continue
        count += 1
        reason = "its GPU runs a collective that needs both"
        yield Edge(EdgeKind.GPU, lead_node(member), lead_node(peer), reason, None, Strength.LIKELY)
        if count == MOST_HOLDERS:
            return


def _order(member: Member) -> int:
    """Its place in a step; nobody is behind one without any."""
    return member.phase.order if member.phase is not None else 1 << 30


def _is_earlier(peer: Member, member: Member) -> bool:
    """Whether ``peer`` stands before ``member`` in the order of a step."""
    if peer.phase is None or member.phase is None or peer.phase.stage is Stage.ASPECT:
        waits = peer.lead.last.activity if peer.lead else None
        return waits not in (Activity.WAIT_GPU, Activity.WAIT_COLLECTIVE)
    if peer.phase.stage is Stage.IDLE:
        return False  # it is done with the step and polls for the next one
    return peer.phase.order < member.phase.order


# -- phases that say whom they wait for ----------------------------------------------------------


def _phase_edges(case: Case, crowd: Crowd, member: Member) -> Iterator[Edge]:
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
    for other in _awaited(case, crowd, member, waits_for):
        yield Edge(
            EdgeKind.PHASE,
            lead_node(member),
            lead_node(other),
            phase.title,
            None,
            Strength.LIKELY,
        )


def _awaited(case: Case, crowd: Crowd, member: Member, waits_for: str) -> list[Member]:
    if waits_for == "peers":
        return [m for m in crowd.elsewhere(member) if m is not member]
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


def _unready(case: Case, member: Member) -> list[Member]:
    """The ranks (of the same DP replica) that a supervisor waits for: those not idle, else all of them."""
    ranks = [
        m
        for m in case.ranks
        if m is not member and (member.rank is None or member.rank.dp is None or same_dp(member.rank, m.rank))
    ]
    unready = [m for m in ranks if not is_idle(m)]
    return unready or ranks


# -- lock files, children ------------------------------------------------------------------------


def _lock_file_edges(case: Case, member: Member) -> Iterator[Edge]:
    if not _is_at_a_lock_file(member):
        return
    for lock in case.capture.snapshots[-1].file_locks:
        is_here = lock.host in (None, member.key.host)
        if is_here and member.pid in lock.waiters and lock.holder not in (None, member.pid):
            holder = case.by_place.get((member.key.host, lock.holder or 0))
            node = lead_node(_owner_rank(case, holder)) if holder else None
            what = "a lock file"
            yield Edge(EdgeKind.LOCK_FILE, lead_node(member), node, what, lock.path, Strength.CERTAIN)
            return
    polled = _polled_lock(case, member)
    if polled is not None:
        node = lead_node(_owner_rank(case, polled[1]))
        path = polled[0].path
        yield Edge(EdgeKind.LOCK_FILE, lead_node(member), node, "a lock file", path, Strength.LIKELY)
        return
    builders = [m for m in case.ranks if m is not member and (m.compilers or _is_building(m))]
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


def _polled_lock(case: Case, member: Member) -> tuple[FileLock, Member] | None:
    """Who polls for a lock is in no list of the kernel's. The only lock file that another member holds is meant."""
    host = member.key.host
    held = [
        (lock, holder)
        for lock in case.capture.snapshots[-1].file_locks
        if lock.host in (None, host)
        and lock.holder not in (None, member.pid)
        and (lock.path or "").endswith("lock")
        and (holder := case.by_place.get((host, lock.holder or 0))) is not None
    ]
    return held[0] if len(held) == 1 else None


def _is_at_a_lock_file(member: Member) -> bool:
    """By its frames, or by the system call: any code may take an flock."""
    aspect, lead = member.aspect, member.lead
    call = lead.last.thread.syscall if lead is not None else None
    is_flock = call is not None and call.name in ("flock", "fcntl") and lead is not None
    return (aspect is not None and aspect.waits_for == "lock-file") or is_flock


def _is_building(member: Member) -> bool:
    """Inside a build, and not itself at the lock file."""
    aspect = member.aspect
    if aspect is None or aspect.waits_for == "lock-file" or is_dead(member):
        return False
    return any(p is not None and p.cause == "compiling" for p in (aspect, member.phase))


def _owner_rank(case: Case, holder: Member) -> Member:
    """A compiler that holds a lock works for the rank above it."""
    if holder.kind is not RoleKind.COMPILER:
        return holder
    host = holder.key.host
    ranks = (m for m in case.ranks if m.key.host == host)
    return next((m for m in ranks if any(c.pid == holder.pid for c in m.compilers)), holder)


def _child_edges(case: Case, member: Member) -> Iterator[Edge]:
    if member.lead is None or member.lead.last.activity is not Activity.WAIT_CHILD:
        return
    if member.kind is RoleKind.LAUNCHER:
        return  # waiting for its children is all it does
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
