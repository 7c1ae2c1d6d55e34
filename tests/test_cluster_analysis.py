"""Several hosts as one job: connections between them, identity, size, clocks, and a cost that grows with the ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hangdoctor.analysis import build_case, diagnose
from hangdoctor.analysis.crowd import MOST_HOLDERS
from hangdoctor.analysis.edges import find_edges
from hangdoctor.analysis.simultaneity import spread_of, start_skew
from hangdoctor.analysis.waits import Edge, EdgeKind, build_graph
from hangdoctor.knowledge import Knowledge, load_knowledge
from hangdoctor.model import Capture, FileLock, Host, LockWait, LogTail, Process, Snapshot, Socket, Syscall
from hangdoctor.parsers.merge import merge_captures
from hangdoctor.report import Kind, ProgressClass
from scripts import bench_scale
from tests.captures import FUTEX, SLEEP, Looks, capture, frames, in_collective, rank

STORE = ("get /site-packages/torch/distributed/distributed_c10d.py:700", "<module> /job/train.py:60")
WORK = frames("tokenize /job/data.py:7", "<module> /job/train.py:50")


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    return load_knowledge()


def on_host(name: str, looks: Sequence[Looks], boot: str | None = None, **more: object) -> Capture:
    """The capture of one host, as `collect` makes it there: no process names its host."""
    return replace(capture(looks), hosts=(Host(name, ticks_per_s=100, boot_id=boot or name, **more),))  # type: ignore[arg-type]


def with_sockets(one: Capture, sockets: dict[int, tuple[Socket, ...]]) -> Capture:
    def wired(process: Process) -> Process:
        return replace(process, sockets=sockets.get(process.pid, ()))

    return replace(
        one,
        snapshots=tuple(replace(s, processes=tuple(map(wired, s.processes))) for s in one.snapshots),
    )


def tcp(local: str, remote: str | None, fd: int = 9) -> Socket:
    return Socket(fd, "tcp", "ESTABLISHED" if remote else "LISTEN", local, remote)


def waits_on(pid: int, number: int, remote: str) -> Looks:
    """A rank in a blocking read of fd 9."""
    call = Syscall("recvfrom", fd=9, target=f"TCP {remote}", is_timed=False)
    return replace(
        rank(number, 2, [frames("recv /job/wire.py:3", "<module> /job/train.py:9")], syscall=call), pid=pid
    )


def edges_of(merged: Capture, knowledge: Knowledge) -> list[Edge]:
    return list(find_edges(build_case(merged, knowledge)))


def across(knowledge: Knowledge, here: str, there: str, theirs: tuple[str, str] | None) -> list[Edge]:
    """A rank on ``a`` reads from ``there``; the rank on ``b`` has the same pid and holds ``theirs``."""
    a = with_sockets(on_host("a", [waits_on(7, 0, there)]), {7: (tcp(here, there),)})
    b = on_host("b", [replace(rank(1, 2, [WORK], syscall=SLEEP), pid=7)])
    if theirs is not None:
        b = with_sockets(b, {7: (tcp(*theirs),)})
    merged = merge_captures([a, b])
    return [e for e in edges_of(merged, knowledge) if e.kind is EdgeKind.CONNECTION]


# -- connections ---------------------------------------------------------------------------------------


def test_a_connection_leads_to_the_process_on_the_other_host(knowledge: Knowledge) -> None:
    (edge,) = across(knowledge, "10.0.0.1:4000", "10.0.0.2:5000", ("10.0.0.2:5000", "10.0.0.1:4000"))
    assert edge.waiter.key.host == "a"
    assert edge.holder is not None and (edge.holder.key.host, edge.holder.key.pid) == ("b", 7)


def test_the_loopback_address_leads_nowhere(knowledge: Knowledge) -> None:
    """Twin: the same two ends on both hosts, but each host has its own loopback."""
    assert across(knowledge, "127.0.0.1:4000", "127.0.0.1:5000", ("127.0.0.1:5000", "127.0.0.1:4000")) == []


def test_a_wait_for_a_host_outside_the_set_says_so(knowledge: Knowledge) -> None:
    (edge,) = across(knowledge, "10.0.0.1:4000", "10.0.0.9:5000", ("10.0.0.2:5000", "10.0.0.1:4001"))
    assert edge.holder is None
    assert edge.object == "10.0.0.9:5000, on a host that was not looked at"


def test_an_end_on_a_host_of_the_set_that_nobody_of_the_job_holds(knowledge: Knowledge) -> None:
    (edge,) = across(knowledge, "10.0.0.1:4000", "10.0.0.2:5000", ("10.0.0.2:6000", "10.0.0.1:4001"))
    assert edge.holder is None and edge.object == "10.0.0.2:5000, on b, by nobody of the job"


def test_a_connection_not_yet_accepted_leads_to_who_listens(knowledge: Knowledge) -> None:
    """The other host's address is known by another connection of it."""
    a = with_sockets(
        on_host("a", [waits_on(7, 0, "10.0.0.2:5000")]), {7: (tcp("10.0.0.1:4000", "10.0.0.2:5000"),)}
    )
    b = on_host("b", [replace(rank(1, 2, [WORK], syscall=SLEEP), pid=8)])
    b = with_sockets(b, {8: (tcp("0.0.0.0:5000", None), tcp("10.0.0.2:22", "10.0.0.7:99", 10))})
    (edge,) = [e for e in edges_of(merge_captures([a, b]), knowledge) if e.kind is EdgeKind.CONNECTION]
    assert edge.holder is not None and edge.holder.key.host == "b"


