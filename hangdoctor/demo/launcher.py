"""Starts the ranks of a demo job, says when all stand where the scenario wants them, ends them.

Run by `job` as ``python -m hangdoctor.demo.launcher``. It lives until its lifeline, a pipe from the process that
started it, is closed: that happens even when that process is killed, so no job outlives its owner.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path

from hangdoctor.demo import rank as rank_program
from hangdoctor.demo.group import Meeting
from hangdoctor.demo.scenarios import CULPRIT, WORLD_SIZE, Backend


@dataclass(frozen=True, slots=True)
class Rank:
    """A started rank and our ends of its pipes."""

    process: SpawnProcess
    handshake: Connection
    requests: Connection


def start_ranks(context: SpawnContext, scenario: str, meeting: Meeting, folder: Path) -> list[Rank]:
    """Start all ranks. ``meeting`` must outlive their start: its semaphores go with the last reference here."""
    ranks = []
    for number in range(WORLD_SIZE):
        handshake, rank_handshake = context.Pipe(duplex=False)
        rank_requests, requests = context.Pipe(duplex=False)
        process = context.Process(
            target=rank_program.main,
            args=(scenario, number, meeting, folder, rank_handshake, rank_requests),
            name=f"rank-{number}",
        )
        process.start()
        rank_handshake.close()
        rank_requests.close()
        ranks.append(Rank(process, handshake, requests))
    return ranks


def wait_until_ready(ranks: Sequence[Rank], lifeline: int) -> None:
    """Return when every rank has said that it is in place; raises RuntimeError when one ends before."""
    missing = {rank.handshake: number for number, rank in enumerate(ranks)}
    while missing:
        for ready in wait([lifeline, *missing]):
            if isinstance(ready, int):
                raise RuntimeError("the demo was abandoned while it started")
            number = missing.pop(ready)  # type: ignore[call-overload]
            try:
                ranks[number].handshake.recv()
            except EOFError:
                raise RuntimeError(f"rank {number} ended before it was in place") from None


def wait_until_stopped(process: SpawnProcess) -> None:
    """Return when the kernel says that the rank is stopped."""
    os.waitpid(_pid(process), os.WUNTRACED)


def wait_until_dead(process: SpawnProcess) -> None:
    """Return when the rank is dead. It is not reaped: it stays visible, as under a launcher that does not look."""
    os.waitid(os.P_PID, _pid(process), os.WEXITED | os.WNOWAIT)


def supervise(lifeline: int, ranks: Sequence[Rank]) -> None:
    """Wait for the lifeline to close; a rank that dies is ignored, as many launchers do."""
    watched = {rank.process.sentinel for rank in ranks}
    while lifeline not in (ended := wait([lifeline, *watched])):
        watched.difference_update(sentinel for sentinel in ended if isinstance(sentinel, int))


def end_ranks(ranks: Sequence[Rank]) -> None:
    """Kill what is left, stopped ranks included, and reap it."""
    for rank in ranks:
        rank.process.kill()
    for rank in ranks:
        rank.process.join()


def _pid(process: SpawnProcess) -> int:
    if process.pid is None:
        raise RuntimeError(f"{process.name} was not started")
    return process.pid


def main(arguments: Sequence[str]) -> int:
    """``launcher SCENARIO BACKEND FOLDER LIFELINE_FD READY_FD``; writes one JSON line to READY_FD."""
    scenario, backend, folder, lifeline_text, ready_text = arguments
    lifeline = int(lifeline_text)
    ranks: list[Rank] = []
    with os.fdopen(int(ready_text), "w") as announce:
        try:
            context = multiprocessing.get_context("spawn")
            meeting = Meeting(
                Backend(backend), WORLD_SIZE, context.Barrier(WORLD_SIZE), context.Value("i", 0)
            )
            ranks = start_ranks(context, scenario, meeting, Path(folder))
            wait_until_ready(ranks, lifeline)
            if scenario == "stopped":
                wait_until_stopped(ranks[CULPRIT].process)
            elif scenario == "dead":
                wait_until_dead(ranks[CULPRIT].process)
            announce.write(json.dumps({"ranks": [_pid(rank.process) for rank in ranks]}) + "\n")
            announce.close()
            supervise(lifeline, ranks)
            # The owner removes it too, unless it was killed.
            shutil.rmtree(folder, ignore_errors=True)
        except RuntimeError as error:
            if not announce.closed:
                announce.write(json.dumps({"error": str(error)}) + "\n")
            return 1
        finally:
            end_ranks(ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
