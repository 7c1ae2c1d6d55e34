"""The verdict on hand-built jobs. Every rule has a twin in which one fact is flipped and it must fall silent."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from hangdoctor.analysis import diagnose
from hangdoctor.knowledge import Knowledge, load_knowledge
from hangdoctor.model import (
    FlightEntry,
    Frame,
    LockWait,
    Method,
    OpenFile,
    SpinSample,
    Stack,
    Syscall,
    Thread,
)
from hangdoctor.report import Cause, Confidence, Kind, Report
from tests.captures import (
    C10D,
    FUTEX,
    FUTEX_TIMED,
    RUNNING,
    SLEEP,
    Looks,
    capture,
    frames,
    in_collective,
    rank,
)

WORLD = 7
ODD = 5
LOADING = frames("load_shard /job/data.py:19", "main /job/train.py:44", "<module> /job/train.py:60")


@cache
def knowledge() -> Knowledge:
    return load_knowledge()


def diagnosis(processes: list[Looks], **options: object) -> Report:
    return diagnose(capture(processes, **options), knowledge())  # type: ignore[arg-type]


def job(odd: Looks, victim_facts: dict[str, object] | None = None) -> list[Looks]:
    """Six ranks in all_reduce and one that the test describes."""
    facts = victim_facts or {"syscall": FUTEX_TIMED}
    return [odd if n == ODD else rank(n, WORLD, [in_collective()], **facts) for n in range(WORLD)]


def culprit_ranks(report: Report) -> set[int | None]:
    return {c.rank.global_rank if c.rank else None for c in report.verdict.culprits}


def answer(report: Report) -> tuple[Kind, Cause | None, set[int | None]]:
    return report.verdict.kind, report.verdict.cause, culprit_ranks(report)


# -- the rank outside the collective -------------------------------------------------------------


def test_a_rank_asleep_outside_the_collective_is_the_laggard() -> None:
    report = diagnosis(job(rank(ODD, WORLD, [LOADING], syscall=SLEEP, last_ran_s=12.0)))
    assert answer(report) == (Kind.HUNG, Cause.LAGGARD, {ODD})
    assert report.verdict.confidence is Confidence.LIKELY
    culprit = report.verdict.culprits[0]
    assert culprit.frame is not None and culprit.frame.function == "load_shard"
    assert len(report.verdict.victims) == WORLD - 1


def test_twin_all_ranks_pass_through_collectives() -> None:
    steps = [in_collective(caller=f"train_step /job/train.py:{n}") for n in (31, 32, 33)]
    ranks = [rank(n, WORLD, steps, cpu_s=2.0, switches=900) for n in range(WORLD)]
    assert diagnosis(ranks).verdict.kind is not Kind.HUNG


def test_ranks_whose_collectives_finish_run() -> None:
    steps = [in_collective(caller=f"train_step /job/train.py:{n}") for n in (31, 32, 33)]
    flight = [entry(100), entry(290), entry(730)]
    ranks = [rank(n, WORLD, steps, cpu_s=2.0, switches=900, flight=flight) for n in range(WORLD)]
    report = diagnosis(ranks)
    assert (report.verdict.kind, report.verdict.cause) == (Kind.READY, Cause.SERVING)


def test_a_laggard_seen_only_once_is_named_but_not_called_hung() -> None:
    report = diagnosis(job(rank(ODD, WORLD, [LOADING], syscall=SLEEP)), offsets=(0.0,))
    assert report.verdict.kind is Kind.UNKNOWN
    assert culprit_ranks(report) == {ODD}
    assert any("second look" in step.text for step in report.next_steps)


def test_a_rank_that_computes_outside_the_collective_is_slow() -> None:
    stacks = [frames(f"build_index /job/q.py:{n}", "main /job/train.py:44") for n in (7, 9, 12)]
    spin = SpinSample(samples=400, recurrence=0.01)
    report = diagnosis(job(rank(ODD, WORLD, stacks, cpu_s=5.0, syscall=RUNNING, state="R", spin=spin)))
    assert answer(report) == (Kind.SLOW, Cause.LAGGARD, {ODD})


def test_twin_a_busy_rank_without_proof_is_not_called_slow_or_hung() -> None:
    stacks = [frames("poll_flag /job/q.py:7", "main /job/train.py:44")]
    report = diagnosis(job(rank(ODD, WORLD, stacks, cpu_s=5.0, syscall=RUNNING, state="R")))
    assert answer(report) == (Kind.UNKNOWN, Cause.LAGGARD, {ODD})


def test_a_rank_whose_registers_repeat_spins() -> None:
    spin = SpinSample(samples=400, recurrence=0.97)
    stacks = [frames("poll_flag /job/q.py:7", "main /job/train.py:44")]
    report = diagnosis(job(rank(ODD, WORLD, stacks, cpu_s=5.0, syscall=RUNNING, state="R", spin=spin)))
    assert answer(report) == (Kind.HUNG, Cause.SPIN, {ODD})


# -- stopped, dead, missing ----------------------------------------------------------------------


def test_a_stopped_rank_is_certain_although_its_stack_shows_the_collective() -> None:
    report = diagnosis(job(rank(ODD, WORLD, [in_collective()], state="T")))
    assert answer(report) == (Kind.HUNG, Cause.STOPPED_PROCESS, {ODD})
    assert report.verdict.confidence is Confidence.CERTAIN
    assert any(step.command == f"kill -CONT {4000 + ODD}" for step in report.next_steps)


def test_twin_a_rank_that_was_stopped_and_runs_again_is_not_accused() -> None:
    stacks = [in_collective(caller=f"train_step /job/train.py:{n}") for n in (31, 32, 33)]
    ranks = [
        rank(n, WORLD, stacks, cpu_s=1.0, switches=900, state=["T", "S", "S"] if n == ODD else "S")
        for n in range(WORLD)
    ]
    assert diagnosis(ranks).verdict.cause is not Cause.STOPPED_PROCESS


def test_a_zombie_rank_is_dead() -> None:
    report = diagnosis(job(rank(ODD, WORLD, [None], state="Z", syscall=None)))
    assert answer(report) == (Kind.HUNG, Cause.DEAD_PROCESS, {ODD})


def test_a_rank_that_vanished_between_looks_is_dead() -> None:
    report = diagnosis(job(rank(ODD, WORLD, [LOADING], present=[True, False, False])))
    assert answer(report) == (Kind.HUNG, Cause.DEAD_PROCESS, {ODD})


def test_of_several_deaths_the_first_is_the_cause() -> None:
    ranks = [
        rank(n, WORLD, [LOADING], present=[True, n != ODD, n not in (ODD, 1, 2)], syscall=SLEEP)
        for n in range(WORLD)
    ]
    assert answer(diagnosis(ranks)) == (Kind.HUNG, Cause.DEAD_PROCESS, {ODD})


def test_a_rank_missing_before_the_others_ended_is_the_cause() -> None:
    ranks = [
        rank(n, WORLD, [LOADING], present=[True, True, n not in (1, 2)], syscall=SLEEP)
        for n in range(WORLD)
        if n != ODD
    ]
    for looks in ranks:
        looks.environ["LOCAL_WORLD_SIZE"] = str(WORLD)
    report = diagnosis(ranks)
    assert (report.verdict.cause, report.verdict.culprits) == (Cause.DEAD_PROCESS, ())
    assert f"rank {ODD} was missing" in report.verdict.summary.lower()


def test_a_rank_that_never_came_is_missing() -> None:
    ranks = [rank(n, WORLD, [in_collective()], syscall=FUTEX_TIMED) for n in range(WORLD) if n != ODD]
    for looks in ranks:
        looks.environ["LOCAL_WORLD_SIZE"] = str(WORLD)
    report = diagnosis(ranks)
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.DEAD_PROCESS)
    assert f"missing: {ODD}" in report.verdict.summary


HTTP_IDLE = frames(
    "Runner.run /usr/lib/python3.11/asyncio/runners.py:118",
    "run /site-packages/uvloop/__init__.py:96",
    "ServeSubcommand.cmd /site-packages/vllm/entrypoints/cli/serve.py:122",
    "main /site-packages/vllm/entrypoints/cli/main.py:75",
)
WAITS_FOR_ENGINE = frames(
    "wait_for_engine_startup /site-packages/vllm/v1/engine/utils.py:1398",
    "launch_core_engines /site-packages/vllm/v1/engine/utils.py:1300",
    "ServeSubcommand.cmd /site-packages/vllm/entrypoints/cli/serve.py:122",
    "main /site-packages/vllm/entrypoints/cli/main.py:75",
)
ENGINE_IDLE = frames(
    "Condition.wait /usr/lib/python3.11/threading.py:327",
    "Queue.get /usr/lib/python3.11/queue.py:171",
    "EngineCoreProc._process_input_queue /site-packages/vllm/v1/engine/core.py:1200",
    "EngineCoreProc.run_busy_loop /site-packages/vllm/v1/engine/core.py:1150",
    "EngineCoreProc.run_engine_core /site-packages/vllm/v1/engine/core.py:1100",
)


def api_server(*options: str, stack: tuple[Frame, ...] = HTTP_IDLE) -> Looks:
    command = ("python", "/opt/venv/bin/vllm", "serve", "m", *options)
    return Looks(pid=4000, stacks=[stack], command=command, syscall=Syscall("epoll_wait"))


def test_a_front_end_with_nobody_behind_it_is_hung() -> None:
    report = diagnosis([api_server("--tensor-parallel-size", "2")])
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.DEAD_PROCESS)
    assert "none of the 2 ranks" in report.verdict.summary


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param([api_server("-tp", "2", stack=WAITS_FOR_ENGINE)], id="still-starting"),
        pytest.param([api_server("-tp", "2", "--data-parallel-size-local", "0")], id="engines-elsewhere"),
        pytest.param([api_server("-tp", "2", "--distributed-executor-backend", "ray")], id="ranks-under-ray"),
        pytest.param([api_server()], id="ranks-not-promised"),
        pytest.param(
            [
                api_server("--tensor-parallel-size", "1"),
                Looks(pid=4001, ppid=4000, stacks=[ENGINE_IDLE], command=("VLLM::EngineCore",)),
            ],
            id="engine-core-lives",
        ),
    ],
)
def test_twin_a_front_end_is_not_alone(jobs: list[Looks]) -> None:
    assert diagnosis(jobs).verdict.cause is not Cause.DEAD_PROCESS


def test_twin_a_pasted_stack_of_a_front_end_does_not_say_that_it_is_alone() -> None:
    pasted = replace(capture([api_server("--tensor-parallel-size", "2")]), origin="py-spy")
    assert diagnose(pasted, knowledge()).verdict.kind is not Kind.HUNG


SHM = "/site-packages/vllm/distributed/device_communicators/shm_broadcast.py"
MULTIPROC = "/site-packages/vllm/v1/executor/multiproc_executor.py"
WORKER_LOOP = (f"MessageQueue.dequeue {SHM}:971", f"WorkerProc.worker_busy_loop {MULTIPROC}:1041")
WORKER_SPINS = frames(
    "sched_yield /site-packages/vllm/distributed/utils.py:46", f"SpinCondition.wait {SHM}:208", *WORKER_LOOP
)
WORKER_POLLS = frames(
    "Poller.poll /site-packages/zmq/sugar/poll.py:106", f"SpinCondition.wait {SHM}:210", *WORKER_LOOP
)
WORKER_COMPUTES = frames(
    f"all_reduce {C10D}:3252",
    "CpuCommunicator.all_reduce /site-packages/vllm/distributed/device_communicators/cpu_communicator.py:85",
    "Worker.execute_model /site-packages/vllm/v1/worker/gpu_worker.py:700",
    f"WorkerProc.worker_busy_loop {MULTIPROC}:1041",
)
ENGINE_IN_STEP = frames(
    f"SpinCondition.wait {SHM}:208",
    f"MultiprocExecutor.collective_rpc.<locals>.get_response {MULTIPROC}:420",
    "EngineCore.step /site-packages/vllm/v1/engine/core.py:430",
    "EngineCoreProc.run_busy_loop /site-packages/vllm/v1/engine/core.py:1150",
)


def vllm_in_a_step(worker_0: Looks, worker_1: Looks, engine_reads: tuple[int, ...]) -> list[Looks]:
    engine = Looks(
        pid=4001, ppid=4000, stacks=[ENGINE_IN_STEP], command=("VLLM::EngineCore",), read_calls=engine_reads
    )
    return [api_server("--tensor-parallel-size", "2"), engine, worker_0, worker_1]


def worker(number: int, stacks: list[tuple[Frame, ...]], **facts: object) -> Looks:
    title = (f"VLLM::Worker_TP{number}",)
    return Looks(pid=4100 + number, ppid=4001, stacks=stacks, command=title, comm=title[0], **facts)  # type: ignore[arg-type]


def test_a_worker_that_spins_and_then_polls_for_work_its_peer_is_in_waits_all_the_time() -> None:
    """The first look met it within the second for which the queue spins."""
    late = worker(1, [WORKER_SPINS, WORKER_POLLS, WORKER_POLLS], cpu_s=0.01)
    report = diagnosis(vllm_in_a_step(worker(0, [WORKER_COMPUTES]), late, (900, 900, 900)))
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.LAGGARD)
    assert [c.pid for c in report.verdict.culprits] == [4101]


def test_twin_workers_met_in_their_queue_while_steps_go_on_hold_nobody_up() -> None:
    """A step of a tiny model is so short that all looks fall between two of them."""
    busy = {"cpu_s": 4.0, "syscall": RUNNING, "state": "R"}
    workers = [worker(n, [WORKER_SPINS], **busy) for n in (0, 1)]
    report = diagnosis(vllm_in_a_step(*workers, (900, 9_000, 29_000)))
    assert (report.verdict.kind, report.verdict.cause) == (Kind.READY, Cause.SERVING)


def test_twin_steps_that_ended_with_the_second_look_are_no_steps_now() -> None:
    workers = [worker(n, [WORKER_POLLS]) for n in (0, 1)]
    report = diagnosis(vllm_in_a_step(*workers, (900, 9_000, 9_000)))
    assert report.verdict.kind in (Kind.HUNG, Kind.UNKNOWN)


STATS = [
    (
        f"(APIServer pid=4000) INFO 11-29 19:21:{seconds} [loggers.py:335] Engine 000: "
        f"Avg generation throughput: 137.7 tokens/s, Running: 1 reqs, GPU KV cache usage: {usage}%",
    )
    for seconds, usage in ((11, 0.3), (11, 0.3), (21, 0.5))
]


def test_a_count_in_the_log_tells_that_steps_go_on_where_nobody_counts_messages() -> None:
    late = worker(1, [WORKER_POLLS])
    everyone = vllm_in_a_step(worker(0, [WORKER_COMPUTES]), late, ())
    report = diagnosis(everyone, logs=STATS)
    assert (report.verdict.kind, report.verdict.cause) == (Kind.READY, Cause.SERVING)


def test_twin_the_count_speaks_of_the_time_before_a_step_that_does_not_end() -> None:
    late = worker(1, [WORKER_POLLS])
    everyone = vllm_in_a_step(worker(0, [WORKER_COMPUTES]), late, (900, 900, 900))
    report = diagnosis(everyone, logs=STATS)
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.LAGGARD)


# -- a wait inside a known phase -----------------------------------------------------------------

INIT = (
    "GroupCoordinator.__init__ /site-packages/sglang/srt/distributed/parallel_state.py:370",
    "init_distributed_environment /site-packages/sglang/srt/distributed/parallel_state.py:1500",
    "ModelRunner.init_torch_distributed /site-packages/sglang/srt/model_executor/model_runner.py:800",
    "run_scheduler_process /site-packages/sglang/srt/managers/scheduler.py:3000",
)
NOTIFIED = ("Condition.wait threading.py:355", "Event.wait threading.py:655")


def scheduler(number: int, stack: tuple[Frame, ...], **facts: object) -> Looks:
    title = (f"sglang::scheduler_TP{number}",)
    return Looks(4200 + number, [stack], command=title, comm="sglang::schedul", ppid=4199, **facts)  # type: ignore[arg-type]


def initializing(call: Syscall = FUTEX, *threads: Thread) -> Report:
    """TP1 waits for an Event before its communicator, TP0 for TP1 in a broadcast."""
    late = scheduler(
        1, frames(*NOTIFIED, "check_license /opt/plugin.py:90", *INIT), syscall=call, extra_threads=threads
    )
    return diagnosis([scheduler(0, (*in_collective("broadcast")[:2], *frames(*INIT))), late])


def thread(name: str, *calls: str, call: Syscall = FUTEX) -> Thread:
    stack = Stack(frames(*calls, "Thread.run threading.py:982"), Method.PY_SPY_NONBLOCKING)
    return Thread(
        tid=77, name=name, comm="python", state="S", stack=stack, syscall=call, run_ns=1, voluntary_switches=1
    )


def test_an_event_that_no_thread_is_left_to_set_is_no_part_of_a_slow_phase() -> None:
    report = initializing(FUTEX, thread("queue", "Condition.wait threading.py:355", "Queue.get queue.py:171"))
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.INITIALIZING_NCCL)
    assert [c.pid for c in report.verdict.culprits] == [4201]


@pytest.mark.parametrize(
    ("call", "threads"),
    [
        pytest.param(FUTEX_TIMED, (), id="it-waits-with-a-timeout"),
        pytest.param(
            FUTEX,
            (
                thread(
                    "fetch",
                    "SSLSocket.read ssl.py:1100",
                    "fetch /opt/plugin.py:7",
                    call=Syscall("recvfrom", fd=9),
                ),
            ),
            id="another-thread-waits-for-an-answer",
        ),
    ],
)
def test_twin_an_event_that_somebody_may_still_set_has_the_phase_s_budget(
    call: Syscall, threads: tuple[Thread, ...]
) -> None:
    assert initializing(call, *threads).verdict.kind is Kind.UNKNOWN


# -- locks ---------------------------------------------------------------------------------------


def lock_thread(tid: int, name: str, owner: int | None, how: str | None = "value-stack") -> Thread:
    stack = Stack(frames(f"{name} /job/app.py:13", "Thread.run threading.py:982"), Method.PY_SPY_NONBLOCKING)
    lock = LockWait("threading.Lock", 0x7F00 + tid, owner_tid=owner, owner_pid=None, owner_how=how)
    return Thread(tid=tid, name=name, comm="python", state="S", stack=stack, syscall=FUTEX, lock=lock)


def test_two_threads_that_hold_each_others_lock_are_a_cycle() -> None:
    main = frames("Thread.join threading.py:1100", "<module> /job/app.py:30")
    threads = (lock_thread(4101, "one", 4102), lock_thread(4102, "two", 4101))
    report = diagnosis([Looks(4100, [main], extra_threads=threads)])
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.LOCK_CYCLE)
    assert report.verdict.confidence is Confidence.CERTAIN
    assert {c.tid for c in report.verdict.culprits} == {4101, 4102}


def test_twin_a_chain_of_locks_that_ends_is_no_cycle() -> None:
    main = frames("Thread.join threading.py:1100", "<module> /job/app.py:30")
    threads = (lock_thread(4101, "one", 4102), lock_thread(4102, "two", None, None))
    report = diagnosis([Looks(4100, [main], extra_threads=threads)])
    assert report.verdict.cause is not Cause.LOCK_CYCLE


def test_a_rank_in_a_lock_is_named_with_the_frame_that_wants_it() -> None:
    wanting = frames("reserve_slot /job/offload.py:88", "main /job/train.py:44")
    report = diagnosis(job(rank(ODD, WORLD, [wanting])))
    assert answer(report) == (Kind.HUNG, Cause.LOCK_HELD, {ODD})
    assert report.verdict.culprits[0].frame is not None
    assert report.verdict.culprits[0].frame.function == "reserve_slot"


def test_a_rank_that_holds_the_gil_and_sleeps() -> None:
    native = frames("call_native /job/ext.py:5", "main /job/train.py:44")
    report = diagnosis(job(rank(ODD, WORLD, [native], syscall=SLEEP, owns_gil=True)))
    assert answer(report) == (Kind.HUNG, Cause.GIL_HELD, {ODD})


# -- collectives ---------------------------------------------------------------------------------


def test_one_rank_in_another_collective_is_a_mismatch() -> None:
    report = diagnosis(job(rank(ODD, WORLD, [in_collective("all_gather")], syscall=FUTEX_TIMED)))
    assert answer(report) == (Kind.HUNG, Cause.COLLECTIVE_MISMATCH, {ODD})


def entry(sequence: int, op: str = "gloo:all_reduce") -> tuple[FlightEntry, ...]:
    return (FlightEntry("0", op, sequence, state="pending"),)


def test_the_flight_recorder_tells_equal_stacks_apart() -> None:
    ranks = [
        rank(
            n,
            WORLD,
            [in_collective()],
            syscall=FUTEX_TIMED,
            flight=[entry(3 if n == ODD else 4)] * 3,
        )
        for n in range(WORLD)
    ]
    report = diagnosis(ranks)
    assert answer(report) == (Kind.HUNG, Cause.COLLECTIVE_MISMATCH, {ODD})
    assert report.verdict.confidence is Confidence.CERTAIN


def test_twin_all_ranks_in_the_same_collective_names_nobody_alone() -> None:
    ranks = [
        rank(n, WORLD, [in_collective()], syscall=FUTEX_TIMED, flight=[entry(4)] * 3) for n in range(WORLD)
    ]
    report = diagnosis(ranks)
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.ALL_IN_COLLECTIVE)
    assert len(report.verdict.culprits) == WORLD


@pytest.mark.parametrize(
    ("states", "cited"),
    [
        (
            ("completed", "started", "scheduled"),
            "oldest collective that is not over is #2 all_reduce (started)",
        ),
        (("completed", "completed", "completed"), "newest collective is #3 all_reduce (completed)"),
    ],
    ids=["two are queued", "all are over"],
)
def test_the_collective_that_is_cited_is_the_one_that_the_rules_go_by(
    states: tuple[str, ...], cited: str
) -> None:
    """A later one queues behind the one that does not end: naming it would lead to the wrong call."""
    flight = tuple(FlightEntry("0", "all_reduce", n, state=state) for n, state in enumerate(states, 1))
    culprit = rank(ODD, WORLD, [frames("tokenize /job/data.py:7")], syscall=SLEEP, flight=[flight] * 3)
    report = diagnosis(job(culprit))
    assert [entry.text for entry in report.evidence if entry.source == "flight recorder"] == [
        f"group 0: {cited}"
    ]


def in_groups(pending: str, used: str) -> tuple[FlightEntry, ...]:
    """What the recorder of a rank holds that waits in one group and was in others before."""
    over = tuple(FlightEntry(group, "gloo:barrier", 1, state="retired") for group in used)
    return (*over, FlightEntry(pending, "gloo:all_reduce", 2, state="pending"))


def test_ranks_that_use_two_groups_in_two_orders_wait_for_each_other() -> None:
    ranks = [
        rank(n, WORLD, [in_collective()], flight=[in_groups("1" if n < ODD else "2", "012")] * 3)
        for n in range(WORLD)
    ]
    report = diagnosis(ranks)
    assert answer(report) == (Kind.HUNG, Cause.COLLECTIVE_MISMATCH, set(range(WORLD)))
    assert f"rank 0-{ODD - 1} in group 1" in report.verdict.summary
    assert "not used in the same order" in report.verdict.summary


@pytest.mark.parametrize("used", ["0", "own"])
def test_twin_ranks_of_two_groups_that_share_nobody_do_not_wait_for_each_other(used: str) -> None:
    """Whether nothing is known of the groups' members, or that each has its own."""
    ranks = []
    for n in range(WORLD):
        group = "1" if n < ODD else "2"
        flight = in_groups(group, "0" if used == "0" else f"0{group}")
        ranks.append(rank(n, WORLD, [in_collective()], flight=[flight] * 3))
    assert diagnosis(ranks).verdict.cause is Cause.ALL_IN_COLLECTIVE