def deaf(here: Sequence[str], there: Sequence[str], state: str = "ESTABLISHED") -> Capture:
    """A rank on ``a`` (which has the addresses ``here``) talks to 10.0.0.2:5000; one on ``b`` listens on that port."""
    socket = replace(tcp("10.0.0.1:4000", "10.0.0.2:5000"), state=state)
    a = with_sockets(on_host("a", [waits_on(7, 0, "10.0.0.2:5000")], addresses=tuple(here)), {7: (socket,)})
    b = on_host("b", [replace(rank(1, 2, [WORK], syscall=SLEEP), pid=8)], addresses=tuple(there))
    return merge_captures([a, with_sockets(b, {8: (tcp("[::]:5000", None),)})])


def test_a_listener_without_any_connection_is_found_by_its_hosts_address(knowledge: Knowledge) -> None:
    (edge,) = [e for e in edges_of(deaf((), ("10.0.0.2",)), knowledge) if e.kind is EdgeKind.CONNECTION]
    assert edge.holder is not None and edge.holder.key.host == "b"
    assert edge.object == "TCP 10.0.0.2:5000, which it has not accepted"


@pytest.mark.parametrize(
    ("merged", "words"),
    [
        (deaf((), ()), "on a host that was not looked at"),
        (deaf(("10.0.0.2",), ("10.0.0.2",)), "on a, by nobody of the job"),
        (deaf((), ("10.0.0.2",), state="CLOSE_WAIT"), "on b, by nobody of the job"),
    ],
    ids=["the host's address is not known", "every host has a bridge of its own", "the other end is closed"],
)
def test_a_listener_elsewhere_is_not_waited_for(merged: Capture, words: str, knowledge: Knowledge) -> None:
    """Twin: the same port is no proof."""
    (edge,) = [e for e in edges_of(merged, knowledge) if e.kind is EdgeKind.CONNECTION]
    assert edge.holder is None and edge.object == f"10.0.0.2:5000, {words}"


def test_ranks_that_were_not_seen_are_told_by_their_addresses(knowledge: Knowledge) -> None:
    one = with_sockets(
        on_host("a", [rank(0, 2, [in_collective()])]), {4000: (tcp("10.0.0.1:1", "10.0.0.9:2"),)}
    )
    (edge,) = [e for e in edges_of(one, knowledge) if e.kind is EdgeKind.COLLECTIVE]
    assert edge.reason.endswith("1 ranks that were not seen here; connected to 10.0.0.9, not looked at")


# -- identity ------------------------------------------------------------------------------------------


def test_a_lock_is_held_by_a_process_of_its_own_host(knowledge: Knowledge) -> None:
    """pid 7 exists on both hosts; the owner on the other one has the very same thread number."""
    lock = LockWait("mp.Lock", 0x10, owner_tid=7, owner_pid=7, owner_how="recorded", is_shared=True)
    waiter = replace(rank(0, 3, [frames("acquire /job/a.py:1", "<module> /job/t.py:1")], lock=lock), pid=5)
    merged = merge_captures(
        [
            on_host("b", [replace(rank(2, 3, [WORK], syscall=SLEEP), pid=7)]),
            on_host("a", [waiter, replace(rank(1, 3, [WORK], syscall=SLEEP), pid=7)]),
        ]
    )
    holders = {e.holder.key.host for e in edges_of(merged, knowledge) if e.kind is EdgeKind.LOCK and e.holder}
    assert holders == {"a"}


