"""One healthy life of a real server: start-up, first request, serving, idle. Nothing in it may be called hung."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoctor.report import Kind
from tests.expectations import Expectation
from tests.real_server.conftest import Keeper
from tests.real_server.judging import Truth, attach_and_judge, look
from tests.real_server.server import Server

pytestmark = [pytest.mark.real_server, pytest.mark.slow]

ORDER = (
    ("arguments", "import", "wait-engine", "engine-handshake"),
    ("worker-init", "wait-workers", "dist-init", "nccl-init", "rendezvous", "new-group", "store-wait"),
    ("model-init", "weights-lookup", "weights-load", "weights-postprocess", "worker-ready"),
    ("memory-profile", "kv-cache-alloc", "warmup", "wait-startup-rpc", "engine-ready"),
    ("http-start", "engine-idle", "worker-idle", "http-idle", "parent-idle", "http-busy", "execute"),
)
"""The phases of a start in the order in which one process can be in them; of equal rank within a line."""
FORTY_S_OF_TOKENS = 16000


def test_a_start_is_followed_from_import_to_ready(keeper: Keeper, tmp_path: Path) -> None:
    server = keeper.fresh()
    answers = []
    while not (answers and server.is_healthy()):
        answers.append(
            look(server.pid, f"start-{len(answers)}", tmp_path, "--snapshots", "2", "--interval", "1")[0]
        )
    told = [answer.told() for answer in answers]
    kinds = [answer.kind for answer in answers]
    assert "hung" not in kinds, told[kinds.index("hung")]
    assert kinds.count("slow") >= len(kinds) / 2, kinds
    phases: dict[int, list[str]] = {}
    for answer in answers:
        for row in answer.report["processes"]:
            if row["phase"] and row["role"] in (
                "vllm.worker",
                "vllm.engine-core",
                "vllm.api-server",
                "vllm.child",
            ):
                phases.setdefault(row["pid"], []).append(row["phase"].partition(".")[2])
    for pid, seen in phases.items():
        places = [place for phase in seen if (place := _place(phase)) is not None]
        assert places == sorted(places), f"pid {pid} went backwards: {seen}"
    named = {phase for seen in phases.values() for phase in seen}
    assert "import" in named, named
    assert named & {"wait-engine", "wait-workers"}, named
    _assert_ranks_never_wrong(server, answers)


def _place(phase: str) -> int | None:
    return next((place for place, names in enumerate(ORDER) if phase in names), None)


def _assert_ranks_never_wrong(server: Server, answers: list) -> None:  # type: ignore[type-arg]
    """A worker has no rank in its title until the groups exist: unknown is right, wrong is not."""
    truth = {server.worker(rank): rank for rank in (0, 1)}
    for answer in answers:
        for row in answer.report["processes"]:
            if row["pid"] in truth and row["rank"] is not None:
                assert row["rank"]["tp"] in (None, truth[row["pid"]]), row


def test_a_first_request_waits_for_a_compiler(keeper: Keeper, tmp_path: Path) -> None:
    """Nobody ordered this: torch.compile builds the sampler's kernels with an empty cache, one rank at a time."""
    server = keeper.ready(is_warm=False)
    request = server.ask()
    workers = frozenset((server.worker(0), server.worker(1)))
    truth = Truth(
        "first-request-compiles",
        Expectation(
            truth="the first request after a start, with an empty cache: torch.compile builds C++ kernels",
            note="The workers take turns behind a lock file; either may be the one that compiles.",
            kinds=(Kind.SLOW,),
            culprits=workers,
            causes=("compiling",),
        ),
    )
    attach_and_judge(server.pid, truth, tmp_path, "--snapshots", "2")
    request.tokens()


def test_idle(keeper: Keeper, tmp_path: Path) -> None:
    server = keeper.ready()
    truth = Truth(
        "idle",
        Expectation(truth="a healthy idle server", kinds=(Kind.READY,), causes=("idle",)),
    )
    answer = attach_and_judge(server.pid, truth, tmp_path)
    assert answer.culprits == []


def test_serving_a_long_request(keeper: Keeper, tmp_path: Path) -> None:
    server = keeper.ready()
    request = server.ask(FORTY_S_OF_TOKENS)
    truth = Truth(
        "serving",
        Expectation(
            truth="one long request is being served",
            note="The engine core's stack can be equal in all looks, and a worker may be caught inside a collective.",
            kinds=(Kind.READY,),
            causes=("serving",),
        ),
    )
    attach_and_judge(server.pid, truth, tmp_path)
    assert request.is_pending, "the request ended before the looks did"
    assert len(request.tokens(timeout_s=300.0)) == FORTY_S_OF_TOKENS


def test_looking_changes_no_token(keeper: Keeper, tmp_path: Path) -> None:
    server = keeper.ready()
    alone = server.ask(2000).tokens()
    watched = server.ask(2000)
    looks = 0
    while watched.is_pending or not looks:
        look(server.pid, "watched", tmp_path, "--snapshots", "2", "--interval", "0.5")
        looks += 1
    assert watched.tokens() == alone
    assert server.ask(2000).tokens() == alone
