"""The telling line of a log: it wins over statistics that were written since, unless the server got over it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoctor.analysis import diagnose, last_words
from hangdoctor.collect import Plan, logs, take_capture
from hangdoctor.discover import Request, find_tree
from hangdoctor.model import LogMessage, LogTail
from hangdoctor.parsers import read_text
from hangdoctor.render import RENDERERS, RenderOptions
from hangdoctor.report import LogLine, Report
from tests.captures import START, capture, frames, rank
from tests.conftest import stuck
from tests.knowledge_support import built_in

WORK = frames("tokenize /job/data.py:7", "<module> /job/train.py:50")
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access"
HEARTBEAT = "Engine 000: Avg generation throughput: 0.0 tokens/s, Running: 3 reqs, Waiting: 0 reqs"


def report_on(*story: str, folder: Path) -> Report:
    """A real process whose log is behind its standard output; its main thread waits for ever."""
    with stuck("d_talker.py", *story, output=folder / "server.log") as program:
        plan = Plan(snapshots=1, use_gpu=False, use_spin=False)
        return diagnose(take_capture(find_tree(Request(program.pid), built_in()), plan), built_in())


def said(*lines: str, earlier: tuple[str, ...] = (), written_ago_s: float = 2.0) -> LogLine:
    """What is chosen of one log at the last look."""
    taken = capture([rank(0, 2, [WORK])])
    last = taken.snapshots[-1]
    assert last.taken_at is not None
    tail = LogTail("/var/log/x.log", 9, last.taken_at - written_ago_s, lines, earlier=earlier)
    taken = replace(taken, snapshots=(*taken.snapshots[:-1], replace(last, logs=(tail,))))
    line = diagnose(taken, built_in()).log_line
    assert line is not None
    return line


# -- real processes ---------------------------------------------------------------------------------


def test_the_failure_above_four_hundred_lines_of_statistics_is_shown(tmp_path: Path) -> None:
    report = report_on("failed", folder=tmp_path)
    line = report.log_line
    assert line is not None and line.text.endswith(ILLEGAL)
    assert line.is_failure and not line.is_newest and "throughput" in line.newest
    assert line.age_s is not None and 395 < line.age_s < 460
    assert line.newest_age_s is not None and line.newest_age_s < 30
    shown = RENDERERS["terminal"].render(report, RenderOptions(width=200))
    assert "In the log, 6 min" in shown and "CUDA error: an" in shown and "Last in the log, " in shown
    assert shown.index("CUDA error") < shown.index("Last in the log")
    for name in ("markdown", "html", "json"):
        assert ILLEGAL in RENDERERS[name].render(report, RenderOptions()), name


@pytest.mark.parametrize("story", ["recovered", "works_on", "restarted"])
def test_a_failure_that_was_got_over_is_not_the_present_state(story: str, tmp_path: Path) -> None:
    """Twin: the same failure, and afterwards the server is ready, computes, or was started anew."""
    report = report_on(story, folder=tmp_path)
    line = report.log_line
    assert line is not None and not line.is_failure
    assert ("Starting to load model" in line.text) is (story == "restarted")
    assert ILLEGAL not in RENDERERS["terminal"].render(report, RenderOptions(width=200))


def test_a_step_of_the_start_wins_over_statistics(tmp_path: Path) -> None:
    line = report_on("loading", folder=tmp_path).log_line
    assert line is not None and "Starting to load model" in line.text and not line.is_failure


def test_a_log_of_nothing_but_statistics_shows_the_newest(tmp_path: Path) -> None:
    report = report_on("quiet", folder=tmp_path)
    line = report.log_line
    assert line is not None and line.is_newest and not line.is_failure
    assert "In the log" not in RENDERERS["terminal"].render(report, RenderOptions()).replace("Last in", "")


def test_a_telling_newest_line_is_shown_once(tmp_path: Path) -> None:
    report = report_on("failed", "at-last", folder=tmp_path)
    line = report.log_line
    assert line is not None and line.is_failure
    # 400 s ago another failed; what failed now is another burst.
    assert line.is_newest and line.text.endswith("EngineCore encountered a fatal error.")
    shown = RENDERERS["terminal"].render(report, RenderOptions(width=200))
    assert shown.count("EngineCore encountered") == 1


def test_lines_that_are_not_repeated_survive_before_the_tail() -> None:
    lines = [f"{n:03} statistics {n}" for n in range(500)]
    lines[17] = "ValueError: bad shape"
    lines[16] = "MIIEowIBAAKCAQEA"
    lines[18] = lines[19] = "018 (TP1) statistics 0"
    assert logs.last_of_each_kind(lines) == ("ValueError: bad shape", lines[19], "499 statistics 499")


# -- which line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "telling"),
    [
        (["Traceback (most recent call last):", '  File "t.py", line 3', "KeyError: 'x'", HEARTBEAT], 2),
        (["ValueError: bad shape", "step 1", "step 2", "step 3"], 0),
        (["ERROR 11-29 19:21:11 [x.py:1] it broke", HEARTBEAT], 0),
        (["2026-11-29 19:21:11.123 | ERROR    | x:step:3 - it broke", HEARTBEAT], 0),
        (["2026-11-29 19:21:11,123 - trainer.loop - ERROR - it broke", HEARTBEAT, "waiting for nobody"], 0),
        (["2026-11-29 19:21:11,123 - trainer.loop - INFO - ERROR_LOG is x.txt", "waiting for nobody"], 1),
        (["[rank1]:[E1129 19:21:11.123456 ProcessGroupNCCL.cpp:629] it broke", HEARTBEAT], 0),
        (["INFO 11-29 19:21:11 [x.py:1] No available block found in 60 second.", HEARTBEAT], 0),
        (["downloading the index", HEARTBEAT, HEARTBEAT.replace("3", "4")], 0),
        (["INFO no error: errors=0, ErrorBudget is fine", "downloading the index"], 1),
        (["(Worker_TP1 pid=9) KeyError: 'x'", "(Worker_TP1 pid=9) INFO Starting to load model m..."], 0),
        (["(Worker_TP1 pid=9) WorkerProc hit an exception.", "(Worker_TP1 pid=9) Starting to load model m"], 1),
        (["(Worker_TP1 pid=9) WorkerProc hit an exception.", "(Worker_TP0 pid=8) Starting to load model m"], 0),
        (["RuntimeError: NCCL error", "RuntimeError: Engine core initialization failed. See root cause above."], 0),
    ],
)  # fmt: skip
def test_which_line_says_most(lines: list[str], telling: int) -> None:
    assert said(*lines).text == lines[telling]


def test_ages_are_counted_from_the_newest_stamp() -> None:
    """The server's clock may be in another zone; a line without a stamp is as old as the next that has one."""
    line = said(
        "KeyError: 'x'",
        "INFO 11-29 19:00:00 [x.py:1] hello",
        "INFO 11-29 19:05:00 [x.py:1] Avg generation throughput: 0.0 tokens/s, Running: 1 reqs, Waiting: 0",
    )
    assert (line.text, line.age_s, line.newest_age_s) == ("KeyError: 'x'", 302.0, 2.0)
    assert said("KeyError: 'x'", HEARTBEAT).age_s == 2.0
    assert START > 0


