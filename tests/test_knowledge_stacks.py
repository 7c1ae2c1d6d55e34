"""Real stacks of real servers, labelled by what was really going on, in every spelling a dump may have.

tests/data/stacks/*.json.gz hold main threads only: ``frames`` is a table of (function, short file, full path) as
py-spy 0.4.3 printed them; each stack names the looks it was seen in and what it must be recognised as.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hangdoctor.model import Frame, Method, Stack
from tests.knowledge_support import bare, built_in

KNOWLEDGE = built_in()
FOLDER = Path(__file__).parent / "data" / "stacks"


@dataclass(frozen=True)
class Seen:
    """One labelled stack."""

    name: str
    server: str
    role: str | None
    phase: str | None
    aspect: str | None
    enclosing: tuple[str, ...]
    short: tuple[Frame, ...]
    full: tuple[Frame, ...]


def read_all() -> Iterator[Seen]:
    for path in sorted(FOLDER.glob("*.json.gz")):
        data = json.loads(gzip.decompress(path.read_bytes()))
        table = data["frames"]
        for number, row in enumerate(data["stacks"]):
            frames = [table[index] for index in row["frames"]]
            yield Seen(
                name=f"{path.name.removesuffix('.json.gz')}-{row['seen_in'][0]}-{row['rank'] or row['role']}-{number}",
                server=data["server"],
                role=row["role"],
                phase=row["phase"],
                aspect=row["aspect"],
                enclosing=tuple(row["enclosing"]),
                short=tuple(Frame(function, short) for function, short, _ in frames),
                full=tuple(Frame(function, full) for function, _, full in frames),
            )


SEEN = tuple(read_all())
SPELLINGS = ("short", "full", "bare short", "bare full")


def frames_of(seen: Seen, spelling: str) -> tuple[Frame, ...]:
    frames = seen.full if spelling.endswith("full") else seen.short
    return bare(frames) if spelling.startswith("bare") else frames


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("seen", SEEN, ids=lambda s: s.name)
def test_real_stacks_mean_what_was_going_on(seen: Seen, spelling: str) -> None:
    match = KNOWLEDGE.match(
        Stack(frames_of(seen, spelling), Method.PY_SPY_NONBLOCKING), seen.server, seen.role
    )
    found = (match.phase.id, match.aspect.id if match.aspect else None) if match else (None, None)
    assert found == (seen.phase, seen.aspect)
    if match is not None and not spelling.startswith("bare"):
        assert tuple(phase.id for phase in match.enclosing) == seen.enclosing


@pytest.mark.parametrize("seen", SEEN, ids=lambda s: s.name)
def test_the_phase_of_a_real_stack_does_not_need_the_role(seen: Seen) -> None:
    match = KNOWLEDGE.match(Stack(seen.full, Method.PY_SPY_NONBLOCKING), seen.server, None)
    assert (match.phase.id if match else None) == seen.phase


ENTRY_ROLES = ("sglang.scheduler", "sglang.detokenizer", "vllm.worker", "vllm.engine-core")


@pytest.mark.parametrize("seen", [s for s in SEEN if s.role in ENTRY_ROLES], ids=lambda s: s.name)
def test_the_entry_function_agrees_with_the_title(seen: Seen) -> None:
    found = KNOWLEDGE.find_role_by_stack(Stack(seen.full, Method.PY_SPY_NONBLOCKING), None)
    assert found is not None and found.role.id == seen.role


def test_the_recorded_looks_cover_the_story() -> None:
    """The labels that the captures' README stands for are all there, so that none can be dropped silently."""
    phases = {seen.phase for seen in SEEN}
    assert phases >= {
        "sglang.import", "sglang.arguments", "sglang.dist-init", "sglang.jit-compile", "sglang.attention-backend",
        "sglang.torch-compile", "sglang.graph-capture", "sglang.dequantize", "sglang.load-barrier", "sglang.idle",
        "sglang.receive-requests", "sglang.decode", "sglang.sample", "sglang.http-idle", "sglang.detokenizer-idle",
        "sglang.wait-schedulers", "vllm.import", "vllm.dist-init", "vllm.weights-load", "vllm.load-barrier",
        "vllm.worker-ready", "vllm.torch-compile", "vllm.execute", "vllm.worker-idle", "vllm.engine-idle",
        "vllm.wait-step", "vllm.wait-workers", "vllm.wait-startup-rpc", "vllm.wait-engine", "vllm.http-idle",
    }  # fmt: skip
