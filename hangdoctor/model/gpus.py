"""What the GPUs and NCCL say of themselves: NVML (or its like) and the RAS service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process as the driver sees it on one GPU."""

    pid: int
    memory_bytes: int | None = None
    sm_percent: float | None = None
    how: str = "driver"
    """Who says so: ``driver``, or ``device files`` where the driver numbers pids of another namespace."""


@dataclass(frozen=True, slots=True)
class GpuError:
    """An error the driver logged for one GPU (NVIDIA: an Xid)."""

    code: int
    text: str
    age_s: float | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator at one look, through NVML (or amdsmi)."""

    index: int
    name: str | None = None
    uuid: str | None = None
    utilization_percent: float | None = None
    memory_utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    pcie_tx_bytes_s: int | None = None
    pcie_rx_bytes_s: int | None = None
    nvlink_tx_bytes: int | None = None
    nvlink_rx_bytes: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    uncorrected_ecc: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    host: str | None = None
    vendor: str | None = None
    """``nvidia`` or ``amd``."""
    driver_version: str | None = None
    pci_bus_id: str | None = None
    minor: int | None = None
    """N of /dev/nvidiaN; differs from ``index`` where a container sees only some GPUs."""
    memory_clock_mhz: int | None = None
    is_mig: bool | None = None
    """Cut into MIG instances: the whole-GPU readings then say nothing about one job."""
    sm_occupancy_percent: float | None = None
    """GPM (Hopper and newer): warps resident on the multiprocessors, share of the maximum."""
    tensor_percent: float | None = None
    dram_percent: float | None = None
    """GPM: share of the memory bandwidth in use."""
    errors: tuple[GpuError, ...] = ()


@dataclass(frozen=True, slots=True)
class RasRank:
    """One rank of a communicator as NCCL's RAS service lists it."""

    rank: int
    host: str | None = None
    pid: int | None = None
    """The rank's own getpid(): its number inside its PID namespace."""
    gpu: str | None = None
    """NVML index, or CUDA index and NVML index where they differ, as RAS prints them."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Operations launched so far by kind (``AllReduce``); launched, not finished."""
    status: str | None = None
    """``RUNNING``, ``INIT``, ``FINALIZE``, ``ABORT`` or what the error text says."""
    is_unresponsive: bool | None = None
    is_dead: bool | None = None


@dataclass(frozen=True, slots=True)
class RasCount:
    """So many ranks of a communicator have launched so many operations of a kind (RAS prints no more)."""

    operation: str
    launched: int
    rank_count: int
    ranks: tuple[int, ...] = ()
    """Only those it names; never read "named" as "guilty"."""


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """One NCCL communicator."""

    id: str
    size: int | None = None
    ranks: tuple[RasRank, ...] = ()
    missing: tuple[RasRank, ...] = ()
    missing_count: int = 0
    counts: tuple[RasCount, ...] = ()
    """Text answers only; JSON gives the counts of each rank."""
    status: str | None = None
    problems: tuple[str, ...] = ()
    """``MISMATCH``, ``INCOMPLETE``, ``ERROR``."""


@dataclass(frozen=True, slots=True)
class RasAnswer:
    """What the RAS service of an NCCL job said of all its communicators."""

    address: str
    nccl_version: str | None
    communicators: tuple[RasCommunicator, ...]
    is_partial: bool = False
    """The service stopped in the middle of its answer; what had arrived is kept."""
    format: str = "json"
    lost: tuple[RasRank, ...] = ()
    """Processes (rank -1) that gave no communicator data; ``is_dead`` where RAS has given them up."""
    dead_count: int = 0
    timeouts: int = 0
    """Peers that did not answer the service in time."""
    took_s: float | None = None
    warnings: tuple[str, ...] = ()
