"""What several looks at a GPU say: computing, spinning at idle watts, idle; memory growing; errors.

Supporting evidence, never a verdict of its own. «Utilisation 100 %» only says that some kernel was resident; a
collective that waits for a peer shows the same 100 % as a matrix product. Watts, memory traffic and the peers tell
them apart. PCIe traffic does not: a waiting NCCL kernel that polls host memory moved 17 GB/s (hardware/gpu.toml).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from hangdoctor.knowledge.gpu import GpuKnowledge, load_gpu_knowledge
from hangdoctor.model import Gpu, Snapshot


class GpuActivity(str, Enum):
    """What a GPU did over the looks."""

    COMPUTING = "computes"
    SPINNING = "runs a kernel that only waits"
    IDLE = "is idle"
    UNKNOWN = "cannot be told"


@dataclass(frozen=True, slots=True)
class GpuStatement:
    """One GPU over all looks."""

    host: str | None
    index: int
    activity: GpuActivity
    text: str
    """The numbers behind it, as a clause: ``100 % busy at 126 of 700 W, flat, no memory traffic, over 10 s``."""
    pids: tuple[int, ...]
    """Processes that use it at the last look."""
    looks: int
    span_s: float | None
    memory_grown_bytes: int | None = None
    """Between the first and the last look, where it is more than allocator noise; negative when freed."""
    memory_rate_bytes_s: float | None = None
    problems: tuple[str, ...] = ()
    """Errors and brakes: Xid, uncorrected ECC, thermal or power slowdown."""


@dataclass(frozen=True, slots=True)
class OddOnes:
    """Ranks whose GPU does something else than their peers': stronger than any threshold."""

    labels: tuple[str, ...]
    activity: GpuActivity
    others: GpuActivity
    text: str


Reading = tuple[float | None, Gpu]


def read_gpu_snapshots(
    snapshots: Sequence[Snapshot], knowledge: GpuKnowledge | None = None
) -> tuple[GpuStatement, ...]:
    """A statement for every GPU seen, in order of host and index."""
    readings: dict[tuple[str, int], list[Reading]] = {}
    for snapshot in snapshots:
        for gpu in snapshot.gpus:
            readings.setdefault((gpu.host or "", gpu.index), []).append((snapshot.taken_at, gpu))
    return tuple(read_gpu(own, knowledge) for _, own in sorted(readings.items()))


def read_gpu(readings: Sequence[Reading], knowledge: GpuKnowledge | None = None) -> GpuStatement:
    """What one GPU did; ``readings`` (Unix time and values, oldest first, at least one) are all of it."""
    known = knowledge or load_gpu_knowledge()
    gpus = [gpu for _, gpu in readings]
    times = [time for time, _ in readings if time is not None]
    span = times[-1] - times[0] if len(times) > 1 else None
    activity = _activity(gpus, span, known)
    last = gpus[-1]
    grown = _grown(gpus, known)
    return GpuStatement(
        host=last.host,
        index=last.index,
        activity=activity,
        text=_clause(gpus, span, activity),
        pids=tuple(process.pid for process in last.processes),
        looks=len(gpus),
        span_s=span,
        memory_grown_bytes=grown,
        memory_rate_bytes_s=grown / span if grown is not None and span else None,
        problems=_problems(last, known),
    )


def find_odd_ones(statements: Mapping[str, GpuStatement]) -> OddOnes | None:
    """The ranks (by label) that stand out: idle among spinning or computing peers, or computing among spinning ones.

    Peers whose GPU spins wait for somebody; the one whose GPU does not is whom they wait for. Silent when nobody or
    everybody stands out, or when one rank's GPU cannot be told.
    """
    by_activity: dict[GpuActivity, list[str]] = {}
    for label, statement in statements.items():
        by_activity.setdefault(statement.activity, []).append(label)
    spinning = by_activity.get(GpuActivity.SPINNING, [])
    for activity in (GpuActivity.IDLE, GpuActivity.COMPUTING):
        odd = by_activity.get(activity, [])
        if spinning and odd and len(odd) + len(spinning) == len(statements):
            peers = f"a kernel of {len(spinning)} peer{'s' * (len(spinning) > 1)} only waits"
            text = f"GPU {activity.value} while {peers}"
            return OddOnes(tuple(odd), activity, GpuActivity.SPINNING, text)
    return None


def _activity(gpus: Sequence[Gpu], span: float | None, known: GpuKnowledge) -> GpuActivity:
    use = [gpu.utilization_percent for gpu in gpus]
    if any(gpu.is_mig for gpu in gpus) or any(percent is None for percent in use):
        return GpuActivity.UNKNOWN
    percents = [percent for percent in use if percent is not None]
    if max(percents) <= known.idle.utilization_max_percent:
        return GpuActivity.IDLE
    if _computes(gpus, percents, known):
        return GpuActivity.COMPUTING
    if _spins(gpus, percents, span, known):
        return GpuActivity.SPINNING
    return GpuActivity.UNKNOWN


