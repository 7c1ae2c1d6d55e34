"""Where the ranks of a demo job meet: a gloo process group, or a multiprocessing barrier without torch."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Protocol

from hangdoctor.demo.scenarios import Backend


class PortCell(Protocol):
    """A number that all ranks share (``multiprocessing.Value``)."""

    value: int


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the launcher hands to each rank, so that they find each other."""

    backend: Backend
    world_size: int
    barrier: Barrier
    port: PortCell


class Group(Protocol):
    """The three ways in which a rank of a demo job waits for its peers."""

    def all_reduce(self) -> None:
        """Return when every rank has called it."""

    def join_subgroup(self) -> None:
        """Form a further group of all ranks; waits for those that have not come yet."""

    def wait_for_lock_file(self, path: Path) -> None:
        """Return when the rank that builds has released ``path``."""

    def take_lock_file(self, path: Path) -> None:
        """Become the rank that builds."""


class BarrierGroup:
    """Ranks without torch."""

    def __init__(self, meeting: Meeting) -> None:
        self._barrier = meeting.barrier

    def all_reduce(self) -> None:
        self._barrier.wait()

    def join_subgroup(self) -> None:
        self._barrier.wait()

    def take_lock_file(self, path: Path) -> None:
        self._lock_file = path.open("w")
        fcntl.flock(self._lock_file, fcntl.LOCK_EX)

    def wait_for_lock_file(self, path: Path) -> None:
        with path.open("w") as lock_file:
            fcntl.flock(lock_file, fcntl.LOCK_EX)


class GlooGroup:
    """Ranks of ``torch.distributed``, each with one thread of its own."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        is_host = rank == 0
        if not is_host:
            meeting.barrier.wait()
        store = dist.TCPStore(
            "127.0.0.1", meeting.port.value, meeting.world_size, is_master=is_host, wait_for_workers=False
        )
        if is_host:
            # Port 0 lets the kernel choose: a port picked beforehand can be taken by another job in between.
            meeting.port.value = store.port
            meeting.barrier.wait()
        dist.init_process_group("gloo", store=store, rank=rank, world_size=meeting.world_size)
        self._dist = dist
        self._tensor = torch.ones(1024)

    def all_reduce(self) -> None:
        self._dist.all_reduce(self._tensor)

    def join_subgroup(self) -> None:
        self._dist.new_group()

    def take_lock_file(self, path: Path) -> None:
        from torch.utils.file_baton import FileBaton

        FileBaton(str(path)).try_acquire()

    def wait_for_lock_file(self, path: Path) -> None:
        from torch.utils.file_baton import FileBaton

        FileBaton(str(path)).wait()


def join(meeting: Meeting, rank: int) -> Group:
    """Form the group; returns in every rank when all have come."""
    if meeting.backend is Backend.GLOO:
        return GlooGroup(meeting, rank)
    meeting.barrier.wait()
    return BarrierGroup(meeting)