# -- progress ------------------------------------------------------------------------------------


def shard(position: int) -> tuple[OpenFile, ...]:
    path = "/models/m/model-00012-of-00061.safetensors"
    return (OpenFile(9, path, "file", position=position, size_bytes=1 << 30, access="r"),)


def test_a_file_position_that_advances_makes_the_laggard_slow() -> None:
    facts = {"files": [shard(n << 20) for n in (100, 160, 300)], "syscall": RUNNING, "state": "R"}
    report = diagnosis(job(rank(ODD, WORLD, [LOADING], **facts)))
    assert report.verdict.kind is Kind.SLOW
    assert culprit_ranks(report) == {ODD}
    progress = report.verdict.progress
    whole = (11 + 300 / 1024) / 61
    assert progress is not None and progress.percent == pytest.approx(100 * whole, abs=0.1)
    assert progress.rate == pytest.approx((200 << 20) / 10, rel=0.01)
    assert progress.eta_s == pytest.approx((1 - whole) * 61 * 1024 / 20, rel=0.01)
    assert "shard 12 of 61" in (progress.what or "")


def test_twin_a_file_position_that_stands_still_is_no_progress() -> None:
    facts = {"files": [shard(100 << 20)] * 3, "syscall": SLEEP}
    assert diagnosis(job(rank(ODD, WORLD, [LOADING], **facts))).verdict.kind is Kind.HUNG


