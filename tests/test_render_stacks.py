"""Stacks for other tools: collapsed lines and speedscope."""

from __future__ import annotations

import json
from dataclasses import replace

from hangdoctor.render import RENDERERS, RenderOptions
from hangdoctor.report import Report
from tests.render_support import FLUSHER, empty, hostile, laggard, many_ranks


def write(name: str, report: Report, *, detail: bool = False) -> str:
    return RENDERERS[name].render(report, RenderOptions(detail=detail))


def test_collapsed_lines_go_from_the_rank_to_the_innermost_call() -> None:
    lines = write("collapsed", laggard()).splitlines()
    (flusher,) = [line for line in lines if "kv-offload-flusher" in line]
    assert flusher == (
        "TP3 (pid 41901);kv-offload-flusher;_bootstrap (threading.py:1032);_bootstrap_inner (threading.py:1075);"
        "run (threading.py:1012);_flush_loop (manager.py:131) 1"
    )
    assert len(lines) == 7 + 1 + 1


def test_a_separator_in_a_name_does_not_make_another_frame() -> None:
    report = hostile()
    frames = 2 + len(report.processes[0].threads[0].stack)
    assert {line.count(";") for line in write("collapsed", report).splitlines()} == {frames - 1}
    assert all(line.endswith(" 1") for line in write("collapsed", report).splitlines())
    assert write("collapsed", empty()) == "no stacks 1\n"


def test_speedscope_has_a_profile_per_rank_and_indices_that_exist() -> None:
    content = json.loads(write("speedscope", laggard()))
    assert [profile["name"] for profile in content["profiles"]][:2] == ["TP0 (pid 41898)", "TP1 (pid 41899)"]
    assert len(content["profiles"]) == 8
    frames = content["shared"]["frames"]
    for profile in content["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"]) == profile["endValue"]
        assert all(0 <= index < len(frames) for sample in profile["samples"] for index in sample)
    third = content["profiles"][3]
    names = [[frames[index]["name"] for index in sample] for sample in third["samples"]]
    assert names[1] == ["kv-offload-flusher", "_bootstrap", "_bootstrap_inner", "run", "_flush_loop"]
    assert frames[third["samples"][1][-1]] == {
        "name": "_flush_loop",
        "file": "vllm/v1/kv_offload/manager.py",
        "line": 131,
    }


def test_frames_are_shared_between_ranks() -> None:
    few, many = (json.loads(write("speedscope", many_ranks(n, 3))) for n in (16, 64))
    assert len(few["shared"]["frames"]) == len(many["shared"]["frames"])
    assert len(many["profiles"]) == 64


def test_pools_of_helper_threads_are_for_those_who_ask() -> None:
    report = laggard()
    rows = tuple(
        replace(row, threads=tuple(replace(thread, stack=FLUSHER) for thread in row.threads))
        for row in report.processes
    )
    for name in ("collapsed", "speedscope"):
        assert "pt_gloo_runloop-1" not in write(name, replace(report, processes=rows))
        assert "pt_gloo_runloop-1" in write(name, replace(report, processes=rows), detail=True)
