"""How large the job should be, and what of it was not looked at.

The command line of a server says most, then what torchrun, Slurm and Kubernetes' LeaderWorkerSet put into the ranks'
environment. A node is one start of the server or launcher; several may run on one host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangdoctor.analysis.folding import fold_numbers
from hangdoctor.case import Case, Member
from hangdoctor.knowledge.catalogue import RoleKind
from hangdoctor.model import Gap, Process

_SIZE_FLAGS = {
    "tp": ("--tp", "--tp-size", "--tensor-parallel-size", "-tp"),
    "pp": ("--pp", "--pp-size", "--pipeline-parallel-size", "-pp"),
    "nnodes": ("--nnodes", "--nnode"),
    "nproc": ("--nproc-per-node", "--nproc_per_node"),
}
_NODE_RANK_FLAGS = ("--node-rank", "--node_rank", "--machine_rank")
_NODE_COUNTS = ("GROUP_WORLD_SIZE", "LWS_GROUP_SIZE", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
"""torchrun's; LeaderWorkerSet's; Slurm's, which counts the allocation and is believed for tasks of Slurm only."""
_NODE_RANKS = ("GROUP_RANK", "NODE_RANK", "LWS_WORKER_INDEX", "SLURM_NODEID")
_SERVERS = ("sglang", "vllm")
_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")


@dataclass(frozen=True, slots=True)
class World:
    """What was started, as far as the processes say. ``None``: they do not."""

    ranks: int | None = None
    """On all nodes together."""
    per_node: int | None = None
    nodes: int | None = None
    seen_nodes: int | None = None
    """How many nodes' processes were looked at."""

    @property
    def local(self) -> int | None:
        """How many ranks must be among what was looked at."""
        if self.per_node is None:
            return None
        local = self.per_node * max(1, self.seen_nodes or 1)
        return local if self.ranks is None else min(local, self.ranks)


def read_world(processes: Sequence[Process], server: str | None) -> World:
    """Read the size of the job from all processes of all looks."""
    latest = list({(p.host, p.pid, p.start_ticks): p for p in processes}.values())
    seen = len(node_ranks(latest)) or len({p.host for p in latest}) or 1
    for process in latest:
        sizes = _sizes(process.command)
        if server in _SERVERS and "tp" in sizes:
            ranks = sizes["tp"] * sizes.get("pp", 1)
            nodes = sizes.get("nnodes") or _first_number(process.environ, _NODE_COUNTS[1:2]) or 1
            return World(ranks, ranks // nodes or 1, nodes, seen)
    for process in latest:
        started = _number(process.environ, "WORLD_SIZE")
        if started is not None:
            return _from_environment(process, started, seen)
    for process in latest:
        environ = process.environ or {}
        started = _number(environ, "SLURM_NTASKS")
        if started is not None and server is None and "SLURM_PROCID" in environ:
            by_slurm = _first_number(environ, _NODE_COUNTS[2:])
            return World(started, started // by_slurm if by_slurm else None, by_slurm, seen)
    return World(seen_nodes=seen)


def _from_environment(process: Process, ranks: int, seen: int) -> World:
    environ = process.environ or {}
    per_node = _number(environ, "LOCAL_WORLD_SIZE")
    nodes = _first_number(environ, _NODE_COUNTS[:2])
    if nodes is None and per_node:
        nodes = -(-ranks // per_node)
    if nodes is None and "SLURM_PROCID" in environ:
        nodes = _first_number(environ, _NODE_COUNTS[2:])
    # A job that meets at the loopback address has no ranks anywhere else.
    if per_node is None and environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost", "::1"):
        return World(ranks, ranks, 1, 1)
    return World(ranks, per_node, nodes, seen)


def node_ranks(processes: Iterable[Process]) -> frozenset[int]:
    """The numbers of the nodes whose processes these are."""
    found: set[int] = set()
    for process in processes:
        number = _option_number(process.command, _NODE_RANK_FLAGS)
        if number is None:
            number = _first_number(process.environ, _NODE_RANKS, least=0)
        if number is not None:
            found.add(number)
    return frozenset(found)


def world_gaps(case: Case) -> Iterator[Gap]:
    """What of the job was not looked at: nodes by their numbers, ranks by theirs."""
    world = case.world
    if world is None or world.nodes is None or world.seen_nodes is None or world.nodes <= world.seen_nodes:
        return
    seen = node_ranks(m.last for m in case.members)
    missing = [number for number in range(world.nodes) if number not in seen] if seen else []
    which = f"; not seen: node {fold_numbers(missing)}" if missing and len(seen) == world.seen_nodes else ""
    absent = absent_ranks(case)
    ranks = f", with rank {fold_numbers(absent)}" if absent else ""
    listed = next((value for m in case.members if (value := _listed(m))), None)
    remedy = "hangdoctor attach --hosts with all of them" + (f"; Slurm names {listed}" if listed else "")
    count = world.seen_nodes
    verb = "was" if count == 1 else "were"
    yield Gap(
        "world",
        "the job",
        f"{world.nodes} nodes are expected and {count} {verb} looked at{which}{ranks}",
        remedy,
    )


def absent_ranks(case: Case) -> tuple[int, ...]:
    """The global numbers that nobody has, where everybody who was seen has one."""
    ranks = [m for m in case.members if m.kind is RoleKind.RANK]
    numbers = {m.rank.global_rank for m in ranks if m.rank is not None}
    if case.expected_world is None or not ranks or None in numbers or len(numbers) < len(ranks):
        return ()
    return tuple(n for n in range(case.expected_world) if n not in numbers)


def _listed(member: Member) -> str | None:
    environ = member.last.environ or {}
    return next((environ[name] for name in _LISTS if name in environ), None)


def _words(command: Sequence[str]) -> list[str]:
    # A titled process has one string; an untitled one has argv.
    return command[0].split() if len(command) == 1 else list(command)


def _sizes(command: Sequence[str]) -> dict[str, int]:
    found = {name: _option_number(command, flags) for name, flags in _SIZE_FLAGS.items()}
    return {name: number for name, number in found.items() if number is not None and 0 < number < 1_000_000}


def _option_number(command: Sequence[str], flags: Sequence[str]) -> int | None:
    """The last one counts, as for argparse; ``1:4`` (torchrun's elastic range) is no number."""
    words = _words(command)
    number = None
    for index, word in enumerate(words):
        flag, _, value = word.partition("=")
        if flag in flags:
            text = value or (words[index + 1] if index + 1 < len(words) else "")
            number = int(text) if text.isdigit() and len(text) < 9 else number
    return number


def _first_number(environ: Mapping[str, str] | None, names: Sequence[str], *, least: int = 1) -> int | None:
    numbers = (_number(environ, name) for name in names)
    return next((number for number in numbers if number is not None and number >= least), None)


def _number(environ: Mapping[str, str] | None, name: str) -> int | None:
    text = (environ or {}).get(name, "")
    return int(text) if text.isdigit() and len(text) < 9 else None