# -- ready ---------------------------------------------------------------------------------------

QUEUE = frames(
    "Condition.wait threading.py:327",
    "Queue.get queue.py:171",
    "worker /job/serve.py:12",
    "<module> /job/serve.py:30",
)


def test_ranks_that_wait_for_work_are_ready() -> None:
    report = diagnosis([rank(n, WORLD, [QUEUE]) for n in range(WORLD)])
    assert (report.verdict.kind, report.verdict.cause) == (Kind.READY, Cause.IDLE)
    assert report.verdict.culprits == ()


def test_twin_a_rank_that_idles_while_its_peers_are_in_a_collective_is_the_culprit() -> None:
    report = diagnosis(job(rank(ODD, WORLD, [QUEUE])))
    assert answer(report) == (Kind.HUNG, Cause.LAGGARD, {ODD})


def test_every_claim_cites_evidence_that_exists() -> None:
    report = diagnosis(job(rank(ODD, WORLD, [LOADING], syscall=SLEEP, last_ran_s=12.0)))
    known = {e.id for e in report.evidence}
    cited = {i for c in report.verdict.culprits for i in c.evidence}
    assert cited and cited <= known


def test_the_holder_of_a_wanted_lock_is_the_culprit_and_not_the_one_that_wants_it() -> None:
    sleeping = Stack(
        frames("_flush_loop /job/offload.py:52", "Thread.run threading.py:982"), Method.PY_SPY_NONBLOCKING
    )
    holder = Thread(
        tid=4900, name="flusher", comm="python", state="S", stack=sleeping, syscall=SLEEP, run_ns=5
    )
    lock = LockWait("threading.Lock", 0x7F10, owner_tid=4900, owner_how="value-stack")
    wanting = frames("reserve_slot /job/offload.py:88", "main /job/train.py:44")
    report = diagnosis(job(rank(ODD, WORLD, [wanting], lock=lock, extra_threads=(holder,))))
    assert answer(report) == (Kind.HUNG, Cause.LOCK_HELD, {ODD})
    culprit = report.verdict.culprits[0]
    assert (culprit.tid, culprit.thread) == (4900, "flusher")
    assert culprit.frame is not None and culprit.frame.function == "_flush_loop"
    assert len(report.verdict.victims) == WORLD - 1


