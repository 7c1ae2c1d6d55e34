"""Who is at the other end of the pipe, the socket or the ZeroMQ connection that a process waits on.

A descriptor handed on by fork makes every heir a possible end, so several are worth less than one. A set of
descriptors is an OR and names nobody, with one exception: a ZeroMQ socket is read by an I/O thread, and its user sleeps
on an eventfd that this thread signals; what the thread watches tells where a message can come from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hangdoctor.analysis.identify import CHILD, FOREIGN
from hangdoctor.analysis.standing import is_idle, is_settled
from hangdoctor.analysis.waits import Edge, EdgeKind, lead_node
from hangdoctor.analysis.wires import is_far, is_loopback
from hangdoctor.case import Case, Member
from hangdoctor.knowledge.catalogue import RoleKind
from hangdoctor.model import Activity, Process, Socket, Syscall
from hangdoctor.report import ProgressClass, Strength

_WAITING_KINDS = (RoleKind.RANK, RoleKind.CONTROL, RoleKind.LAUNCHER)
_ZMQ_THREAD = "ZMQbg/IO"
"""libzmq names its threads so (src/ctx.cpp)."""


def connection_edges(case: Case, member: Member) -> Iterator[Edge]:
    """A blocking read on a pipe or socket whose other end is a member of the job."""
    call = _awaited_call(member)
    if call is None or member.progress.kind is ProgressClass.PROOF or member.kind is RoleKind.LAUNCHER:
        return  # what it reads arrives: slow, not blocked; a launcher listens to its children as long as they live
    through_zmq = _is_zmq_wait(member.last, call)
    reason = "for a ZeroMQ message" if through_zmq else f"in {call.name}"
    what = call.target
    ends = _ends(case, member, call)
    if not ends and (ends := _acceptors(case, member, call)):
        what = f"{what}, which it has not accepted"
    holders = [
        m
        for m in ends
        if (m.kind in _WAITING_KINDS or m.role in (CHILD, FOREIGN))
        and not (through_zmq and (is_idle(m) or _waits_for(m, member)))
    ]
    strength = Strength.LIKELY if len(holders) == 1 and not through_zmq else Strength.POSSIBLE
    for holder in holders:
        yield Edge(EdgeKind.CONNECTION, lead_node(member), lead_node(holder), reason, what, strength)
    elsewhere = remote_peer(member, case)
    if not holders and elsewhere is not None:
        yield Edge(
            EdgeKind.CONNECTION, lead_node(member), None, f"in {call.name}", elsewhere, Strength.LIKELY
        )


def _ends(case: Case, member: Member, call: Syscall) -> tuple[Member, ...]:
    """Who was seen at the other end, on this host or another."""
    host = member.key.host
    here = (case.by_place.get((host, pid)) for pid in sorted(_other_ends(member.last, call)))
    far = (m for socket in _watched_sockets(member.last, call) for m in case.wires.holders(socket))
    return tuple({m.key: m for m in (*here, *far) if m is not None and m is not member}.values())


def _acceptors(case: Case, member: Member, call: Syscall) -> tuple[Member, ...]:
    """Who listens where a connection leads that nobody holds the other end of."""
    sockets = _watched_sockets(member.last, call)
    found = (m for socket in sockets for m in case.wires.acceptors(member, socket))
    return tuple({m.key: m for m in found}.values())


def remote_peer(member: Member, case: Case) -> str | None:
    """``10.0.0.7:29500 (torch's store)``, not on this host, where its lead waits for exactly that connection."""
    call = _awaited_call(member)
    if call is None:
        return None
    process = member.last
    remotes = {
        s.remote for s in process.sockets if s.fd == call.fd and s.remote and not s.peers and is_far(s)
    }
    if not remotes and call.name == "connect" and call.target and re.search(r":\d+$", call.target):
        remotes = {call.target} if not is_loopback(call.target) else set()
    if len(remotes) != 1:
        return None
    remote = remotes.pop()
    service = _service(process, remote)
    hosts = case.wires.hosts_of(remote, member)
    if len(case.capture.hosts) < 2:
        if hosts:
            return None  # a container's way to its own host
        where = "which is not on this host"
    elif hosts:
        where = f"on {' or '.join(map(str, hosts))}, by nobody of the job"
    else:
        where = "on a host that was not looked at"
    return f"{remote}{f' ({service})' if service else ''}, {where}"


def _service(process: Process, remote: str) -> str | None:
    """What is known to listen there, from the environment that the job was started with."""
    environ = process.environ or {}
    port = remote.rpartition(":")[2]
    if port and port == environ.get("MASTER_PORT"):
        return "the job's master: torch's store"
    bootstrap = environ.get("NCCL_COMM_ID", "")
    return "NCCL's bootstrap" if bootstrap and bootstrap == remote else None


def _awaited_call(member: Member) -> Syscall | None:
    lead = member.lead
    call = lead.last.thread.syscall if lead is not None else None
    if lead is None or call is None or lead.last.activity is not Activity.WAIT_PEER:
        return None
    return call


def _is_zmq_wait(process: Process, call: Syscall) -> bool:
    """In a poll on nothing but eventfds, in a process with ZeroMQ's I/O threads."""
    kinds = {file.fd: file.kind for file in process.files}
    waited = call.fds or (() if call.fd is None else (call.fd,))
    is_signalled = (call.target or "").startswith("eventfd") or (
        bool(waited) and all(kinds.get(fd) == "eventfd" for fd in waited)
    )
    return is_signalled and any((t.comm or "").startswith(_ZMQ_THREAD) for t in process.threads)


def _other_ends(process: Process, call: Syscall) -> set[int]:
    """Pids, without its own."""
    fds = _watched_fds(process, call)
    ends = {pid for file in process.files if file.fd in fds for pid in file.other_end}
    ends |= {pid for socket in process.sockets if socket.fd in fds for pid in socket.peers}
    return ends - {process.pid}


def _watched_sockets(process: Process, call: Syscall) -> list[Socket]:
    fds = _watched_fds(process, call)
    return [socket for socket in process.sockets if socket.fd in fds]


def _watched_fds(process: Process, call: Syscall) -> set[int]:
    """The descriptors that a message can come from; a set of one is no OR."""
    if _is_zmq_wait(process, call):
        calls = [t.syscall for t in process.threads if (t.comm or "").startswith(_ZMQ_THREAD)]
        return {fd for watched in calls if watched is not None for fd in watched.fds}
    if call.fd is None:
        return set(call.fds) if len(call.fds) == 1 else set()
    return {call.fd}


def _waits_for(other: Member, member: Member) -> bool:
    """Whether both listen to each other: an idle pair looks like this, and a lost message too."""
    call = _awaited_call(other)
    return call is not None and is_settled(other.lead) and member.pid in _other_ends(other.last, call)