def with_last(one: Capture, **facts: object) -> Capture:
    snapshots = (*one.snapshots[:-1], replace(one.snapshots[-1], **facts))  # type: ignore[arg-type]
    return replace(one, snapshots=snapshots)


def test_a_file_lock_of_one_host_is_not_anothers(knowledge: Knowledge) -> None:
    call = Syscall("flock", fd=3, target="/x/lock", is_timed=False)

    def waiting(name: str) -> Capture:
        looks = [
            replace(rank(0, 4, [WORK], syscall=call), pid=5),
            replace(rank(1, 4, [WORK], syscall=SLEEP), pid=7),
        ]
        return on_host(name, looks)

    locked = with_last(waiting("a"), file_locks=(FileLock("flock", "/x/lock", 7, (5,)),))
    edges = edges_of(merge_captures([waiting("b"), locked]), knowledge)
    held = {
        (e.waiter.key.host, e.holder.key.host) for e in edges if e.kind is EdgeKind.LOCK_FILE and e.holder
    }
    assert held == {("a", "a")}


def test_logs_of_two_hosts_with_one_path_are_two_logs() -> None:
    """Step 9 on one host, step 5 on the other: nothing has advanced."""
    from hangdoctor.analysis.log_moves import log_progress

    def logging(name: str, step: int) -> Capture:
        tail = LogTail("/var/log/x.log", 9, None, (f"step {step}",))
        one = on_host(name, [rank(0, 2, [WORK])])
        return replace(one, snapshots=tuple(replace(s, logs=(tail,)) for s in one.snapshots))

    merged = merge_captures([logging("a", 9), logging("b", 5)])
    assert log_progress(merged.snapshots).kind is ProgressClass.NONE


def test_the_order_of_the_captures_does_not_change_the_answer(knowledge: Knowledge) -> None:
    hosts = [
        on_host("a", [rank(0, 5, [in_collective()]), rank(1, 5, [in_collective()])]),
        on_host("b", [rank(2, 5, [in_collective()]), rank(3, 5, [WORK], syscall=SLEEP)]),
        on_host("c", [rank(4, 5, [in_collective()])]),
    ]
    answers = [diagnose(merge_captures(order), knowledge).verdict for order in (hosts, hosts[::-1])]
    assert [c.rank.global_rank for c in answers[0].culprits if c.rank] == [3]
    assert answers[0].summary == answers[1].summary
    assert {v.host for v in answers[0].victims} == {"a", "b", "c"}


# -- how large it should be ----------------------------------------------------------------------------


def of_node(
    number: int, environ: dict[str, str], command: tuple[str, ...] = ("python", "train.py")
) -> Capture:
    looks = [
        replace(rank(2 * number + local, 6, [in_collective()]), command=command, environ={
            "RANK": str(2 * number + local), "LOCAL_RANK": str(local), **environ})
        for local in (0, 1)
    ]  # fmt: skip
    return on_host(f"node{number}", looks)


def world_reasons(captures: list[Capture], knowledge: Knowledge) -> list[str]:
    report = diagnose(merge_captures(captures) if len(captures) > 1 else captures[0], knowledge)
    return [gap.reason for gap in report.gaps if gap.source == "world"]


_SGLANG = ("python", "-m", "sglang.launch_server", "--tp", "6", "--nnodes", "3", "--node-rank")


def said_by(source: str, node: int) -> tuple[dict[str, str], tuple[str, ...]]:
    """What each launcher tells the processes of a node: environment and command line."""
    environ = {
        "torchrun": {
            "WORLD_SIZE": "6",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": "3",
        },
        "slurm": {
            "SLURM_NTASKS": "6",
            "SLURM_NNODES": "3",
            "SLURM_NODEID": str(node),
            "SLURM_PROCID": str(2 * node),
            "SLURM_JOB_NODELIST": "node[0-2]",
        },
        "leader-worker-set": {"WORLD_SIZE": "6", "LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": str(node)},
        "sglang": {},
    }[source]
    return environ, (*_SGLANG, str(node)) if source == "sglang" else ("python", "train.py")


