"""The words that all formats share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangdoctor.model import Frame
from hangdoctor.render import _wording as wording
from hangdoctor.report import Progress, ProgressClass


@pytest.mark.parametrize(
    ("labels", "folded"),
    [
        (["TP0", "TP2", "TP3", "TP4"], "TP0,2-4"),
        (["TP3"], "TP3"),
        (["rank 10", "rank 9", "rank 2"], "rank 2,9-10"),
        ([f"DP{d} TP{t}" for d in range(2) for t in range(4)], "DP0-1 TP0-3"),
        (["DP0 TP0", "DP0 TP1", "DP1 TP0"], "DP0 TP0-1, DP1 TP0"),
        (["node01 a", "node02 a"], "node01 a, node02 a"),
        (["detokenizer", "detokenizer", "engine core"], "2 × detokenizer, engine core"),
        (["TP1", "detokenizer"], "TP1, detokenizer"),
        ([], ""),
    ],
)
def test_folding(labels: list[str], folded: str) -> None:
    assert wording.fold_labels(labels) == folded
    assert sorted(wording.fold_labels(reversed(labels)).split(", ")) == sorted(folded.split(", "))


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 12)), min_size=1))
def test_folding_loses_and_invents_no_rank(points: set[tuple[int, int]]) -> None:
    folded = wording.fold_labels(f"PP{p} TP{t}" for p, t in points)
    unfolded = {
        (p, t)
        for part in folded.split(", ")
        for p in _expand(part.split(" ")[0].removeprefix("PP"))
        for t in _expand(part.split(" ")[1].removeprefix("TP"))
    }
    assert unfolded == points


def _expand(ranges: str) -> list[int]:
    ends = (part.partition("-") for part in ranges.split(","))
    return [number for low, _, high in ends for number in range(int(low), int(high or low) + 1)]


def test_folding_within_a_limit_counts_the_rest() -> None:
    labels = [f"rank {number}" for number in range(0, 200, 2)]
    folded = wording.fold_labels(labels, limit=30)
    assert folded == "rank 0,2,4,6,8,10,12,14,16,18, … (100 in all)"
    assert len(wording.fold_labels(["x" * 500], limit=60)) <= 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"), (0.0123, "12 ms"), (0.9996, "1.0 s"), (3.44, "3.4 s"), (9.96, "10 s"), (59.7, "1 min"),
        (92.0, "1 min 32 s"), (3600.0, "1 h"), (7403.0, "2 h 3 min"), (276_480.0, "3 d 4 h"),
        (float("nan"), "an unknown time"), (float("inf"), "an unknown time"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.24e9, "bytes/s", "1.24 GB/s"), (999.9e6, "bytes/s", "1 GB/s"), (512.0, "bytes/s", "512 B/s"),
        (3.4, "layers/s", "3.4 layers/s"), (0.08, "layers/s", "4.8 layers/min"), (0.001, "layers/s", "3.6 layers/h"),
        (0.0, "layers/s", "0 layers/s"), (5.0, None, "5"),
    ],
)  # fmt: skip
def test_rates(value: float, unit: str | None, text: str) -> None:
    assert wording.rate(value, unit) == text


@given(st.text())
def test_cleaned_text_is_printable_and_cleaning_again_changes_nothing(text: str) -> None:
    cleaned = wording.clean(text)
    assert all(character.isprintable() or ord(character) < 0x370 for character in cleaned)
    assert not set(cleaned) & set("\x1b\n\r\x00\x9b\u202e\u2066\u200b")
    cleaned.encode()
    assert wording.clean(cleaned) == cleaned


def test_cleaning_shows_what_it_took_out_and_keeps_letters() -> None:
    assert wording.clean("\x1b[2Jx\n") == "\\x1b[2Jx\\n"
    assert wording.clean("\u202egnp.exe") == "\\u202egnp.exe"
    assert wording.clean("mod\udce9le") == "mod\\xe9le"
    assert wording.clean("modèle 模型 mode\u0300le") == "modèle 模型 mode\u0300le"


@given(st.text(), st.integers(30, 80))
def test_clipped_text_says_how_much_is_missing(text: str, limit: int) -> None:
    clipped = wording.clip(text, limit)
    assert clipped == wording.clean(text) or (
        len(clipped) <= limit + 8 and clipped.endswith(" more characters)")
    )


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/opt/venv/lib/python3.12/site-packages/vllm/v1/engine/core.py", "vllm/v1/engine/core.py"),
        ("/usr/lib/python3/dist-packages/torch/x.py", "torch/x.py"),
        ("/usr/lib/python3.13t/threading.py", "threading.py"),
        ("/home/me/train.py", "/home/me/train.py"),
        ("/a/b/c/d/e/f/g.py", "d/e/f/g.py"),
        ("<string>", "<string>"),
    ],
)
def test_paths_are_named_as_their_package_names_them(path: str, short: str) -> None:
    assert wording.short_path(path) == short


def test_places() -> None:
    assert wording.location(Frame("f", "", None, "libc.so.6", True)) == "libc.so.6"
    assert wording.call(Frame("f", "/srv/x.py", 3)) == "f (/srv/x.py:3)"
    assert wording.call(Frame("f", "/srv/x.py", 3), brief=True) == "f (x.py:3)"
    assert wording.call(Frame("f", "")) == "f"


def test_progress_names_numbers_then_the_thing() -> None:
    full = Progress(ProgressClass.PROOF, "read model-00012", 1.2e9, "bytes/s", 41.2, 312.0)
    assert wording.progress_text(full) == "moves: 41 %, 1.2 GB/s, about 5 min 12 s left; read model-00012"
    assert wording.progress_text(Progress(ProgressClass.NONE)) == "no progress seen"


@pytest.mark.parametrize(
    ("percent", "bar"), [(0, "░░░░"), (49, "██░░"), (100, "████"), (250, "████"), (-3, "░░░░")]
)
def test_bars_stay_within_their_width(percent: float, bar: str) -> None:
    assert wording.bar(percent, 4) == bar


def test_values_are_folded_with_the_rarest_first() -> None:
    values = {**{f"TP{rank}": "mlx5_0" for rank in range(7)}, "TP3": "", "TP5": "eth0"}
    assert wording.fold_values(values) == "empty on TP3; eth0 on TP5; mlx5_0 on TP0-2,4,6"
    many = wording.fold_values({f"TP{rank}": str(rank) for rank in range(11)})
    assert many.endswith("; 3 more values")


def test_ascii_keeps_the_width_of_bars_and_arrows() -> None:
    assert wording.to_ascii("──▶ ██░░ · ×") == "--> ##.. | x"
    assert wording.to_ascii("é") == "\\xe9"


def test_a_gpu_in_one_line() -> None:
    full = {
        "index": 3,
        "utilization_percent": 100.0,
        "memory_bytes": 76_000_000_000,
        "power_w": 118.2,
        "power_limit_w": 700.0,
    }
    assert wording.gpu_text(full) == "GPU 3: 100 %, 118 of 700 W, 76 GB"
    assert wording.gpu_text({"index": 0, "power_w": 71.0}) == "GPU 0: 71 W"
    assert wording.gpu_text({"utilization_percent": None}) == "GPU ?: nothing known"
