"""What hangdoctor says of a real job when it may or can see less; see ``scripts/score_unprivileged.py``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import PROGRAMS

NOBODY = 65534
TIERS: dict[str, tuple[str, ...]] = {
    "everything": (),
    "no py-spy": ("py-spy",),
    "seccomp": ("seccomp",),
    "no attach": ("py-spy", "attach"),
}
"""Name to what is taken away (see ``b_attach.py``)."""


@dataclass(frozen=True, slots=True)
class Said:
    """The part of a report that must not depend on what could be seen."""

    kind: str
    cause: str | None
    culprits: frozenset[int]
    report: dict[str, Any]

    def agrees_with(self, other: Said) -> bool:
        """The same kind, and the same processes to blame."""
        return (self.kind, self.culprits) == (other.kind, other.culprits)

    def told(self) -> str:
        verdict = self.report["verdict"]
        blamed = ", ".join(f"pid {row['pid']} {row['doing']}" for row in verdict["culprits"])
        head = f"{self.kind} ({verdict['confidence']}, {self.cause}, rule {verdict.get('rule')})"
        return f"{head}: {verdict['summary']} [{blamed}]"


def has_privileges() -> bool:
    """Whether this process may read those of other users."""
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff"))
    return bool(int(effective.split()[1], 16) >> 19 & 1)


def without_privileges() -> tuple[str, ...]:
    """The front of a command that runs it as an ordinary user would; empty for those who are one.

    As another user where that one can reach the interpreter, else as a root without any capability: the kernel asks
    for capabilities, not for names.
    """
    if not has_privileges():
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv(1) to become an ordinary user")
    nobody = (setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    reached = [*nobody, sys.executable, "-c", "import os; print(os.__file__)"]
    answer = subprocess.run(reached, capture_output=True, text=True, check=False)
    if answer.stdout.strip() == os.__file__ and os.access(PROGRAMS, os.R_OK):
        return nobody
    return (setpriv, "--bounding-set=-all", "--inh-caps=-all")


def look(pid: int, tier: str, options: Sequence[str] = (), prefix: Sequence[str] = ()) -> Said:
    """``attach PID --json`` with what ``tier`` leaves of the machine."""
    lacks = TIERS[tier]
    command = [*prefix, sys.executable, str(PROGRAMS / "b_attach.py"), *lacks, "--"]
    done = subprocess.run(
        [*command, "attach", str(pid), "--json", "--no-bundle", *options],
        capture_output=True,
        text=True,
        timeout=90,
        cwd=PROGRAMS.parent.parent,
        check=False,
    )
    assert done.stdout.startswith("{"), f"exit {done.returncode}, no report\n{done.stderr[-900:]}"
    report = json.loads(done.stdout)
    verdict = report["verdict"]
    return Said(
        verdict["kind"], verdict["cause"], frozenset(row["pid"] for row in verdict["culprits"]), report
    )
