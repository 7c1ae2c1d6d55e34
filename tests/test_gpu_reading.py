"""What looks at a GPU mean, on readings of real H200s and on their twins."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoctor.analysis.gpu import (
    GpuActivity,
    GpuStatement,
    Reading,
    find_odd_ones,
    read_gpu,
    read_gpu_snapshots,
)
from hangdoctor.knowledge.gpu import GPU_FILE, load_gpu_knowledge
from hangdoctor.knowledge.tables import BadKnowledge
from hangdoctor.model import Gpu, GpuError, GpuProcess, Snapshot

DATA = json.loads(gzip.decompress((Path(__file__).parent / "data" / "gpu" / "h200.json.gz").read_bytes()))


def gpu_of(reading: dict[str, float], index: int) -> Gpu:
    return Gpu(
        index=index,
        utilization_percent=reading["gpu"],
        memory_utilization_percent=reading["memutil"],
        memory_used_bytes=int(reading["mem"]),
        memory_total_bytes=150754820096,
        power_w=reading["power_mw"] / 1000,
        power_limit_w=700.0,
        sm_clock_mhz=int(reading["sm"]),
        pcie_rx_bytes_s=int(reading["pcie_rx"]) * 1000,
        processes=tuple(GpuProcess(pid, memory) for pid, memory in reading["procs"]),  # type: ignore[attr-defined]
        host="node7",
    )


def series(name: str, index: int) -> list[Reading]:
    return [(look["t"], gpu_of(look["gpus"][index], index)) for look in DATA[name]]


SPIN = series("gpu_spin", 1)


def changed(readings: list[Reading], **values: object) -> list[Reading]:
    return [(time, replace(gpu, **values)) for time, gpu in readings]  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    ("name", "activity"),
    [
        ("healthy_idle", GpuActivity.IDLE),
        ("healthy_busy", GpuActivity.COMPUTING),
        ("gpu_spin", GpuActivity.SPINNING),
        ("sigstop", GpuActivity.IDLE),
        ("slow_dequant", GpuActivity.IDLE),
    ],
)
def test_recorded_gpus_are_read_right(name: str, index: int, activity: GpuActivity) -> None:
    assert read_gpu(series(name, index)).activity is activity


def test_the_numbers_are_in_the_clause() -> None:
    statement = read_gpu(SPIN)
    assert statement.text.startswith("100 % busy at 126 W of 700 W flat and without memory traffic over ")
    assert (statement.host, statement.index, statement.pids, statement.looks) == ("node7", 1, (3083,), 3)


def test_memory_that_grows_is_load_progress_with_a_rate() -> None:
    first, second = series("startup", 0)[1:]
    statement = read_gpu([(100.0, first[1]), (110.0, second[1])])
    assert statement.memory_grown_bytes == 47249620992 - 2244673536
    assert statement.memory_rate_bytes_s == pytest.approx(4.5e9, rel=0.01)


def test_memory_that_only_breathes_is_no_progress() -> None:
    (time, gpu), *rest = SPIN
    breathing = replace(gpu, memory_used_bytes=(gpu.memory_used_bytes or 0) - (20 << 20))
    assert read_gpu([(time, breathing), *rest]).memory_grown_bytes is None


@pytest.mark.parametrize(
    "values",
    [
        {"memory_utilization_percent": 40.0},  # a memory-bound kernel
        {"power_w": 560.0},  # a matrix product
        {"tensor_percent": 35.0, "dram_percent": 0.0},
        {"dram_percent": 12.0},
    ],
)
def test_full_utilisation_that_works_is_not_spinning(values: dict[str, float]) -> None:
    assert read_gpu(changed(SPIN, **values)).activity is GpuActivity.COMPUTING


@pytest.mark.parametrize(
    "values",
    [
        {"power_w": 340.0},  # between waiting and computing
        {"power_w": None},
        {"power_limit_w": None},
        {"utilization_percent": 95.0},
        {"utilization_percent": None},
        {"is_mig": True},
        {"memory_utilization_percent": 2.0},
    ],
)
def test_what_is_not_clear_is_not_told(values: dict[str, object]) -> None:
    assert read_gpu(changed(SPIN, **values)).activity is GpuActivity.UNKNOWN


def test_one_look_or_a_short_one_proves_no_spin() -> None:
    assert read_gpu(SPIN[:1]).activity is GpuActivity.UNKNOWN
    (start, gpu), (_, later), *_ = SPIN
    assert start is not None
    assert read_gpu([(start, gpu), (start + 0.5, later)]).activity is GpuActivity.UNKNOWN
    assert read_gpu([(None, gpu), (None, later)]).activity is GpuActivity.UNKNOWN


def test_watts_that_move_are_no_spin() -> None:
    (a, first), (b, second), (c, third) = SPIN
    moving = [(a, first), (b, replace(second, power_w=131.0)), (c, third)]
    assert read_gpu(moving).activity is GpuActivity.UNKNOWN


def test_bytes_over_nvlink_are_no_spin() -> None:
    (a, first), *_, (c, last) = SPIN
    flowing = [(a, replace(first, nvlink_tx_bytes=0)), (c, replace(last, nvlink_tx_bytes=10**9))]
    resting = [(a, replace(first, nvlink_tx_bytes=10**9)), (c, replace(last, nvlink_tx_bytes=10**9))]
    assert read_gpu(flowing).activity is GpuActivity.UNKNOWN
    assert read_gpu(resting).activity is GpuActivity.SPINNING


def test_without_watts_the_performance_counters_decide() -> None:
    quiet = changed(SPIN, power_w=None, dram_percent=0.01, tensor_percent=0.0)
    assert read_gpu(quiet).activity is GpuActivity.SPINNING


def test_a_hang_that_began_between_the_looks() -> None:
    (start, busy), *rest = SPIN
    assert read_gpu([(start, replace(busy, utilization_percent=40.0)), *rest]).activity is GpuActivity.UNKNOWN


def test_errors_and_brakes_are_problems_and_settings_are_not() -> None:
    errors = (GpuError(79, "GPU has fallen off the bus.", age_s=125.0), GpuError(999, "something new"))
    reasons = ("power cap", "hardware thermal slowdown", "idle")
    gpu = replace(SPIN[0][1], errors=errors, throttle_reasons=reasons, uncorrected_ecc=2)
    problems = read_gpu([(0.0, gpu)]).problems
    assert problems[0].startswith("Xid 79, 2 min ago: the GPU has fallen off the bus. Reboot the host")
    assert problems[1] == "Xid 999: something new"
    assert problems[2:] == (
        "2 uncorrected memory errors since the driver was loaded",
        "slowed down: hardware thermal slowdown",
    )
    assert read_gpu([(0.0, SPIN[0][1])]).problems == ()


def statements(**names: str) -> dict[str, GpuStatement]:
    return {label: read_gpu(series(name, 0)) for label, name in names.items()}


def test_the_idle_gpu_among_spinning_ones_stands_out() -> None:
    odd = find_odd_ones(
        statements(TP0="gpu_spin", TP1="gpu_spin", TP2="healthy_idle", TP3="gpu_spin", TP4="gpu_spin")
    )
    assert odd is not None
    assert (odd.labels, odd.activity, odd.others) == (("TP2",), GpuActivity.IDLE, GpuActivity.SPINNING)
    assert odd.text == "GPU is idle while a kernel of 4 peers only waits"


def test_nobody_stands_out_when_all_do_the_same_or_one_cannot_be_told() -> None:
    assert find_odd_ones(statements(TP0="gpu_spin", TP1="gpu_spin", TP2="gpu_spin")) is None
    assert find_odd_ones(statements(TP0="healthy_idle", TP1="healthy_idle", TP2="healthy_busy")) is None
    unclear = statements(TP0="gpu_spin", TP1="healthy_idle")
    assert find_odd_ones({**unclear, "TP2": read_gpu(SPIN[:1])}) is None


def test_snapshots_are_sorted_by_gpu() -> None:
    looks = [
        Snapshot(
            taken_at=look["t"], processes=(), gpus=tuple(gpu_of(g, i) for i, g in enumerate(look["gpus"]))
        )
        for look in DATA["gpu_spin"]
    ]
    found = read_gpu_snapshots(looks)
    assert [(one.index, one.activity, one.looks) for one in found] == [
        (0, GpuActivity.SPINNING, 3),
        (1, GpuActivity.SPINNING, 3),
    ]
    assert read_gpu_snapshots([]) == ()


def test_every_bound_has_a_source_and_no_key_is_ignored(tmp_path: Path) -> None:
    known = load_gpu_knowledge()
    assert set(known.sources) == {"idle", "spin", "compute", "growth"}
    assert {79, 31, 119} <= set(known.xids)
    bad = tmp_path / "gpu.toml"
    text = GPU_FILE.read_text()
    bad.write_text(text.replace("power_share_max", "power_share_maximum"))
    with pytest.raises(BadKnowledge, match="power_share_max"):
        load_gpu_knowledge(bad)
