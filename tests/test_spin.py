"""A spin repeats itself and work does not, as far as sampled registers can tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hangdoctor.collect import spin
from hangdoctor.collect.spin import measure_recurrence, sample_spin
from hangdoctor.model import SpinSample
from tests.b_support import build, eventually, words_of
from tests.conftest import stuck

ENOUGH = 100
"""Samples from which the rules trust a recurrence."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("b_spin.cpp", tmp_path_factory.mktemp("spin") / "libspin.so", "-shared", "-fPIC")


@pytest.fixture(autouse=True)
def may_sample() -> None:
    """Skips where the kernel refuses even to sample ourselves, as in most containers."""
    machine = spin._MACHINES.get(os.uname().machine)
    if machine is None:
        pytest.skip("no register layout for this machine")
    try:
        spin._Event(machine, os.getpid(), 1_000_000).close()
    except OSError as error:
        pytest.skip(f"perf events are not permitted here: {error}")


def sample_enough(name: str, library: Path) -> SpinSample:
    with stuck("b_spin.py", library, name) as program:
        tid = int(words_of(program.said[0])[name])

        def look() -> SpinSample | None:
            found = sample_spin([tid], 1.0).get(tid)
            return found if found and found.samples >= ENOUGH else None

        return eventually(look)


@pytest.mark.parametrize("name", ["spin_c", "spin_python"])
def test_a_spin_recurs(name: str, library: Path) -> None:
    assert sample_enough(name, library).recurrence >= 0.4


@pytest.mark.parametrize("name", ["work_c", "hash"])
def test_work_does_not(name: str, library: Path) -> None:
    assert sample_enough(name, library).recurrence < 0.2


def test_a_thread_that_sleeps_is_left_out(library: Path) -> None:
    with stuck("b_spin.py", library, "idle") as program:
        assert sample_spin([int(words_of(program.said[0])["idle"])], 0.2) == {}


def test_what_may_not_be_sampled_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sample_spin([2**22 - 1], 0.1) == {}
    assert sample_spin([], 1.0) == {}

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(spin, "_Event", refuse)
    assert sample_spin([os.getpid()], 5.0) == {}


def test_an_unknown_machine_is_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spin.platform, "machine", lambda: "riscv64")
    assert sample_spin([os.getpid()], 5.0) == {}


@pytest.mark.parametrize(
    ("vectors", "recurrence"),
    [
        ([(1,)] * 100, 1.0),
        ([(n,) for n in range(100)], 0.0),
        ([(1,), (2,), (1,), (3,)], 0.5),
        ([], 0.0),
    ],
)
def test_recurrence_counts_what_was_seen_before(vectors: list[tuple[int, ...]], recurrence: float) -> None:
    assert measure_recurrence(vectors) == recurrence