def test_dequantization_is_slow_although_nothing_but_lines_moves() -> None:
    stacks = [frames(f"unpack_int4 /job/q.py:{n}", "dequantize_layer /job/q.py:30") for n in (7, 9, 12)]
    report = diagnosis(job(rank(ODD, WORLD, stacks, cpu_s=5.0, syscall=RUNNING, state="R")))
    assert answer(report) == (Kind.SLOW, Cause.DEQUANTIZING, {ODD})


def test_twin_a_dequantization_that_stands_still_is_not_called_slow() -> None:
    stacks = [frames("unpack_int4 /job/q.py:7", "dequantize_layer /job/q.py:30")]
    assert diagnosis(job(rank(ODD, WORLD, stacks, syscall=SLEEP))).verdict.kind is not Kind.SLOW


EVENT = frames("Condition.wait threading.py:327", "Event.wait threading.py:629", "serve /job/serve.py:12")


def served_in_a_thread() -> Thread:
    loop = frames("_PollLikeSelector.select selectors.py:415", "BaseServer.serve_forever socketserver.py:232")
    return Thread(
        tid=4990, name="http", comm="python", state="S", stack=Stack(loop, Method.PY_SPY_NONBLOCKING)
    )


def test_a_main_thread_that_only_sits_there_while_a_thread_serves_is_ready() -> None:
    report = diagnosis([Looks(4100, [EVENT], extra_threads=(served_in_a_thread(),))])
    assert report.verdict.kind is Kind.READY


