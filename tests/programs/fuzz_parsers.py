"""Coverage-guided: ``fuzz_parsers.py SAMPLES… -max_total_time=SECONDS``. Ends with 0 when nothing went wrong.

Whatever file is given, the parsers read it or refuse it with words, within their limits of time and memory, and what
they read can be stored. The first byte of an input says which name its file has; the rest is the file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import atheris

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports(include=["hangdoctor.parsers", "hangdoctor.bundle"]):
    from hangdoctor import bundle
    from hangdoctor.parsers import read_files
from hangdoctor.errors import HangdoctorError  # noqa: E402
from tests.parsers_support import bugs, knowledge  # noqa: E402

NAMES = ("dump.txt", "dump.json", "nccl_trace_rank_1", "server.log", "capture.hang", "report.md")
FOLDER = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def read(data: bytes) -> None:
    path = Path(FOLDER, NAMES[data[0] % len(NAMES)] if data else NAMES[0])
    path.write_bytes(data[1:])
    try:
        capture = read_files([str(path)], knowledge())
    except HangdoctorError as error:
        assert error.message
    else:
        assert not bugs(capture)
        bundle.write(capture, str(path) + ".kept")
    finally:
        path.unlink()


atheris.Setup(sys.argv, read)
atheris.Fuzz()
