"""Log lines: which process wrote them, the numbers in them, and lines that must not be taken for others."""

from __future__ import annotations

import time

import pytest

from tests.knowledge_support import built_in

KNOWLEDGE = built_in()


@pytest.mark.parametrize(
    ("line", "writer"),
    [
        ("[2026-11-29 18:04:41 DP0 TP3 EP3] Load weight begin. avail mem=138.28 GB", "DP0 TP3 EP3"),
        ("[2026-11-29 18:04:41 TP1] Load weight begin. avail mem=138.28 GB", "TP1"),
        ("[2026-11-29 18:04:41] Load weight begin. avail mem=138.28 GB", None),
        ("(Worker_TP1 pid=32634) INFO 11-29 [x.py:1] Loading weights took 3.1 seconds", "Worker_TP1"),
        ("(EngineCore_DP0 pid=7) INFO 11-29 [x.py:1] EngineCore failed to start.", "EngineCore_DP0"),
        ("[rank3]:[E1129] [Rank 1] watchdog got stuck for 480 seconds without", "rank 3"),
    ],
)
def test_who_wrote_a_line(line: str, writer: str | None) -> None:
    message = KNOWLEDGE.read_log_line(line)
    assert message is not None and message.process == writer


def test_pids_and_numbers_become_fields() -> None:
    message = KNOWLEDGE.read_log_line(
        "(Worker_TP1 pid=32634) INFO [x.py:1] Loading weights took 3.25 seconds"
    )
    assert message is not None
    assert (message.fields["pid"], message.fields["seconds"], message.fields["phase"]) == (
        "32634",
        "3.25",
        "vllm.weights-load",
    )


def test_a_redrawn_progress_bar_gives_its_last_state() -> None:
    line = (
        "Capturing batches (bs=256):   3%| | 1/36 [01:04]\rCapturing batches (bs=8):  97%| | 35/36 [01:06]\n"
    )
    message = KNOWLEDGE.read_log_line(line)
    assert message is not None
    assert (message.fields["percent"], message.fields["done"], message.fields["total"]) == ("97", "35", "36")


def test_the_nccl_watchdog_line_in_its_old_and_new_form() -> None:
    new = (
        "[rank5]:[E1129 19:21:11.0 ProcessGroupNCCL.cpp:629] [Rank 5] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=91885, OpType=ALLREDUCE, NumelIn=1290240, NumelOut=1290240, Timeout(ms)=600000) "
        "ran for 600053 milliseconds before timing out."
    )
    old = (
        "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST, Timeout(ms)=1800000)"
        " ran for 1800116 milliseconds before timing out."
    )
    message = KNOWLEDGE.read_log_line(new)
    assert message is not None and message.process == "rank 5"
    assert (message.fields["sequence"], message.fields["op"], message.fields["ran_ms"]) == (
        "91885",
        "ALLREDUCE",
        "600053",
    )
    message = KNOWLEDGE.read_log_line(old)
    assert message is not None and "sequence" not in message.fields and message.fields["op"] == "BROADCAST"


def test_application_startup_complete_is_ready_for_vllm_only() -> None:
    sglang = KNOWLEDGE.read_log_line("[2026-11-29 19:18:08] INFO:     Application startup complete.")
    vllm = KNOWLEDGE.read_log_line("(APIServer pid=1) INFO:     Application startup complete.")
    assert sglang is not None and (sglang.kind, sglang.fields["server"]) == ("progress", "sglang")
    assert vllm is not None and (vllm.kind, vllm.fields["server"]) == ("ready", "vllm")
    assert KNOWLEDGE.ready_line("sglang") == "The server is fired up and ready to roll!"
    assert KNOWLEDGE.ready_line(None) is None


def test_a_known_server_leaves_out_the_words_of_others() -> None:
    line = "[2026-11-29 19:18:08 TP1] Decode batch, #running-req: 1, #token: 829"
    assert KNOWLEDGE.read_log_line(line, "vllm") is None
    assert KNOWLEDGE.read_log_line(line, "sglang") is not None
    shared = "[rank1]:[E1129] [Rank 1] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"
    assert KNOWLEDGE.read_log_line(shared, "vllm") is not None


@pytest.mark.parametrize(
    "line",
    [
        "",
        'INFO: 127.0.0.1:50828 - "POST /generate HTTP/1.1" 200 OK',
        "[2026-11-29 18:04:40 TP1] Ignore import error when loading sglang.srt.models.mimo_audio",
        "(Worker_TP1 pid=1) INFO [x.py:1] the watchdog is fine",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert KNOWLEDGE.read_log_line(line) is None


def test_ten_thousand_lines_a_second() -> None:
    """A log of 100,000 lines must not cost more than a few seconds; measured here: 11 us a line."""
    line = "[2026-11-29 18:04:40 TP1] Ignore import error when loading sglang.srt.models.mimo_audio: Can not import FA3"
    begin = time.process_time()
    for _ in range(2000):
        KNOWLEDGE.read_log_line(line)
    assert time.process_time() - begin < 0.2
