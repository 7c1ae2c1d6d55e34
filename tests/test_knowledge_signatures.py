"""Known hangs: all conditions must hold, unknown versions are said to be unchecked, and nothing fires by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangdoctor.knowledge import Observed
from hangdoctor.knowledge.signatures import Versions, release_of
from tests.knowledge_support import built_in, stack

KNOWLEDGE = built_in()


def ids(seen: Observed) -> list[str]:
    return [match.signature.id for match in KNOWLEDGE.match_signatures(seen)]


def test_there_are_enough_and_all_are_public_and_explained() -> None:
    assert len(KNOWLEDGE.signatures) >= 15
    for signature in KNOWLEDGE.signatures:
        assert all(link.startswith("https://") for link in signature.links)
        assert signature.workaround.endswith(".") and signature.meaning.endswith(".")


def test_nothing_fires_for_an_empty_or_healthy_target() -> None:
    assert ids(Observed()) == []
    idle = Observed(
        server="sglang", versions={"sglang": "0.5.12", "nccl": "2.28.9"}, phases=frozenset({"sglang.idle"})
    )
    assert ids(idle) == []


NVLS = Observed(
    server="vllm",
    environ={"NCCL_NVLS_ENABLE": "1"},
    phases=frozenset({"vllm.nccl-init"}),
)


def test_setting_and_phase_must_both_be_there() -> None:
    assert ids(NVLS) == ["nccl-nvls"]
    assert ids(replace(NVLS, environ={"NCCL_NVLS_ENABLE": "0"})) == []
    assert ids(replace(NVLS, environ={})) == []
    assert ids(replace(NVLS, phases=frozenset({"vllm.execute"}))) == []


REQUEST_TIMEOUT = Observed(
    server="sglang",
    versions={"sglang": "0.5.12.post1"},
    environ={"SGLANG_REQ_WAITING_TIMEOUT": "10"},
    phases=frozenset({"sglang.receive-requests"}),
)


def test_versions_bound_a_signature() -> None:
    assert ids(REQUEST_TIMEOUT) == ["sglang-request-timeout"]
    assert ids(replace(REQUEST_TIMEOUT, versions={"sglang": "0.5.23"})) == []
    assert ids(replace(REQUEST_TIMEOUT, server="vllm")) == []
    assert ids(replace(REQUEST_TIMEOUT, environ={"SGLANG_REQ_WAITING_TIMEOUT": "-1"})) == []


def test_an_unknown_version_is_said_to_be_unchecked() -> None:
    (found,) = KNOWLEDGE.match_signatures(replace(REQUEST_TIMEOUT, versions={}))
    assert found.unchecked == ("sglang version unknown (affected: <0.5.23)",)
    (known,) = KNOWLEDGE.match_signatures(REQUEST_TIMEOUT)
    assert known.unchecked == ()
    assert "SGLANG_REQ_WAITING_TIMEOUT=10" in known.because


@pytest.mark.parametrize(
    ("text", "server", "signature"),
    [
        ("FileBaton.wait torch/utils/file_baton.py | load t.py", None, "torch-stale-baton"),
        (
            "all_reduce x.py | HiRadixCache.check_prefetch_progress hiradix_cache.py",
            "sglang",
            "sglang-hicache-prefetch",
        ),
        (
            "CustomAllreduce.register_graph_buffers custom_all_reduce.py | x y.py",
            "sglang",
            "sglang-capture-hidden-error",
        ),
        (
            "NCCLLibrary.ncclCommWindowRegister pynccl_wrapper.py | x y.py",
            "sglang",
            "sglang-symmetric-window",
        ),
        ("FileLock.blocking_acquire tvm_ffi/utils/lockfile.py | x y.py", "sglang", "tvm-ffi-lock"),
    ],
)
def test_frames_bring_up_the_story(text: str, server: str | None, signature: str) -> None:
    assert signature in ids(Observed(server=server, stacks=(stack(text),)))
    assert signature not in ids(Observed(server=server, stacks=(stack("main train.py"),)))


@pytest.mark.parametrize(
    ("line", "server", "signature"),
    [
        (
            "TP rank 3 could finish the model loading, but there are other ranks that didn't",
            "sglang",
            "sglang-load-barrier",
        ),
        (
            "DataParallelController watchdog timeout (self.watchdog_timeout=300)",
            "sglang",
            "sglang-controller-alarm",
        ),
        ("No available shared memory broadcast block found in 60 seconds.", "vllm", "vllm-shm-message"),
        ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152", None, "nccl-nvls-bind-error"),
        ("name: EADDRINUSE, message: address already in use", None, "port-in-use"),
    ],
)
def test_log_lines_bring_up_the_story(line: str, server: str | None, signature: str) -> None:
    assert ids(Observed(server=server, lines=("first", line))) == [signature]


def test_the_better_founded_match_comes_first() -> None:
    seen = replace(REQUEST_TIMEOUT, environ={**REQUEST_TIMEOUT.environ, "CUDA_LAUNCH_BLOCKING": "1"})
    assert ids(seen) == ["sglang-request-timeout", "launch-blocking"]


@pytest.mark.parametrize(
    ("text", "version", "holds"),
    [
        (">=2.26,<2.30", "2.28.9", True),
        (">=2.26,<2.30", "2.30", False),
        (">=2.26,<2.30", "2.26.0+cuda12.8", True),
        ("<0.5.9", "0.5.9", False),
        ("<0.5.9", "0.5.8.post1", True),
        ("==2.11", "2.11.0+cu130", True),
        (">1.0", "v1.0.1", True),
        (">=1.0", "unknown", False),
    ],
)
def test_version_ranges(text: str, version: str, holds: bool) -> None:
    assert Versions.parse(text).holds(version) is holds


def test_versions_read_only_what_they_understand() -> None:
    assert release_of("0.5.12.post1") == (0, 5, 12)
    with pytest.raises(ValueError, match="expected comparisons"):
        Versions.parse("2.x")
