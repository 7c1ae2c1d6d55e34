"""The handshake itself: ready means blocked, release means gone on, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import stuck


def test_program_says_its_words_and_goes_on_when_released() -> None:
    with stuck("c_hold.py") as program:
        assert program.said == (f"held {program.pid}",)
        program.release()
        assert program.popen.wait(20) == 0


def test_nothing_is_left_behind() -> None:
    with stuck("c_hold.py") as program:
        assert Path(f"/proc/{program.pid}").exists()
    assert not Path(f"/proc/{program.pid}").exists()


def test_a_program_that_dies_first_shows_its_output() -> None:
    with (
        pytest.raises(AssertionError, match="can't open file"),
        stuck("c_missing.py"),
    ):
        pass
