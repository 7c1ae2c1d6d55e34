"""Counters of one process over the looks: the same movement that the verdict puts into words, as lines to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hangdoctor.analysis.loads import reached_percent
from hangdoctor.analysis.progress import newest_sequences
from hangdoctor.model import Gpu, Process
from hangdoctor.report import ProgressClass, Series


def counters_of(
    looks: Sequence[Process | None], gpus: Sequence[Sequence[Gpu]], ticks_per_s: int
) -> tuple[Series, ...]:
    """What could be counted of a process at two looks or more, by what a rise of it is worth.

    ``gpus`` are all GPUs of its host at each look.
    """
    candidates = (
        Series("weights loaded", ProgressClass.PROOF, "%", _each(looks, reached_percent)),
        Series("collectives issued", ProgressClass.PROOF, "collectives", _each(looks, _collectives)),
        Series("resident memory", ProgressClass.WEAK, "bytes", _each(looks, lambda p: p.rss_bytes)),
        Series("bytes read", ProgressClass.ACTIVITY, "bytes", _since(_each(looks, _read))),
        Series("CPU time", ProgressClass.ACTIVITY, "s", _since(_each(looks, lambda p: _cpu_s(p, ticks_per_s)))),
        Series("GPU power", ProgressClass.ACTIVITY, "W", _power(looks, gpus)),
    )  # fmt: skip
    return tuple(s for s in candidates if sum(value is not None for value in s.values) >= 2)


def _each(
    looks: Sequence[Process | None], read: Callable[[Process], float | None]
) -> tuple[float | None, ...]:
    return tuple(None if look is None else read(look) for look in looks)


def _since(values: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """Counted from the first look on: what a process did before it was looked at would hide what it does now."""
    first = next((value for value in values if value is not None), None)
    return tuple(None if value is None or first is None else value - first for value in values)


def _collectives(process: Process) -> float | None:
    newest = newest_sequences(process.flight)
    return float(sum(newest.values())) if newest else None


def _read(process: Process) -> float | None:
    return None if process.io is None else float(max(process.io.read_chars, process.io.read_bytes))


def _cpu_s(process: Process, ticks_per_s: int) -> float | None:
    if process.user_ticks is None or process.system_ticks is None:
        return None
    return (process.user_ticks + process.system_ticks) / ticks_per_s


def _power(looks: Sequence[Process | None], gpus: Sequence[Sequence[Gpu]]) -> tuple[float | None, ...]:
    values = []
    for look, present in zip(looks, gpus, strict=True):
        own = [
            gpu.power_w
            for gpu in present
            if look is not None and gpu.power_w is not None and any(p.pid == look.pid for p in gpu.processes)
        ]
        values.append(sum(own) if own else None)
    return tuple(values)
