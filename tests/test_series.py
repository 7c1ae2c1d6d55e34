"""Counters over the looks: as they were read, missing where they are missing, and never called proof for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangdoctor.analysis import diagnose
from hangdoctor.analysis.series import counters_of
from hangdoctor.knowledge import load_knowledge
from hangdoctor.model import (
    Capture,
    FlightEntry,
    Gpu,
    GpuProcess,
    Host,
    IoCounters,
    OpenFile,
    Process,
    Snapshot,
    Target,
    Thread,
    Tool,
)  # fmt: skip
from hangdoctor.report import ProgressClass, Report, Series

SHARD = "/models/m/model-00003-of-00010.safetensors"


def look(**changes: object) -> Process:
    return replace(Process(7, command=("sglang::scheduler_TP0",), threads=(Thread(7, state="S"),)), **changes)  # type: ignore[arg-type]


def by_name(series: tuple[Series, ...]) -> dict[str, Series]:
    return {each.name: each for each in series}


def test_each_counter_has_a_value_a_look_and_its_worth() -> None:
    looks = [
        look(
            rss_bytes=100 + n, user_ticks=250 + 50 * n, system_ticks=50, io=IoCounters(1000 + n, 0, 10, 0),
            files=(OpenFile(5, SHARD, "file", 500_000 * (n + 1), 2_000_000, "r"),),
            flight=(FlightEntry("0", "all_reduce", 40 + n), FlightEntry("1", "broadcast", 7)),
        )
        for n in range(3)
    ]  # fmt: skip
    gpus = [[Gpu(0, power_w=120.0 + n, processes=(GpuProcess(7),)), Gpu(1, power_w=700.0)] for n in range(3)]
    found = by_name(counters_of(looks, gpus, 100))
    assert {name: (each.kind, each.unit, each.values) for name, each in found.items()} == {
        "weights loaded": (ProgressClass.PROOF, "%", (22.5, 25.0, 27.5)),
        "collectives issued": (ProgressClass.PROOF, "collectives", (47.0, 48.0, 49.0)),
        "resident memory": (ProgressClass.WEAK, "bytes", (100, 101, 102)),
        "bytes read": (ProgressClass.ACTIVITY, "bytes", (0.0, 1.0, 2.0)),
        "CPU time": (ProgressClass.ACTIVITY, "s", (0.0, 0.5, 1.0)),
        "GPU power": (ProgressClass.ACTIVITY, "W", (120.0, 121.0, 122.0)),
    }


def test_what_was_not_read_is_missing_and_never_zero() -> None:
    looks = [look(rss_bytes=100), None, look(rss_bytes=None), look(rss_bytes=90, user_ticks=5)]
    (memory,) = counters_of(looks, [[], [], [], []], 100)
    assert memory.values == (100, None, None, 90)
    # Twin: a single value is no line.
    assert counters_of([look(rss_bytes=100), look()], [[], []], 100) == ()


def test_a_gpu_of_somebody_else_does_not_count() -> None:
    gpus = [[Gpu(0, power_w=120.0, processes=(GpuProcess(8),))]] * 2
    assert counters_of([look(), look()], gpus, 100) == ()


def report_of(*looks: Process) -> Report:
    snapshots = tuple(Snapshot(float(n), (process,)) for n, process in enumerate(looks))
    return diagnose(
        Capture(Tool("0"), Target("pid 7", 7), (Host("h", ticks_per_s=50),), snapshots), load_knowledge()
    )


def test_a_report_holds_them_with_the_ticks_of_its_host() -> None:
    (row,) = report_of(look(user_ticks=0, system_ticks=0), look(user_ticks=100, system_ticks=0)).processes
    assert by_name(row.series)["CPU time"].values == (0.0, 2.0)


@pytest.mark.parametrize(
    ("command", "exe", "title"),
    [
        (("sglang::scheduler_TP0",), "/usr/bin/python3.11", "sglang::scheduler_TP0"),
        (("VLLM::EngineCore",), None, "VLLM::EngineCore"),
        (("ray::Worker.run()",), "/usr/bin/python3", "ray::Worker.run()"),
        (("python3", "train.py"), "/usr/bin/python3", None),
        (("/usr/bin/python3",), "/usr/bin/python3", None),
        (("-bash",), "/usr/bin/bash", None),
        (("bash",), None, None),
        ((), "/usr/bin/python3", None),
    ],
)
def test_a_title_is_what_the_process_called_itself(
    command: tuple[str, ...], exe: str | None, title: str | None
) -> None:
    (row,) = report_of(look(command=command, exe=exe, comm="x")).processes
    assert row.title == title
