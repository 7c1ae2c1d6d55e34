"""Whatever the input: no exception, no failed reader, and a capture that the bundle can store.

Random text; text of the parsers' own vocabulary; the corpus cut, spliced and damaged at random; and, where atheris is
installed, inputs that are changed for as long as they reach new code (``HANGDOCTOR_FUZZ_S``, 10 seconds by default).
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hangdoctor.errors import HangdoctorError
from hangdoctor.model import Capture
from hangdoctor.parsers import read_files, read_text
from tests.parsers_support import DUMPS, bugs, knowledge, reports

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

SAMPLES = [
    *reports().values(),
    *(p.read_text(errors="replace") for p in sorted(DUMPS.glob("*.txt"))),
    *(p.read_text() for p in sorted(DUMPS.glob("*.json"))),
    (DUMPS / "sglang-startup.log").read_text(),
]
LINES = sorted({line for sample in SAMPLES for line in sample.splitlines() if line})
PREFIXES = (
    "",
    "  ",
    "[rank3]: ",
    "worker-1  | ",
    "(Worker_TP1 pid=7) ",
    "> ",
    "[2025-03-10 16:29:01 TP0] ",
    "# ",
    "\t",
)
WORDS = (
    *(
        'Thread 12 (idle): "MainThread"',
        "Thread 0x00007f (most recent call first):",
        "Process 7: x",
        "Python v3.12 (/x)",
    ),
    *(
        "    f (x.py:1)",
        "    Arguments:",
        "#0  0x0000 in f () from /x.so",
        "#1 f from /x.py:2",
        'File "x", line 1 in f',
    ),
    *(
        "Traceback (most recent call last):",
        '  File "x", line 1, in f',
        "KeyboardInterrupt",
        "ValueError: x",
        "=" * 12,
    ),
    *(
        "[PG ID 0 PG GUID 1(x) Rank 2] ",
        "last enqueued work: 7, last completed work: 6",
        "# TP0-TP9",
        "==> a/rank7.txt <==",
    ),
    *(
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=X)",
        "State:\tD (x)",
        "[<0>] f+0x1/0x2",
    ),
    *(
        "PID STAT COMMAND",
        "  7 D    python",
        "NCCL version 2.28.9 compiled with CUDA 13",
        "#0-0 (d8d9137d824c9dcf) MISMATCH",
    ),
    *(
        '[{"pid": 1, "thread_id": 2, "frames": [',
        '{"entries": [], "pg_config": {}}',
        '{"nccl_version": "x", "communicators": [',
    ),
    *(
        "Error: Failed to suspend process",
        "Pyspy dump for PID 7:",
        "100%|##| 1/1",
        "\x1b[31m",
        "\r",
        "\x00",
        "卡",
        "²",
        "٣",
    ),
)


def check(capture: Capture) -> None:
    assert not bugs(capture)
    assert capture.snapshots
    for snapshot in capture.snapshots:
        keys = [(p.host, p.pid) for p in snapshot.processes]
        assert len(keys) == len(set(keys)), "two processes of one look share their identity"
        for process in snapshot.processes:
            assert process.pid != 0
            for thread in process.threads:
                assert thread.stack is None or thread.stack.frames
    repr(capture)


@QUICK
@given(st.text(max_size=2000))
def test_any_text(text: str) -> None:
    check(read_text(text, "x", knowledge()))


@QUICK
@given(st.lists(st.tuples(st.sampled_from(PREFIXES), st.sampled_from([*WORDS, *LINES])), max_size=60))
def test_lines_in_any_order(lines: list[tuple[str, str]]) -> None:
    check(read_text("\n".join(prefix + line for prefix, line in lines), "x", knowledge()))


@QUICK
@given(st.sampled_from(SAMPLES), st.data())
def test_any_piece_of_a_report(sample: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(sample)))
    end = data.draw(st.integers(start, len(sample)))
    check(read_text(sample[start:end], "x", knowledge()))


@QUICK
@given(st.sampled_from(SAMPLES), st.sampled_from(SAMPLES), st.data())
def test_one_report_spliced_into_another(first: str, second: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(first)))
    start = data.draw(st.integers(0, len(second)))
    check(read_text(first[:cut] + second[start:] + first[cut:], "x", knowledge()))


@QUICK
@given(
    st.sampled_from(SAMPLES),
    st.lists(st.tuples(st.floats(0, 1), st.text(max_size=8)), min_size=1, max_size=12),
)
def test_damaged_reports(sample: str, hits: list[tuple[float, str]]) -> None:
    text = sample
    for place, with_what in hits:
        at = int(place * len(text))
        text = text[:at] + with_what + text[at + len(with_what) :]
    check(read_text(text, "x", knowledge()))


KEYS = (
    *(
        "pid",
        "thread_id",
        "os_thread_id",
        "thread_name",
        "frames",
        "name",
        "filename",
        "short_filename",
        "line",
        "module",
    ),
    *(
        "active",
        "owns_gil",
        "entries",
        "pg_config",
        "pg_status",
        "pg_id",
        "process_group",
        "profiling_name",
        "state",
    ),
    *(
        "collective_seq_id",
        "input_sizes",
        "retired",
        "rank",
        "nccl_version",
        "communicators",
        "hash",
        "size",
        "ranks",
    ),
    *("missing_ranks", "status", "collective_counts", "host", "ras", "timeouts_count"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=8),
    max_leaves=40,
)


@QUICK
@given(JSON)
def test_json_of_the_right_keys_and_any_values(value: object) -> None:
    check(read_text(json.dumps(value), "x", knowledge()))
    check(read_text(json.dumps([value], indent=1), "x", knowledge()))


PICKLES = [(DUMPS / f"nccl_trace_rank_{r}").read_bytes() for r in range(3)]


@QUICK
@given(st.sampled_from(PICKLES), st.data())
def test_damaged_pickles(sample: bytes, data: st.DataObject) -> None:
    end = data.draw(st.integers(2, len(sample)))
    at = data.draw(st.integers(2, len(sample)))
    blob = sample[:at] + data.draw(st.binary(max_size=6)) + sample[at:end]
    read_bytes(blob)


@QUICK
@given(JSON, st.integers(2, 5))
def test_pickles_of_plain_values(value: object, protocol: int) -> None:
    read_bytes(pickle.dumps({"entries": [value], "pg_config": {}}, protocol))


@QUICK
@given(st.binary(max_size=600))
def test_any_bytes(blob: bytes) -> None:
    read_bytes(blob)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    global FILE
    FILE = tmp_path_factory.mktemp("fuzz") / "input"


FILE = Path("unset")


def read_bytes(blob: bytes) -> None:
    FILE.write_bytes(blob)
    try:
        capture = read_files([str(FILE)], knowledge())
    except HangdoctorError as error:
        assert error.message
    else:
        check(capture)


FUZZ_S = int(os.environ.get("HANGDOCTOR_FUZZ_S", "10"))


@pytest.mark.timeout(FUZZ_S + 120)
@pytest.mark.skipif(
    find_spec("atheris") is None, reason="atheris is not installed: nothing was fuzzed by coverage"
)
def test_inputs_that_reach_new_code(tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    for number, path in enumerate(sorted(path for path in DUMPS.iterdir() if path.is_file())):
        # The first byte chooses the name of the file, see fuzz_parsers.py.
        (seeds / str(number)).write_bytes(bytes([number]) + path.read_bytes()[:20_000])
    program = Path(__file__).parent / "programs" / "fuzz_parsers.py"
    limits = [f"-max_total_time={FUZZ_S}", "-timeout=20", "-rss_limit_mb=1500", "-max_len=20000", "-seed=7"]
    done = subprocess.run(
        [sys.executable, str(program), str(seeds), *limits],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=FUZZ_S + 100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