def _computes(gpus: Sequence[Gpu], percents: Sequence[float], known: GpuKnowledge) -> bool:
    bounds = known.compute
    if known.idle.utilization_max_percent < percents[-1] <= bounds.intermittent_max_percent:
        return True
    return any(
        _at_least(gpu.memory_utilization_percent, bounds.memory_utilization_min_percent)
        or _at_least(gpu.dram_percent, bounds.dram_min_percent)
        or _at_least(gpu.tensor_percent, bounds.tensor_min_percent)
        or _at_least(_power_share(gpu), bounds.power_share_min)
        for gpu in gpus
    )


def _spins(gpus: Sequence[Gpu], percents: Sequence[float], span: float | None, known: GpuKnowledge) -> bool:
    bounds = known.spin
    if len(gpus) < bounds.least_looks or span is None or span < bounds.least_span_s:
        return False
    if min(percents) < bounds.utilization_min_percent:
        return False
    if any(
        _at_least(gpu.memory_utilization_percent, bounds.memory_utilization_max_percent + 1) for gpu in gpus
    ):
        return False
    # GPM counts over a tenth of a second and can catch a stray copy: the median of the looks decides, not the worst.
    quiet = _median_below([gpu.dram_percent for gpu in gpus], bounds.dram_max_percent)
    still = _median_below([gpu.tensor_percent for gpu in gpus], bounds.tensor_max_percent)
    if quiet is False or still is False or not _links_rest(gpus, span, known):
        return False
    cool = _is_cool(gpus, known)
    return cool is not False and (cool is True or (quiet is True and still is True))


def _is_cool(gpus: Sequence[Gpu], known: GpuKnowledge) -> bool | None:
    """Low and flat watts at every look; ``None`` where power is not measured."""
    watts = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
    shares = [share for gpu in gpus if (share := _power_share(gpu)) is not None]
    if len(shares) < len(gpus):
        return None
    bounds = known.spin
    allowed = max(bounds.power_flat_w, bounds.power_flat_share * sum(watts) / len(watts))
    return max(shares) <= bounds.power_share_max and max(watts) - min(watts) <= allowed


def _links_rest(gpus: Sequence[Gpu], span: float, known: GpuKnowledge) -> bool:
    counts = [(gpu.nvlink_tx_bytes, gpu.nvlink_rx_bytes) for gpu in (gpus[0], gpus[-1])]
    moved = 0
    for first, last in zip(*counts, strict=True):
        if first is not None and last is not None:
            moved += abs(last - first)
    return moved / span <= known.spin.nvlink_max_bytes_s


def _median_below(values: Sequence[float | None], bound: float) -> bool | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] < bound if known else None


def _at_least(value: float | None, bound: float) -> bool:
    return value is not None and value >= bound


def _power_share(gpu: Gpu) -> float | None:
    return gpu.power_w / gpu.power_limit_w if gpu.power_w is not None and gpu.power_limit_w else None


def _grown(gpus: Sequence[Gpu], known: GpuKnowledge) -> int | None:
    first, last = gpus[0].memory_used_bytes, gpus[-1].memory_used_bytes
    if first is None or last is None or abs(last - first) < known.growth_bytes:
        return None
    return last - first


def _clause(gpus: Sequence[Gpu], span: float | None, activity: GpuActivity) -> str:
    parts = [_range([gpu.utilization_percent for gpu in gpus], "% busy")]
    watts = _range([gpu.power_w for gpu in gpus], "W")
    limit = gpus[-1].power_limit_w
    if watts:
        parts.append(f"at {watts}" + (f" of {limit:.0f} W" if limit else ""))
    if any(gpu.is_mig for gpu in gpus):
        parts.append("(cut into MIG instances, which the whole GPU's readings do not tell apart)")
    if activity is GpuActivity.SPINNING:
        parts.append("flat and without memory traffic")
    if span is not None:
        parts.append(f"over {span:.0f} s")
    return " ".join(part for part in parts if part) or "no readings"


def _range(values: Sequence[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = f"{min(known):.0f}", f"{max(known):.0f}"
    return f"{low} {unit}" if low == high else f"{low}–{high} {unit}"


BRAKES = (
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake",
)
"""Reasons that make a GPU slow without anybody having asked for it; caps and application clocks are settings."""


def _problems(gpu: Gpu, known: GpuKnowledge) -> tuple[str, ...]:
    found = []
    for error in gpu.errors:
        xid = known.xids.get(error.code)
        ago = f", {_ago(error.age_s)}" if error.age_s is not None else ""
        meaning = f"{xid.meaning}. {xid.advice}" if xid else error.text
        found.append(f"Xid {error.code}{ago}: {meaning}")
    if gpu.uncorrected_ecc:
        found.append(f"{gpu.uncorrected_ecc} uncorrected memory errors since the driver was loaded")
    found += [f"slowed down: {reason}" for reason in gpu.throttle_reasons if reason in BRAKES]
    return tuple(found)


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
