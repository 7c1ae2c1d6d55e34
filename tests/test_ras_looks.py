"""``--ras`` from the option to the verdict: who is asked, when not, and what an answer may decide."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace

import pytest

from hangdoctor import bundle
from hangdoctor.analysis import build_case, diagnose
from hangdoctor.analysis.ras_view import behind
from hangdoctor.cli.looking import make_plan
from hangdoctor.cli.options import LookChoice
from hangdoctor.collect import Plan, RollingCapture
from hangdoctor.collect.ras_asking import addresses, ask_ras, is_any_silent, is_initialising
from hangdoctor.discover import Request, find_tree
from hangdoctor.knowledge import load_knowledge
from hangdoctor.model import (
    Capture,
    Frame,
    Gap,
    Method,
    Process,
    RasAnswer,
    RasCommunicator,
    RasRank,
    Snapshot,
    Stack,
    Thread,
)
from hangdoctor.report import Cause, Kind
from tests.captures import FUTEX, capture, in_collective, rank
from tests.conftest import stuck
from tests.test_ras import Service, running, status
from tests.test_ras import rank as ras_rank

KNOWLEDGE = load_knowledge()
WORLD = 5
LATE = 3


def process(address: str | None = None, version: str = "2.30.7", **fields: object) -> Process:
    environ = {} if address is None else {"NCCL_RAS_ADDR": address}
    made = Process(os.getpid(), versions={"nccl": version}, environ=environ, state="S")
    return replace(made, **fields)  # type: ignore[arg-type]


def test_one_service_is_asked_once_for_all_ranks() -> None:
    service = Service(answer=status([ras_rank(0), ras_rank(1)], []))
    with running(service) as address:
        answers, gaps = ask_ras([process(address)] * 3, None, force=False, limit_s=10.0)
    assert gaps == () and [answer.address for answer in answers] == [address]
    assert sum(words.endswith("STATUS") for words in service.heard) == 1


def test_addresses_come_from_the_ranks_and_have_a_default() -> None:
    assert addresses([process(), process("a:1"), process("a:1")]) == ("localhost:28028", "a:1")


STOPPED = {"state": "T"}
MAKING = {
    "threads": (
        Thread(7, stack=Stack((Frame("init_process_group", "c10d.py", 1),), Method.PY_SPY_NONBLOCKING)),
    )
}


@pytest.mark.parametrize("fields", [STOPPED, MAKING, {"versions": {"nccl": "2.27.3"}}])
def test_a_job_that_could_crash_is_not_asked_unless_forced(fields: dict[str, object]) -> None:
    service = Service(answer=status([ras_rank(0)], []))
    with running(service) as address:
        ranks = [process(address, **fields)]
        answers, gaps = ask_ras(ranks, None, force=False, limit_s=10.0)
        assert answers == () and "not asked" in gaps[0].reason and "--ras-force" in (gaps[0].remedy or "")
        assert service.heard == []
        assert len(ask_ras(ranks, None, force=True, limit_s=10.0)[0]) == 1


def test_a_rank_that_has_vanished_is_silent() -> None:
    one, other = process(), process(pid=1)
    assert is_any_silent([one], Snapshot(None, (one, other)))
    assert not is_any_silent([one, other], Snapshot(None, (one, other)))
    assert not is_any_silent([one], None) and not is_initialising(one)


def test_a_job_without_nccl_is_not_asked() -> None:
    answers, gaps = ask_ras([Process(os.getpid())], None, force=False, limit_s=10.0)
    assert answers == () and "no process has NCCL loaded" in gaps[0].reason


def test_it_is_off_unless_asked_for_and_looks_leave_it_time() -> None:
    plain = LookChoice(None, None, False, False, ())
    assert not Plan().use_ras and not make_plan(plain, KNOWLEDGE).use_ras
    assert make_plan(replace(plain, ras=True), KNOWLEDGE).use_ras
    with (
        stuck("c_hold.py") as program,
        closing(RollingCapture(find_tree(Request(program.pid), KNOWLEDGE), Plan(), 3)) as rolling,
    ):
        plan = Plan(use_ras=True, use_locks=False)
        first, second = rolling.look(plan).snapshots[-1], rolling.look(plan).snapshots[-1]
    asked = [any(gap.source == "ras" for gap in look.gaps) for look in (first, second)]
    assert asked == [True, False]


# -- what an answer decides -----------------------------------------------------------------------


def answer(counts: list[int], first_pid: int) -> RasAnswer:
    ranks = tuple(
        RasRank(n, pid=first_pid + n, counts={"AllReduce": count}) for n, count in enumerate(counts)
    )
    return RasAnswer("localhost:28028", "2.30.7", (RasCommunicator("0xae94", len(counts), ranks),))


def job(*answers: RasAnswer) -> Capture:
    """All ranks in the same all_reduce for 10 s, which alone is no mismatch."""
    looks = capture(
        [rank(n, WORLD, [in_collective()], syscall=FUTEX) for n in range(WORLD)], offsets=(0.0, 10.0)
    )
    snapshots = tuple(replace(look, ras=(one,)) for look, one in zip(looks.snapshots, answers, strict=True))
    return replace(looks, snapshots=snapshots)


def pids(looks: Capture) -> list[int]:
    return [process.pid for process in looks.snapshots[0].processes]


FIRST = pids(job(answer([0], 0), answer([0], 0)))[0]
COUNTS = [640] * LATE + [639] + [640] * (WORLD - LATE - 1)


def test_a_rank_that_stays_behind_is_the_reason_for_a_mismatch() -> None:
    looks = job(answer(COUNTS, FIRST), answer(COUNTS, FIRST))
    report = diagnose(looks, KNOWLEDGE)
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.COLLECTIVE_MISMATCH)
    assert [culprit.pid for culprit in report.verdict.culprits] == [FIRST + LATE]
    assert "639 AllReduce, others 640, unchanged between two looks" in report.verdict.summary
    assert any(entry.source == "ncclras" and "639" in entry.text for entry in report.evidence)


@pytest.mark.parametrize(
    "answers",
    [
        ([640] * WORLD, [640] * WORLD),
        (COUNTS, [count + 5 for count in COUNTS]),
        (COUNTS, [640] * WORLD),
    ],
    ids=["equal", "moving", "caught up"],
)
def test_counts_that_are_equal_or_move_decide_nothing(answers: tuple[list[int], list[int]]) -> None:
    looks = job(*(answer(counts, FIRST) for counts in answers))
    assert behind(build_case(looks, KNOWLEDGE)) is None
    assert diagnose(looks, KNOWLEDGE).verdict.cause is not Cause.COLLECTIVE_MISMATCH


def test_the_answer_of_another_job_is_left_out_and_said() -> None:
    looks = job(answer(COUNTS, 9_000_000), answer(COUNTS, 9_000_000))
    report = diagnose(looks, KNOWLEDGE)
    assert report.verdict.cause is not Cause.COLLECTIVE_MISMATCH
    assert not any(entry.source == "ncclras" for entry in report.evidence)
    gaps: list[Gap] = [gap for gap in report.gaps if gap.source == "ncclras"]
    assert len(gaps) == 1 and "another job answered" in gaps[0].reason


def test_answers_survive_the_bundle(tmp_path: object) -> None:
    looks = job(answer(COUNTS, FIRST), answer(COUNTS, FIRST))
    path = f"{tmp_path}/x.hang"
    bundle.write(looks, path)
    assert bundle.read(path).snapshots[1].ras == looks.snapshots[1].ras