def test_twin_an_event_that_nobody_sets_holds_up_those_who_wait_for_that_rank() -> None:
    report = diagnosis(job(rank(ODD, WORLD, [EVENT])))
    assert answer(report) == (Kind.HUNG, Cause.LAGGARD, {ODD})


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["shards: 17/100", "shards: 21/100", "shards: 40/100"], Kind.SLOW),
        (["12:00:01 alive, 17/100", "12:00:04 alive, 17/100", "12:00:11 alive, 17/100"], Kind.HUNG),
    ],
)
def test_a_count_that_advances_in_the_log_is_progress_and_a_heartbeat_is_not(
    lines: list[str], kind: Kind
) -> None:
    everyone = job(rank(ODD, WORLD, [LOADING], syscall=SLEEP))
    report = diagnosis(everyone, logs=[(line,) for line in lines])
    assert report.verdict.kind is kind


def test_a_stopped_compiler_below_a_rank_is_a_stuck_child() -> None:
    waiting = frames(
        "Popen.wait subprocess.py:1264", "build_ninja cpp_extension.py:533", "main /job/train.py:44"
    )
    nvcc = Looks(5000, [None], state="T", command=("nvcc", "-c", "x.cu"), comm="nvcc", ppid=4000 + ODD)
    everyone = [*job(rank(ODD, WORLD, [waiting])), nvcc]
    report = diagnosis(everyone)
    assert answer(report) == (Kind.HUNG, Cause.CHILD_STUCK, {ODD})


