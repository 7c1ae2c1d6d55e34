"""``hangdoctor diff``: what moved between two captures, as text and as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoctor import bundle
from hangdoctor.analysis.differences import Difference, compare
from hangdoctor.knowledge import load_knowledge
from hangdoctor.model import Capture
from hangdoctor.render._difference import difference_json, difference_text
from tests.captures import RUNNING, SLEEP, capture, frames, rank
from tests.conftest import stuck

ROOT = Path(__file__).parent.parent
MOVER = 3
"""Neither the first nor the last of five."""


def diff(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hangdoctor", "diff", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )


def one_of_five_moves() -> Capture:
    mover = rank(
        MOVER,
        5,
        [frames("load a.py:1"), frames("copy a.py:9")],
        cpu_s=2.0,
        syscall=RUNNING,
        state="R",
        read_chars=[0, 90_000_000],
    )
    others = [
        rank(number, 5, [frames("wait b.py:7")], syscall=SLEEP) for number in range(5) if number != MOVER
    ]
    return capture([*others, mover], offsets=(0.0, 12.0))


def difference_of(looks: Capture) -> Difference:
    return compare(looks, looks, load_knowledge())


def test_the_one_that_moved_is_told_and_the_rest_share_a_line() -> None:
    text = difference_text(difference_of(one_of_five_moves()))
    assert text.startswith("12 s between the two looks.\n")
    assert re.search(rf"^rank {MOVER} \(pid \d+\)$", text, re.M)
    assert "load (a.py:1) → copy (a.py:9)" in text and "read +90 MB" in text
    assert re.search(r"^rank 0-2,4: nothing moved \(4 threads\)$", text, re.M)


def test_nothing_moves_in_a_frozen_job() -> None:
    frozen = capture([rank(n, 3, [frames("wait b.py:7")], syscall=SLEEP) for n in range(3)])
    text = difference_text(difference_of(frozen))
    assert "→" not in text and "rank 0-2: nothing moved (3 threads)" in text


def test_captured_text_cannot_colour_the_terminal() -> None:
    looks = capture([rank(1, 2, [frames("f\x1b[31m a.py:1"), frames("g a.py:2")])], offsets=(0.0, 2.0))
    assert "\x1b" not in difference_text(difference_of(looks))


def test_json_has_stable_keys() -> None:
    record = json.loads(difference_json(difference_of(one_of_five_moves())))
    assert (record["schema"], record["seconds"]) == ("hangdoctor.diff/1", 12.0)
    moved = [row for row in record["processes"] if row["threads"]]
    assert [row["label"] for row in moved] == [f"rank {MOVER}"]
    assert set(moved[0]) == {
        "pid",
        "label",
        "change",
        "phase",
        "progress",
        "counters",
        "threads",
        "still",
    }
    assert moved[0]["counters"]["read_chars"] == 90_000_000
    assert moved[0]["threads"][0]["before"] == "load (a.py:1)"


def test_two_bundles_one_bundle_and_a_single_look(tmp_path: Path) -> None:
    looks = one_of_five_moves()
    both, first, last = (tmp_path / f"{name}.hang" for name in ("both", "first", "last"))
    bundle.write(looks, both)
    bundle.write(replace(looks, snapshots=looks.snapshots[:1]), first)
    bundle.write(replace(looks, snapshots=looks.snapshots[1:]), last)
    within, across, swapped = diff(both), diff(first, last), diff(last, first)
    assert (within.returncode, within.stderr) == (0, "")
    assert within.stdout == across.stdout == swapped.stdout == diff(both, both).stdout
    assert json.loads(diff(both, "--json").stdout)["seconds"] == 12.0
    alone = diff(first)
    assert (alone.returncode, alone.stdout) == (2, "") and "single look" in alone.stderr


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    done = diff(tmp_path / "none.hang")
    assert (done.returncode, done.stdout) == (5, "") and "none.hang" in done.stderr


@pytest.mark.parametrize("program, moves", [("c_hold.py", False), ("c_tight.py", True)])
def test_of_a_real_process(tmp_path: Path, program: str, moves: bool) -> None:
    """One waits in read(2), the other turns in a loop and is seen to use its CPU."""
    files = [tmp_path / "a.hang", tmp_path / "b.hang"]
    with stuck(program) as running:
        for file in files:
            words = ["collect", running.pid, "--snapshots", "1", "-q", "-o", file]
            subprocess.run(
                [sys.executable, "-m", "hangdoctor", *map(str, words)], check=True, cwd=ROOT, timeout=60
            )
    text = diff(*files).stdout
    assert ("nothing moved" in text) is not moves
    assert (re.search(r"MainThread, (busy|moving): .*of CPU", text) is not None) is moves
