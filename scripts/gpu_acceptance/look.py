"""Runs hangdoctor as a user would and compares its answer with the right one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from plan import Expect

REPOSITORY = Path(__file__).resolve().parents[2]
ATTACH_LIMIT_S = 120
WRONG_USAGE = 2
EXIT_BY_KIND = {"ready": 0, "slow": 0, "hung": 3, "unknown": 4}


@dataclass
class Look:
    """One ``hangdoctor attach``."""

    command: list[str]
    exit_code: int | None
    wall_s: float
    report: dict = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        verdict = self.report.get("verdict", {})
        culprits = verdict.get("culprits", [])
        ranks = [(one.get("rank") or {}).get("label") or one.get("role") for one in culprits]
        return f"{verdict.get('kind')} {verdict.get('confidence')} {verdict.get('cause')} {json.dumps(ranks)}"


def tool_environ(work: Path) -> dict[str, str]:
    tools = work / "tools"
    paths = [str(REPOSITORY), str(tools)] if tools.exists() else [str(REPOSITORY)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }


def attach(pid: int, folder: Path, work: Path, options: tuple[str, ...], suffix: str = "") -> Look:
    """Attach to ``pid``; report, bundle and stderr are left in ``folder``, ``suffix`` in their names."""
    command = [sys.executable, "-m", "hangdoctor", "attach", str(pid), "--json"]
    command += ["--bundle", str(folder / f"capture{suffix}.hang"), *options]
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, cwd=REPOSITORY, env=tool_environ(work), timeout=ATTACH_LIMIT_S
        )
    except subprocess.TimeoutExpired as late:
        look = Look(command, None, time.monotonic() - started)
        look.problems.append(f"attach did not end in {ATTACH_LIMIT_S} s")
        (folder / f"stderr{suffix}.txt").write_bytes(late.stderr or b"")
        return look
    if done.returncode == WRONG_USAGE and options:
        (folder / "notes.txt").write_text(f"this version does not know {' '.join(options)}\n")
        return attach(pid, folder, work, (), suffix)
    look = Look(command, done.returncode, time.monotonic() - started)
    (folder / f"report{suffix}.json").write_bytes(done.stdout)
    (folder / f"stderr{suffix}.txt").write_bytes(done.stderr)
    try:
        look.report = json.loads(done.stdout)
    except ValueError:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        look.problems.append(f"no JSON report, exit code {done.returncode}: {words[-1] if words else ''}")
    return look


def time_reads(pid: int, folder: Path, work: Path) -> None:
    """Raw answers of NCCL's RAS service and what is read in them, and what the recorders cost, beside the report."""
    here = Path(__file__).parent
    for script, argument in (("ras_raw.py", str(folder)), ("read_times.py", str(pid))):
        command = [sys.executable, str(here / script), argument]
        with (folder / script).with_suffix(".txt").open("wb") as output:
            try:
                subprocess.run(
                    command, env=tool_environ(work), stdout=output, stderr=subprocess.STDOUT, timeout=40
                )
            except subprocess.TimeoutExpired:
                output.write(b"did not end in 40 s\n")


def judge(look: Look, expect: Expect) -> None:
    """Adds to ``look.problems`` whatever is not as expected."""
    if not look.report:
        if str(look.exit_code) in expect.exits:
            look.problems.clear()
        return
    verdict = look.report["verdict"]
    kind, cause, culprits = verdict["kind"], verdict["cause"], verdict["culprits"]
    if expect.kinds and kind not in expect.kinds:
        look.problems.append(f"kind {kind}, expected {' or '.join(expect.kinds)}")
    if expect.causes and cause not in expect.causes:
        look.problems.append(f"cause {cause}, expected {' or '.join(expect.causes)}")
    named = [" ".join(_names(culprit)) for culprit in culprits]
    if expect.ranks and not any(rank in words.split() for rank in expect.ranks for words in named):
        look.problems.append(f"culprits {named}, expected {' or '.join(expect.ranks)}")
    phases = [str(culprit.get("phase")) for culprit in culprits]
    if expect.phases and not any(phase.endswith(end) for phase in phases for end in expect.phases):
        look.problems.append(f"phases {phases}, expected {' or '.join(expect.phases)}")
    sources = {item["source"] for item in look.report["evidence"]}
    if expect.sources and not sources & set(expect.sources):
        look.problems.append(f"evidence from {sorted(sources)}, expected {' or '.join(expect.sources)}")
    if look.exit_code != EXIT_BY_KIND.get(kind):
        look.problems.append(f"exit code {look.exit_code} for {kind}")


def _names(culprit: dict) -> list[str]:
    rank = culprit.get("rank") or {}
    words = [f"{name.upper()}{rank[name]}" for name in ("tp", "pp", "dp") if rank.get(name) is not None]
    return [*words, *(str(rank[key]) for key in ("global", "local") if rank.get(key) is not None)]


def watch(pid: int, folder: Path, work: Path, seconds: float) -> list[str]:
    """Let ``hangdoctor watch`` look on for so long, then interrupt it as a user would; what went wrong."""
    command = [sys.executable, "-m", "hangdoctor", "watch", str(pid)]
    with (folder / "watch.txt").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=tool_environ(work), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            process.wait(seconds)
            return [f"watch ended by itself with {process.returncode}"]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return ["watch did not end within 20 s of Ctrl-C"]
    return []
