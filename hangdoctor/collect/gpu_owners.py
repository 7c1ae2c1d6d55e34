"""Which processes of the target use which GPU, where the driver's own pids cannot be compared with ours."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hangdoctor.model import Gap, Gpu, GpuProcess

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the initial PID namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""

_DEVICE = re.compile(r"/dev/nvidia(?P<minor>\d+)$")


def with_owners(gpus: list[Gpu], pids: Sequence[int]) -> tuple[list[Gpu], list[Gap]]:
    """Drops driver pids that are not ours to compare, and finds the target's GPUs by its device files instead.

    The driver numbers processes as the host does. In a container with its own PID namespace an equal number can
    be another process, so there a match counts only when this GPU's device file is that process' main one.
    """
    if not pids or _sees_host_pids():
        return gpus, []
    held = {pid: files for pid in pids if (files := open_devices(pid))}
    owners = [tuple(_by_device_files(gpu.minor, held)) for gpu in gpus]
    told = ({process.pid for process in gpu.processes} for gpu in gpus)
    confirmed = any(
        {owner.pid for owner in own} & pids_told for own, pids_told in zip(owners, told, strict=True)
    )
    if confirmed or not held:
        return gpus, []
    mapped = [replace(gpu, processes=own) for gpu, own in zip(gpus, owners, strict=True)]
    return mapped, [_other_namespace(gpus)]


def _other_namespace(gpus: list[Gpu]) -> Gap:
    told = sorted({process.pid for gpu in gpus for process in gpu.processes})
    seen = (
        f"the driver's pids ({', '.join(map(str, told[:4]))}) are of"
        if told
        else "the driver hides pids from"
    )
    return Gap(
        "nvml",
        "GPU processes",
        f"{seen} another PID namespace. The target's GPUs were told by its open device files; "
        "memory and utilisation per process are not known",
        "Run hangdoctor on the host, or share its PID namespace (docker --pid=host, hostPID: true).",
    )


def _sees_host_pids() -> bool:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        return False


def open_devices(pid: int) -> Counter[int]:
    """How many descriptors a process has open for each /dev/nvidiaN."""
    count: Counter[int] = Counter()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                match = _DEVICE.match(os.readlink(entry.path))
            except OSError:
                continue
            if match:
                count[int(match["minor"])] += 1
    except OSError:
        pass
    return count


def _by_device_files(minor: int | None, held: Mapping[int, Counter[int]]) -> Iterator[GpuProcess]:
    """Processes that hold this GPU's file more often than any other GPU's.

    Every CUDA process opens all GPUs (7 descriptors each, 2×H200, driver 580, CUDA 13); the one it has a context on
    gets 16 more. A tie says nothing.
    """
    for pid, files in sorted(held.items()):
        if (
            minor is not None
            and files[minor]
            and all(files[other] < files[minor] for other in files if other != minor)
        ):
            yield GpuProcess(pid, how="device files")
