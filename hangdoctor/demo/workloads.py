"""What the ranks of each scenario do. The names of functions here are what a report about a demo job shows."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from hangdoctor.demo.building import build_kernels
from hangdoctor.demo.group import Group
from hangdoctor.demo.scenarios import CULPRIT

MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a running demo job."""

    rank: int
    group: Group
    folder: Path
    """Private to the job and removed with it."""
    say_ready: Callable[[], None]
    """Tells the launcher that this rank stands where its scenario wants it."""
    requests: Connection
    """Requests from the launcher, which never sends one."""


def wait_for_peers(member: Member) -> None:
    """Be a victim: wait in a collective for the rank that does something else."""
    member.say_ready()
    member.group.all_reduce()


def load_adapter(member: Member) -> None:
    """Wait for a file that nobody writes."""
    adapter = member.folder / "adapter_model.safetensors"
    member.say_ready()
    while not adapter.exists():
        time.sleep(60)


def evict_pages(member: Member) -> None:
    """Take the cache lock, then the index lock, while a thread does the same in the opposite order."""
    cache, index = threading.Lock(), threading.Lock()
    each_holds_one = threading.Barrier(2)

    def compact_index() -> None:
        with index:
            each_holds_one.wait()
            with cache:
                pass

    threading.Thread(target=compact_index, name="index-compactor", daemon=True).start()
    with cache:
        each_holds_one.wait()
        member.say_ready()
        with index:
            pass


def call_driver(member: Member) -> None:
    """Block in a C function that was entered without giving up the GIL, as a careless extension does.

    From then on no other thread of the rank can run Python, the one that reports its health included.
    """

    def report_health() -> None:
        while True:
            time.sleep(0.1)

    threading.Thread(target=report_health, name="health", daemon=True).start()
    libc = ctypes.PyDLL(None)
    member.say_ready()
    libc.pause()


def load_weights(member: Member) -> None:
    """Read 1 GiB with real read() calls at 16 MB/s.

    The file is sparse, so it costs no disk; positions, byte counters and the page cache move as for any file.
    """
    path = member.folder / "model-00003-of-00004.safetensors"
    with path.open("wb") as weights:
        weights.truncate(1024 * MEGABYTE)
    checksum = 0
    with path.open("rb", buffering=0) as weights:
        member.say_ready()
        while block := weights.read(MEGABYTE):
            checksum = zlib.crc32(block, checksum)
            time.sleep(1 / 16)
    print(f"rank {member.rank}: weights read, checksum {checksum:08x}")


def unpack_int4(packed: bytes) -> list[int]:
    """Two signed 4-bit numbers from each byte."""
    values: list[int] = []
    for byte in packed:
        values.append((byte & 15) - 8)
        values.append((byte >> 4) - 8)
    return values


def apply_scales(values: list[int], scales: list[float]) -> list[float]:
    """Each group of 32 numbers has a scale of its own."""
    return [value * scales[index >> 5] for index, value in enumerate(values)]


def dequantize_layer(packed: bytes) -> list[float]:
    """One layer: unpack, then scale."""
    values = unpack_int4(packed)
    return apply_scales(values, [1.0 / (1 + index) for index in range(len(values) // 32 + 1)])


def dequantize_weights(member: Member) -> None:
    """Unpack 4-bit weights layer by layer in pure Python: a busy CPU and a silent log for minutes."""
    packed = os.urandom(MEGABYTE)
    member.say_ready()
    for _layer in range(2000):
        dequantize_layer(packed)


def compile_kernels(member: Member) -> None:
    """Hold the lock file of the build and compile one kernel after the other with a real compiler."""
    build_kernels(member.folder / "build", member.say_ready)


def wait_for_build(member: Member) -> None:
    """Wait until the rank that builds has let go of the lock file."""
    member.say_ready()
    member.group.wait_for_lock_file(member.folder / "lock")


def freeze(member: Member) -> None:
    """Be stopped by a signal in the middle of the work, as by Ctrl-Z or a forgotten debugger."""
    member.say_ready()
    os.kill(os.getpid(), signal.SIGSTOP)


def crash(member: Member) -> None:
    """Be killed without a chance to say so, as by the kernel when memory runs out."""
    member.say_ready()
    os.kill(os.getpid(), signal.SIGKILL)


def join_subgroup(member: Member) -> None:
    """Wait for every rank to join a new group."""
    member.say_ready()
    member.group.join_subgroup()


def serve(member: Member) -> None:
    """Idle as a healthy worker does: in its queue, until a request comes."""
    requests: queue.Queue[str] = queue.Queue()

    def receive_requests() -> None:
        while True:
            requests.put(member.requests.recv())

    threading.Thread(target=receive_requests, name="receiver", daemon=True).start()
    member.say_ready()
    while request := requests.get():
        print(f"rank {member.rank}: {request}")


CULPRITS: dict[str, Callable[[Member], None]] = {
    "laggard": load_adapter,
    "deadlock": evict_pages,
    "gil": call_driver,
    "stopped": freeze,
    "dead": crash,
    "slow-load": load_weights,
    "dequantize": dequantize_weights,
    "compile": compile_kernels,
    "idle": serve,
}
OTHERS: dict[str, Callable[[Member], None]] = {
    "compile": wait_for_build,
    "dead": join_subgroup,
    "idle": serve,
}


def play(scenario: str, member: Member) -> None:
    """Do this rank's part; returns only if the part comes to an end."""
    if scenario == "compile":
        _agree_on_builder(member)
    if member.rank == CULPRIT:
        CULPRITS[scenario](member)
        member.group.all_reduce()
    else:
        OTHERS.get(scenario, wait_for_peers)(member)


def _agree_on_builder(member: Member) -> None:
    """The culprit takes the lock file before anybody else looks for it."""
    if member.rank == CULPRIT:
        member.group.take_lock_file(member.folder / "lock")
    member.group.all_reduce()
