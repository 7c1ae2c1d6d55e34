"""The live environment, and what is said when only a damaged copy can be had."""

from __future__ import annotations

import os
import sys

import pytest

from hangdoctor.collect import environ
from hangdoctor.collect.environ import EnvironResult, parse_block, read_environ
from hangdoctor.model import Gap
from tests.conftest import stuck

AT_EXEC = {"HD_CHANGED": "old", "HD_REMOVED": "1", "HD_SECRET": "hunter2", "HD_SURVIVES": "x", "HD_Z": "z"}


def is_ours(name: str) -> bool:
    return name.startswith("HD_") and "SECRET" not in name


def refuse_memory(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("python", [sys.executable, "/usr/bin/python3"])
@pytest.mark.parametrize("words", [(), ("title",)])
def test_live_environment_shows_what_was_set_later(python: str, words: tuple[str, ...]) -> None:
    with stuck("b_environ.py", *words, env=AT_EXEC, python=python) as program:
        result = read_environ(program.pid, is_ours)
    assert isinstance(result, EnvironResult)
    assert result.source == "memory"
    assert result.variables["HD_LATE"] == "set later"
    assert result.variables["HD_CHANGED"] == "new"
    assert "HD_REMOVED" not in result.variables
    if not words:  # the title stand-in moves os.environ's view, which never saw C's setenv
        assert result.variables["HD_FROM_C"] == "c"


def test_what_is_not_allowed_is_never_kept() -> None:
    with stuck("b_environ.py", env=AT_EXEC) as program:
        result = read_environ(program.pid, is_ours)
    assert isinstance(result, EnvironResult)
    assert "HD_SECRET" not in result.variables and "PATH" not in result.variables


def test_without_memory_an_intact_block_is_labelled_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environ, "_read_live", refuse_memory)
    with stuck("b_environ.py", env=AT_EXEC) as program:
        result = read_environ(program.pid, is_ours)
    assert isinstance(result, EnvironResult)
    assert (result.source, result.variables["HD_CHANGED"]) == ("/proc", "old")


def test_a_titled_process_borrows_from_its_resource_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environ, "_read_live", refuse_memory)
    with stuck("b_environ.py", "tracker", "title", env=AT_EXEC) as program:
        result = read_environ(program.pid, is_ours)
    assert isinstance(result, EnvironResult)
    assert result.source == "resource_tracker"
    assert result.variables["HD_FROM_SERVER"] == "yes"


def test_a_titled_process_without_tracker_borrows_from_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environ, "_read_live", refuse_memory)
    with stuck("b_environ.py", "title", env=AT_EXEC) as program:
        result = read_environ(program.pid, lambda name: name in {"HD_SURVIVES", "PATH"})
    assert isinstance(result, EnvironResult)
    assert result.source == "parent"
    assert result.variables["HD_SURVIVES"] == "x"
    assert result.variables["PATH"] == os.environ["PATH"]


def test_nothing_to_borrow_is_a_gap_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environ, "_read_live", refuse_memory)
    monkeypatch.setattr(environ, "_read_relative", lambda pid: None)
    with stuck("b_environ.py", "title", env=AT_EXEC) as program:
        result = read_environ(program.pid, is_ours)
    assert isinstance(result, Gap)
    assert "title" in result.reason and result.remedy is not None and "SPT_NOENV" in result.remedy


def test_a_process_that_is_gone_is_a_gap_without_remedy() -> None:
    result = read_environ(2**22 - 1, is_ours)
    assert isinstance(result, Gap)
    assert result.reason == "the process has ended" and result.remedy is None


@pytest.mark.parametrize(
    ("data", "is_intact", "names"),
    [
        (b"A=1\0B=2\0", True, ["A", "B"]),
        (b"A=1\0B=\xff\0", True, ["A", "B"]),
        (b" " * 463 + b"\0B=2\0C=3\0", False, ["B", "C"]),
        (b"\0" * 20 + b"H=/bin\0C=3\0", False, ["C"]),
        (b"VLLM::Worker_TP1\0TH=/bin\0C=3\0", False, ["C"]),
        (b"worker A=1\0B=2\0C=3\0", False, ["C"]),
        (b"A=1\0junk\0junk\0junk\0", False, []),
        (b"", False, []),
    ],
)
def test_damage_is_recognised(data: bytes, is_intact: bool, names: list[str]) -> None:
    block = parse_block(data)
    assert block.is_intact is is_intact
    assert [entry.partition(b"=")[0].decode() for entry in block.entries] == names
