"""Attaches to a server as a person would, and holds the answer against the truth.

With HANGDOCTOR_RECORD=FOLDER the bundle of each right answer is kept there with its expected.toml, in the form of
tests/bundles.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hangdoctor import bundle
from hangdoctor.analysis import diagnose
from hangdoctor.knowledge import Knowledge, load_knowledge
from hangdoctor.report import Kind
from scripts.record_bundle import renamed
from tests import expectations
from tests.expectations import Expectation
from tests.jobs import Answer
from tests.real_server import installation
from tests.real_server.installation import ROOT

EXIT_CODES = {Kind.HUNG: 3, Kind.SLOW: 0, Kind.READY: 0, Kind.UNKNOWN: 4}
ATTACH_S = 120.0
MAX_RECORDED_BYTES = 300_000


@dataclass(frozen=True, slots=True)
class Said:
    """One line of the summary at the end of the run."""

    name: str
    verdict: str
    wall_s: float
    bundle_bytes: int


SAID: list[Said] = []


@dataclass(frozen=True, slots=True)
class Truth:
    """What is really wrong, and the frames that a person would blame for it (empty: no frame is asked for)."""

    name: str
    expected: Expectation
    functions: frozenset[str] = field(default_factory=frozenset)


@cache
def knowledge() -> Knowledge:
    """The shipped knowledge, loaded once."""
    return load_knowledge()


def look(pid: int, name: str, folder: Path, *options: str) -> tuple[Answer, Path]:
    """``hangdoctor attach PID --json --bundle FILE``, and the file."""
    path = folder / f"{name}.hang"
    command = [
        sys.executable,
        "-m",
        "hangdoctor",
        "attach",
        str(pid),
        "--json",
        "--bundle",
        str(path),
        "--force",
    ]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--redact", "strict", *options],
        capture_output=True,
        text=True,
        timeout=ATTACH_S,
        cwd=ROOT,
        check=False,
    )
    wall_s = time.monotonic() - began
    assert done.stdout.startswith("{"), f"exit {done.returncode}, no report\n{done.stderr[-4000:]}"
    answer = Answer(json.loads(done.stdout), done.returncode, done.stderr, wall_s)
    size = path.stat().st_size
    SAID.append(
        Said(
            name,
            f"{answer.kind}/{answer.report['verdict']['confidence']} {answer.cause}",
            answer.wall_s,
            size,
        )
    )
    return answer, path


def attach_and_judge(pid: int, truth: Truth, folder: Path, *options: str) -> Answer:
    """Look, and fail unless kind, exit code, culprit, rank, cause, phase and frame are right."""
    answer, path = look(pid, truth.name, folder, *options)
    report = diagnose(bundle.read(path), knowledge())
    assert report.verdict.kind.value == answer.kind, "the saved bundle says something else than the live look"
    complaints = expectations.compare(report, truth.expected).complaints
    assert not complaints, f"{'; '.join(complaints)}\n{truth.expected.truth}\n{answer.told()}"
    assert answer.exit_code == EXIT_CODES[report.verdict.kind]
    if truth.functions:
        # Also of an honest "unknown": it must say whom to look at.
        assert answer.culprit_functions, f"no frame is named\n{answer.told()}"
        assert answer.culprit_functions <= truth.functions, answer.told()
        assert answer.culprit_pids <= truth.expected.culprits, answer.told()
    _record(path, truth)
    return answer


def _record(path: Path, truth: Truth) -> None:
    wanted = os.environ.get("HANGDOCTOR_RECORD")
    if not wanted:
        return
    assert path.stat().st_size <= MAX_RECORDED_BYTES
    whole = bundle.read(path)
    if any(gap.source == "proc" for snapshot in whole.snapshots for gap in snapshot.gaps):
        return  # a busy machine: right all the same, but no recording to learn from
    capture = renamed(whole, _neutral_names())
    folder = Path(wanted) / f"vllm-live-{truth.name}"
    folder.mkdir(parents=True, exist_ok=True)
    bundle.write(capture, folder / "capture.hang")
    (folder / "expected.toml").write_text(_toml(truth.expected), encoding="utf-8")


def _neutral_names() -> dict[str, str]:
    """Folders and kernel of the machine that records, which nobody learns anything from."""
    return {
        str(installation.place()): "/opt/vllm",
        str(ROOT): "/opt/hangdoctor",
        sys.base_prefix: "/usr/local",
        platform.release(): "6.18.0",
    }


def _toml(expected: Expectation) -> str:
    """JSON's strings, numbers and arrays are TOML's."""
    values: dict[str, object] = {
        "truth": expected.truth,
        "note": expected.note,
        "kinds": [kind.value for kind in expected.kinds],
        "culprits": sorted(expected.culprits),
        "also": sorted(expected.also),
        "is_unseen": expected.is_unseen,
        "rank": expected.rank,
        "causes": list(expected.causes),
        "phases": list(expected.phases),
    }
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items() if value]
    return "\n".join(lines) + "\n"


def summary() -> list[str]:
    """What was said and how long it took, for the end of the run."""
    return [
        f"{said.name:34} {said.verdict:32} {said.wall_s:5.1f} s  {said.bundle_bytes / 1000:4.0f} kB"
        for said in SAID
    ]
