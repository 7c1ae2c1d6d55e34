"""Bounds that tell GPU readings apart, and what Xid numbers mean. Data with its sources: hardware/gpu.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hangdoctor.knowledge.tables import Table, read_toml

GPU_FILE = Path(__file__).parent / "hardware" / "gpu.toml"


@dataclass(frozen=True, slots=True)
class IdleBounds:
    """Up to here nothing runs on the GPU."""

    utilization_max_percent: float


@dataclass(frozen=True, slots=True)
class SpinBounds:
    """A kernel is resident all the time and only waits: all of these, over several looks."""

    utilization_min_percent: float
    memory_utilization_max_percent: float
    power_share_max: float
    """Of the enforced limit."""
    power_flat_w: float
    power_flat_share: float
    """How far the watts of several looks may lie apart: the larger of the two, the share being of their mean."""
    nvlink_max_bytes_s: float
    dram_max_percent: float
    tensor_max_percent: float
    least_looks: int
    least_span_s: float


@dataclass(frozen=True, slots=True)
class ComputeBounds:
    """Any one of these shows work."""

    memory_utilization_min_percent: float
    power_share_min: float
    dram_min_percent: float
    tensor_min_percent: float
    intermittent_max_percent: float
    """Utilisation below this and above idle: kernels end and others begin."""


@dataclass(frozen=True, slots=True)
class Xid:
    """An error number of the NVIDIA driver."""

    code: int
    meaning: str
    advice: str


@dataclass(frozen=True, slots=True)
class GpuKnowledge:
    """The file as a whole."""

    idle: IdleBounds
    spin: SpinBounds
    compute: ComputeBounds
    growth_bytes: int
    """Less growth of GPU memory than this between two looks is allocator noise."""
    xids: Mapping[int, Xid]
    sources: Mapping[str, str]
    """Section to where its numbers come from."""


@lru_cache(maxsize=4)
def load_gpu_knowledge(path: Path = GPU_FILE) -> GpuKnowledge:
    """Reads the file strictly; raises :class:`~hangdoctor.knowledge.tables.BadKnowledge`."""
    file = read_toml(path)
    sections = {name: _section(file, name) for name in ("idle", "spin", "compute", "growth")}
    sources = {name: table.text("source") for name, table in sections.items()}
    idle, spin, compute, growth = sections.values()
    knowledge = GpuKnowledge(
        idle=IdleBounds(_bound(idle, "utilization_max_percent")),
        spin=SpinBounds(
            utilization_min_percent=_bound(spin, "utilization_min_percent"),
            memory_utilization_max_percent=_bound(spin, "memory_utilization_max_percent"),
            power_share_max=_bound(spin, "power_share_max"),
            power_flat_w=_bound(spin, "power_flat_w"),
            power_flat_share=_bound(spin, "power_flat_share"),
            nvlink_max_bytes_s=_bound(spin, "nvlink_max_bytes_s"),
            dram_max_percent=_bound(spin, "dram_max_percent"),
            tensor_max_percent=_bound(spin, "tensor_max_percent"),
            least_looks=int(_bound(spin, "least_looks")),
            least_span_s=_bound(spin, "least_span_s"),
        ),
        compute=ComputeBounds(
            memory_utilization_min_percent=_bound(compute, "memory_utilization_min_percent"),
            power_share_min=_bound(compute, "power_share_min"),
            dram_min_percent=_bound(compute, "dram_min_percent"),
            tensor_min_percent=_bound(compute, "tensor_min_percent"),
            intermittent_max_percent=_bound(compute, "intermittent_max_percent"),
        ),
        growth_bytes=int(_bound(growth, "least_bytes")),
        xids={xid.code: xid for xid in map(_xid, file.tables("xid", "code"))},
        sources=sources,
    )
    for table in (*sections.values(), file):
        table.close()
    return knowledge


def _section(file: Table, name: str) -> Table:
    table = file.table(name)
    if table is None:
        raise file.complain(f"table [{name}] is missing")
    return table


def _bound(table: Table, key: str) -> float:
    value = table.number(key)
    if value is None:
        raise table.complain(f"key {key!r} is missing")
    return value


def _xid(table: Table) -> Xid:
    xid = Xid(int(_bound(table, "code")), table.text("meaning"), table.text("advice"))
    table.close()
    return xid