def test_twin_a_compiler_that_uses_the_cpu_is_slow() -> None:
    waiting = frames(
        "Popen.wait subprocess.py:1264", "build_ninja cpp_extension.py:533", "main /job/train.py:44"
    )
    nvcc = Looks(
        5000, [None], state="R", command=("nvcc", "-c", "x.cu"), comm="nvcc", ppid=4000 + ODD, cpu_s=3.0
    )
    report = diagnosis([*job(rank(ODD, WORLD, [waiting])), nvcc])
    assert answer(report) == (Kind.SLOW, Cause.COMPILING, {ODD})


BATON = frames(
    "FileBaton.wait /site-packages/torch/utils/file_baton.py:50",
    "_jit_compile /site-packages/torch/utils/cpp_extension.py:2000",
    "main /job/train.py:44",
)


def test_a_lock_file_without_a_builder_is_stale() -> None:
    report = diagnosis([rank(n, WORLD, [BATON], switches=30, syscall=SLEEP) for n in range(WORLD)])
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.STALE_LOCK_FILE)


def test_twin_a_lock_file_with_a_builder_is_not() -> None:
    nvcc = Looks(
        5000, [None], state="R", command=("nvcc", "-c", "x.cu"), comm="nvcc", ppid=4000 + ODD, cpu_s=3.0
    )
    building = frames(
        "Popen.wait subprocess.py:1264", "build_ninja cpp_extension.py:533", "main /job/train.py:44"
    )
    ranks = [
        rank(n, WORLD, [building if n == ODD else BATON], switches=30, syscall=SLEEP) for n in range(WORLD)
    ]
    assert answer(diagnosis([*ranks, nvcc])) == (Kind.SLOW, Cause.COMPILING, {ODD})