def test_a_stamp_without_a_year_has_that_of_the_others() -> None:
    """vLLM and glog write none; other loggers in the same log do."""
    line = said(
        "ERROR 11-29 19:21:11 [core.py:9] it broke",
        "2026-11-29 19:22:11,123 - INFO - flashinfer.jit: finished loading",
    )
    assert line.is_failure and line.age_s is not None and 62 <= line.age_s < 63


def test_many_failures_are_weighed_in_one_pass() -> None:
    """A saved log of a large job: each rank fails, and each says something afterwards."""
    lines = [
        line
        for rank_ in range(3000)
        for line in (
            last_words._Line(f"e{rank_}", LogMessage("error", "", process=f"w{rank_}"), None, False),
            last_words._Line("step", LogMessage("begin", "", process=f"x{rank_}"), None, False),
        )
    ]
    began = time.process_time()
    standing = last_words._standing_failure(lines)
    assert time.process_time() - began < 1.0
    assert standing is not None and standing.text == "e2999"


def test_a_failure_in_another_log_is_preferred() -> None:
    taken = capture([rank(0, 2, [WORK])])
    last = taken.snapshots[-1]
    assert last.taken_at is not None
    tails = (
        LogTail("/log/rank3", 9, last.taken_at - 60, ("ValueError: bad shape",)),
        LogTail("/log/rank0", 9, last.taken_at - 1, ("step 1", "step 2")),
    )
    report = diagnose(replace(taken, snapshots=(replace(last, logs=tails),)), built_in())
    line = report.log_line
    assert line is not None and (line.text, line.path) == ("ValueError: bad shape", "/log/rank3")
    assert report.log_tail == ("step 1", "step 2")


def test_a_pasted_log_is_read_alike() -> None:
    text = "\n".join(
        ["(EngineCore pid=8) ERROR 11-29 19:00:00 [core.py:9] EngineCore encountered a fatal error."]
        + [f"(APIServer pid=7) INFO 11-29 19:05:{n:02} [x.py:1] {HEARTBEAT}" for n in range(60)]
    )
    line = diagnose(read_text(text, "server.log"), built_in()).log_line
    assert line is not None and line.is_failure and line.age_s == 359.0