@pytest.mark.parametrize("source", ["torchrun", "slurm", "leader-worker-set", "sglang"])
def test_a_node_that_was_not_looked_at_is_missed(source: str, knowledge: Knowledge) -> None:
    def node(number: int) -> Capture:
        return of_node(number, *said_by(source, number))

    (reason,) = world_reasons([node(0), node(2)], knowledge)
    assert reason.startswith("3 nodes are expected and 2 were looked at; not seen: node 1")
    assert world_reasons([node(0), node(1), node(2)], knowledge) == []  # twin: nobody is missing


def test_ranks_of_a_missing_node_are_named(knowledge: Knowledge) -> None:
    nodes = [of_node(number, *said_by("torchrun", number)) for number in (0, 2)]
    (reason,) = world_reasons(nodes, knowledge)
    assert reason.endswith("with rank 2-3")


# -- clocks --------------------------------------------------------------------------------------------


def look_at(*times: tuple[str, float]) -> Snapshot:
    return Snapshot(0.0, tuple(Process(n, host=host, taken_at=at) for n, (host, at) in enumerate(times)))


def test_the_spread_of_a_look_is_by_one_clock() -> None:
    look = look_at(("a", 100.0), ("a", 100.5), ("b", 140.7))
    assert spread_of(look, [Host("a", clock_offset_s=0.0), Host("b", clock_offset_s=40.0)]) == pytest.approx(
        0.7
    )
    assert spread_of(look, [Host("a"), Host("b")]) == pytest.approx(0.5)  # unknown: within a host only
    assert start_skew([Host("a", start_delay_s=0.01), Host("b", start_delay_s=0.4)]) == pytest.approx(0.39)
    assert start_skew([Host("a"), Host("b", start_delay_s=0.4)]) is None


# -- growth --------------------------------------------------------------------------------------------


def crowd_of(waiting: int, outside: int) -> Capture:
    world = waiting + outside
    looks = [rank(n, world, [in_collective()], syscall=FUTEX) for n in range(waiting)]
    looks += [rank(n, world, [WORK], syscall=SLEEP) for n in range(waiting, world)]
    return capture(looks)


@pytest.mark.parametrize(("waiting", "outside"), [(7, 5), (41, 37)])
def test_everybody_outside_is_waited_for_and_everybody_inside_waits(
    waiting: int, outside: int, knowledge: Knowledge
) -> None:
    graph = build_graph(edges_of(crowd_of(waiting, outside), knowledge))
    assert {node.key.pid for node in graph.sinks} == {4000 + n for n in range(waiting, waiting + outside)}
    assert {edge.waiter.key.pid for edge in graph.edges} == {4000 + n for n in range(waiting)}
    dealt = min(outside, MOST_HOLDERS)
    assert len(graph.edges) == outside + (waiting - 1) * dealt


def test_the_guiltiest_is_known_to_every_waiter(knowledge: Knowledge) -> None:
    """More are outside than a waiter gets edges to; the stopped one, listed last, is everybody's."""
    looks = [rank(n, 60, [in_collective()]) for n in range(30)]
    looks += [rank(n, 60, [WORK], syscall=SLEEP) for n in range(30, 59)]
    looks.append(rank(59, 60, [WORK], state="T"))
    verdict = diagnose(capture(looks), knowledge).verdict
    assert [c.rank.global_rank for c in verdict.culprits if c.rank] == [59]
    assert len(verdict.victims) == 30


def test_the_cost_of_a_rank_does_not_grow(knowledge: Knowledge) -> None:
    """CPU time, which other work on the machine changes little; a square would be eight times."""
    recorded = bench_scale.bundle.read(bench_scale.RECORDED)

    def cost(ranks: int) -> float:
        merged = merge_captures(list(bench_scale.job_of(ranks, recorded)))
        began = time.process_time()
        report = diagnose(merged, knowledge)
        assert report.verdict.kind is Kind.HUNG
        assert [c.rank.global_rank for c in report.verdict.culprits if c.rank] == [ranks * 5 // 7]
        return (time.process_time() - began) / ranks

    cost(32)  # warms what is cached
    assert cost(512) < 2 * min(cost(64), cost(64))


def test_many_ranks_become_few_classes() -> None:
    stacks = bench_scale.synthetic_stacks()
    assert len(set(stacks)) == 200 and {len(stack) for stack in stacks} == {40}
    seconds, tree = bench_scale.merge_stacks(8192, stacks)
    leaves = bench_scale.fold_leaves(tree)
    assert len(leaves) == 200
    assert sum(branch.count for branch in tree) == 8192
    assert seconds < 5
