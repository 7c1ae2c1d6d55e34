"""The instruments of scripts/bench: what a tool does to its targets is seen, and hangdoctor does nothing to them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.test_collect_capture import program

SCRIPTS = Path(__file__).parent.parent / "scripts"
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: nothing sees an EINTR")


@needs_compiler
@pytest.mark.parametrize("state", ["idle", "gil"])
def test_a_look_interrupts_no_system_call_and_its_twin_does(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    import bench_tools  # type: ignore[import-not-found,unused-ignore]

    fleet = bench_tools.Fleet(processes=3, threads=7, frames=11, state=state, module="")
    library = bench_tools.build_ticker(tmp_path)
    with bench_tools.running(fleet, sys.executable, library, tmp_path) as targets:
        own = bench_tools.measure(bench_tools.snapshot(), targets, tmp_path)
        loop = bench_tools.each_process("py-spy", f"{program().path} dump --pid {{pid}}")
        stopping = bench_tools.measure(loop, targets, tmp_path)
    assert own.failure is None and own.interrupted == 0
    assert stopping.failure is None and stopping.interrupted >= 3
    assert own.longest_gap_s is not None and own.longest_gap_s > 0


def test_the_page_has_ratios_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    import bench_report
    import bench_tools

    fleet = bench_tools.Fleet(processes=3, threads=7, frames=11, state="idle", module="torch")
    costs = {
        "loop": [bench_tools.Cost(1.0, 2.0), bench_tools.Cost(2.0, 4.0), bench_tools.Cost(4.0, 8.0)],
        "ours": [
            bench_tools.Cost(0.5, 1.0),
            bench_tools.Cost(1.5, 3.0, failure="exit 1: a | b"),
            bench_tools.Cost(2.0, 9.0),
        ],
    }
    table = bench_report.Table(fleet, costs)
    page = bench_report.render(
        [table], ["gdb is not installed here"], "loop", title="Small", has_ticker=False
    )
    assert "3 processes × 7 threads × 11 frames, idle, torch imported" in page
    row = next(line for line in page.splitlines() if line.startswith("| ours"))
    assert "0.50 (0.50–0.75)" in row and "0.75 (0.50–1.12)" in row and "1 of 3 failed: exit 1: a / b" in row
    assert "Missing: gdb is not installed here" in page and "were not measured" in page
