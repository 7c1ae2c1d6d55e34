"""One rank of a demo job, started by `launcher` as a process of its own."""

from __future__ import annotations

import ctypes
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from hangdoctor.demo.group import Meeting, join
from hangdoctor.demo.workloads import Member, play

_PR_SET_PDEATHSIG = 1


def main(
    scenario: str, rank: int, meeting: Meeting, folder: Path, handshake: Connection, requests: Connection
) -> None:
    """Join the group and play the scenario's part."""
    # A launcher that dies without cleaning up (kill -9) must not leave ranks behind.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(meeting.world_size))
    group = join(meeting, rank)
    print(f"rank {rank}: joined a {meeting.backend.value} group of {meeting.world_size}", flush=True)

    def say_ready() -> None:
        handshake.send(rank)

    play(scenario, Member(rank, group, folder, say_ready, requests))
