"""How long and how large: the goal (64 ranks of 200 threads beside 20 MB of log) and 50 MB of the worst there is.

Time is CPU time of a process of its own, and measured by a yardstick, so that neither a busy machine nor a slow one
fails the test; memory is that process' peak.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.parsers_support import DUMPS

pytestmark = pytest.mark.slow

YARDSTICK_S = 0.05
"""What reading 20,000 lines takes on the machine that the goals are for; others are slower, by the hour."""
CROWDED = 1.5
"""What a shared machine's caches may cost on top."""
MEASURE = (
    f"YARDSTICK_S = {YARDSTICK_S}"
    + """
import re, sys, time
from hangdoctor.errors import HangdoctorError
from hangdoctor.knowledge import load_knowledge
from hangdoctor.parsers import read_files

def yardstick():
    start, count = time.process_time(), 0
    for line in ("it hangs with rank nobody knows, and the pid is not known either\\n" * 20_000).splitlines():
        count += len(line.split()) + sum(len(match[2]) for match in re.finditer(r"\\b(rank|pid)\\s+(\\w+)", line))
    return time.process_time() - start

knowledge = load_knowledge()
before = [yardstick() for _ in range(3)]
read_files([sys.argv[2]], knowledge)  # imports and compiled patterns are not what is measured
start = time.process_time()
found = "nothing"
try:
    capture = read_files([sys.argv[1]], knowledge)
    found = f"{len(capture.snapshots[0].processes)} {sum(len(p.threads) for p in capture.snapshots[0].processes)}"
except HangdoctorError:
    pass
# Not ru_maxrss: after a spawn it starts at the peak of the parent, which is the whole test run.
peak_kb = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
seconds = time.process_time() - start
print(seconds * YARDSTICK_S / max(*before, *(yardstick() for _ in range(3))), peak_kb // 1024, found)
"""
)


def measure(path: Path) -> tuple[float, int, str]:
    """CPU seconds on a machine for which the yardstick is made, peak megabytes, and what was found."""
    command = [sys.executable, "-c", MEASURE, str(path), str(DUMPS / "py-spy.txt")]
    output = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent
    ).stdout
    seconds, megabytes, found = output.split(" ", 2)
    return float(seconds), int(megabytes), found.strip()


def dumps(ranks: int, threads: int, frames: int) -> str:
    lines = []
    for rank in range(ranks):
        pid = 100_000 + 1000 * rank
        lines.append(f"Process {pid}: sglang::scheduler_TP{rank}\nPython v3.12.3 (/usr/bin/python3.12)\n\n")
        for number in range(threads):
            name = "MainThread" if number == 0 else f"Thread-{number}"
            lines.append(f'Thread {pid + number} (idle): "{name}"\n')
            lines += [
                f"    function_{(7 * number + n) % 300} (torch/distributed/m_{n % 40}.py:{(number + n) % 900 + 1})\n"
                for n in range(frames)
            ]
    return "".join(lines)


def log(size: int) -> str:
    source = [line for line in (DUMPS / "sglang-startup.log").read_text().splitlines() if len(line) < 400]
    source += [
        f"[2026-11-29 18:04:{n:02} TP{n % 7}] Decode batch, #running-req: {n}, #token: {97 * n}, token usage: 0.1, "
        f"cuda graph: True, gen throughput (token/s): {n}.28, #queue-req: 0"
        for n in range(60)
    ]
    text = "\n".join(source) + "\n"
    return text * (size // len(text) + 1)


def test_goal_of_64_ranks_and_a_log(tmp_path: Path) -> None:
    path = tmp_path / "ticket.txt"
    path.write_text(dumps(64, 200, 30) + log(20_000_000))
    assert path.stat().st_size > 20_000_000 + 15_000_000, "a log of 20 MB and the dumps"
    seconds, megabytes, found = measure(path)
    assert found == f"64 {64 * 200}"
    assert seconds < 5 * CROWDED, f"{seconds:.1f} s"
    assert megabytes < 500


SIZE = 50_000_000
WORST: dict[str, Callable[[], str]] = {
    "one line": lambda: "a" * SIZE,
    "brackets": lambda: "[" * SIZE,
    "quotes and backslashes": lambda: '"\\' * (SIZE // 2),
    "two letters a line": lambda: "ab\n" * (SIZE // 3),
    "prose": lambda: "it hangs with rank nobody knows, and the pid is not known either\n" * (SIZE // 65),
    "beginnings of JSON": lambda: '[{"pid": 1, "thread_id": 2,\n' * (SIZE // 28),
    "empty lists": lambda: '[{"pid": 1, "thread_id": 2, "frames": [' + "[]," * (SIZE // 3),
    "different frames": lambda: "".join(f"    f{n} (x{n}.py:{n})\n" for n in range(SIZE // 28)),
    "thread headers": lambda: "".join(f'Thread {n} (idle): "MainThread"\n' for n in range(SIZE // 35)),
    "deep parentheses": lambda: ("(" * 5000 + ")\n") * (SIZE // 5002),
    "blanks": lambda: (" " * 8000 + "x\n") * (SIZE // 8002),
    "time-outs": lambda: "".join(
        f"[rank{n % 997}]:[E822 16:31:16.131931664 ProcessGroupNCCL.cpp:632] [Rank {n % 997}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={n}, OpType=BROADCAST, NumelIn=3, NumelOut=3, "
        "Timeout(ms)=600000) ran for 600009 milliseconds before timing out.\n"
        for n in range(SIZE // 250)
    ),
    "not ASCII": lambda: ("█" * 60 + " 😀\n") * (SIZE // 186),
}


@pytest.mark.parametrize("name", WORST)
def test_50_megabytes_of_the_worst(tmp_path: Path, name: str) -> None:
    path = tmp_path / "input.txt"
    path.write_text(WORST[name](), encoding="utf-8")
    seconds, megabytes, _ = measure(path)
    path.unlink()
    assert seconds < 10 * CROWDED, f"{seconds:.1f} s"
    assert megabytes < 500, f"{megabytes} MB"
