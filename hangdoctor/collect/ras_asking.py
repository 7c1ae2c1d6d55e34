"""Whom to ask for NCCL's own view of a job, and whether to dare: only with ``--ras``, once a look, seconds apart."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from hangdoctor.collect.deadline import Trouble, call
from hangdoctor.collect.ras import DEADLINE_S, DEFAULT_ADDRESS, query_ras
from hangdoctor.model import Gap, Process, RasAnswer, Snapshot

SPACING_S = 5.0
"""Between two questions: counts mean something where they have not changed for a while, and asking costs all ranks."""

WARNING = (
    "--ras asks NCCL's RAS service. Such questions have crashed jobs with NCCL 2.26 to 2.29 (nccl #1669, #1718, #1762, "
    "#2346); no release is known to be safe."
)
_SILENT_STATES = frozenset("TtZX")
_INITIALISING = re.compile(
    r"CommInitRank|init_process_group|new_group|PyNccl\w*\.__init__|init_distributed|eager_connect"
)
_GRACE_S = 1.0


def ask_ras(
    processes: Sequence[Process], previous: Snapshot | None, *, force: bool, limit_s: float
) -> tuple[tuple[RasAnswer, ...], tuple[Gap, ...]]:
    """The answers of the services that the ranks among ``processes`` are said to have, within ``limit_s`` seconds.

    ``previous`` tells which ranks are no more. Ranks are the processes that have NCCL loaded.
    """
    ranks = [process for process in processes if "nccl" in process.versions]
    if not ranks:
        remedy = "NCCL's RAS is part of NCCL 2.24 and newer."
        return (), (Gap("ras", "the target", "not asked: no process has NCCL loaded", remedy),)
    answers, gaps = [], []
    for address in addresses(ranks):
        answer = _ask(address, ranks, previous, force=force, limit_s=limit_s)
        if isinstance(answer, RasAnswer):
            answers.append(answer)
        else:
            gaps.append(answer)
    return tuple(answers), tuple(gaps)


def addresses(ranks: Sequence[Process]) -> tuple[str, ...]:
    """Where their services listen: NCCL_RAS_ADDR, else the default. One of a job answers for all of its ranks."""
    found = [(process.environ or {}).get("NCCL_RAS_ADDR") or DEFAULT_ADDRESS for process in ranks]
    return tuple(dict.fromkeys(found))


def _ask(
    address: str, ranks: Sequence[Process], previous: Snapshot | None, *, force: bool, limit_s: float
) -> RasAnswer | Gap:
    mine = [p for p in ranks if ((p.environ or {}).get("NCCL_RAS_ADDR") or DEFAULT_ADDRESS) == address]
    if not any(shares_our_network(process.pid) for process in mine):
        reason = "not asked: the job lives in another network namespace, so this address would be another service's"
        return Gap(
            "ras", f"NCCL RAS at {address}", reason, f"nsenter -t {mine[0].pid} -n hangdoctor attach … --ras"
        )
    deadline_s = min(DEADLINE_S, limit_s)

    def ask() -> RasAnswer | Gap:
        return query_ras(
            address,
            deadline_s=deadline_s,
            nccl_version=mine[0].versions.get("nccl"),
            is_initialising=any(map(is_initialising, ranks)),
            is_peer_silent=is_any_silent(ranks, previous),
            force=force,
        )

    # In a child: looking up a name has no deadline of its own.
    answer = call(ask, deadline_s + _GRACE_S)
    if isinstance(answer, Trouble):
        return Gap(
            "ras", f"NCCL RAS at {address}", f"asking {answer.reason}", "Is the address a name that resolves?"
        )
    return answer


def is_initialising(rank: Process) -> bool:
    """Whether a thread is making a communicator, in which state questions crashed jobs."""
    return any(
        _INITIALISING.search(frame.function)
        for thread in rank.threads
        if thread.stack is not None
        for frame in thread.stack.frames
    )


def is_any_silent(ranks: Sequence[Process], previous: Snapshot | None) -> bool:
    """Whether a rank is stopped, dead, or was there at the last look and is no more."""
    before = previous.processes if previous is not None else ()
    known = {process.pid for process in before if "nccl" in process.versions}
    living = {process.pid for process in ranks}
    return bool(known - living) or any((process.state or "") in _SILENT_STATES for process in ranks)


def shares_our_network(pid: int) -> bool:
    """Whether a loopback address means the same to a process and to us; also when it cannot be told."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        return True