def test_ranks_in_flock_wait_for_the_one_that_holds_the_file() -> None:
    building = frames("Popen.wait subprocess.py:1264", "build /job/b.py:52", "main /job/train.py:44")
    wanting = frames("wait_for_build /job/b.py:65", "main /job/train.py:44")
    nvcc = Looks(
        5000, [None], state="R", command=("nvcc", "-c", "x.cu"), comm="nvcc", ppid=4000 + ODD, cpu_s=3.0
    )
    flock = Syscall("flock", fd=9, is_timed=False)
    ranks = [
        rank(n, WORLD, [building]) if n == ODD else rank(n, WORLD, [wanting], syscall=flock)
        for n in range(WORLD)
    ]
    report = diagnosis([*ranks, nvcc])
    assert answer(report) == (Kind.SLOW, Cause.COMPILING, {ODD})
    assert len(report.verdict.victims) == WORLD - 1


def test_twin_an_flock_that_nobody_builds_behind_is_not_slow() -> None:
    wanting = frames("wait_for_build /job/b.py:65", "main /job/train.py:44")
    flock = Syscall("flock", fd=9, is_timed=False)
    report = diagnosis([rank(n, WORLD, [wanting], syscall=flock) for n in range(WORLD)])
    assert report.verdict.kind is Kind.HUNG


def test_a_look_between_two_compilers_is_no_hang() -> None:
    building = frames("Popen.wait subprocess.py:1264", "build /job/b.py:52", "main /job/train.py:44")
    command = ("nvcc", "-c", "x.cu")
    steps = [
        Looks(
            5000 + n, [None], command=command, comm="nvcc", ppid=4000 + ODD, present=[n == 0, n == 1, False]
        )
        for n in range(2)
    ]
    assert answer(diagnosis([*job(rank(ODD, WORLD, [building])), *steps])) == (
        Kind.SLOW,
        Cause.COMPILING,
        {ODD},
    )
