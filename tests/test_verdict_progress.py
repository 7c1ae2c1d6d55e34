"""Hung or slow on hand-built jobs: polls, repeats, loads, work and waiting in a loop. Each rule with its twins."""

from __future__ import annotations

import pytest

from hangdoctor.model import FlightEntry, Frame, Method, OpenFile, SpinSample, Stack, Thread
from hangdoctor.report import Cause, Kind, ProgressClass, Report
from tests.captures import RUNNING, SLEEP, Looks, frames, rank
from tests.test_verdict import LOADING, ODD, QUEUE, WORLD, answer, culprit_ranks, diagnosis, job

MIB = 1 << 20


def in_lines(function: str, *lines: int) -> list[tuple[Frame, ...]]:
    """One stack a look: the same function at these lines."""
    return [frames(f"{function} /job/start.py:{line}", "main /job/train.py:44") for line in lines]


def poller(**facts: object) -> Looks:
    """Asleep in one function at all looks, woken 20 times a second."""
    stacks = in_lines("await_tokenizer", 12, 13, 12)
    return rank(ODD, WORLD, **{"stacks": stacks, "switches": 70, "syscall": SLEEP, **facts})  # type: ignore[arg-type]


def busy(stacks: list[tuple[Frame, ...]], spin: SpinSample | None) -> Looks:
    return rank(ODD, WORLD, stacks, cpu_s=5.0, syscall=RUNNING, state="R", spin=spin)


def data_file(name: str, position: int, size: int = 1024 * MIB) -> tuple[OpenFile, ...]:
    return (OpenFile(9, f"/models/m/{name}", "file", position=position, size_bytes=size, access="r"),)


# -- a rank that sleeps and looks again -----------------------------------------------------------


def test_a_poll_that_nothing_comes_of_is_a_hang() -> None:
    report = diagnosis(job(poller()))
    assert answer(report) == (Kind.HUNG, Cause.LAGGARD, {ODD})
    assert "sleeps and looks again" in report.verdict.summary


def test_a_poll_is_one_also_where_memory_grows_meanwhile() -> None:
    report = diagnosis(job(poller(rss_bytes=[n * 50 * MIB for n in (10, 11, 14)])))
    assert answer(report) == (Kind.HUNG, Cause.LAGGARD, {ODD})
    assert "memory grows" in report.verdict.summary


def test_a_poll_may_read_what_is_in_memory() -> None:
    report = diagnosis(job(poller(read_chars=[n * 90 * MIB for n in (0, 1, 3)], is_cached=True)))
    assert answer(report) == (Kind.HUNG, Cause.LAGGARD, {ODD})


def test_twin_bytes_from_storage_may_be_what_it_waits_for() -> None:
    report = diagnosis(job(poller(read_chars=[n * 90 * MIB for n in (0, 1, 3)])))
    assert report.verdict.kind is Kind.UNKNOWN


def test_twin_asleep_in_another_function_at_each_look_it_gets_somewhere() -> None:
    stacks = [*in_lines("one", 12), *in_lines("two", 12), *in_lines("three", 12)]
    assert diagnosis(job(poller(stacks=stacks))).verdict.kind is Kind.UNKNOWN


def test_twin_awake_at_most_looks_it_works() -> None:
    assert diagnosis(job(poller(syscall=RUNNING, state="R", cpu_s=0.2))).verdict.kind is Kind.UNKNOWN


def below(**facts: object) -> Looks:
    """A process that the rank at fault has started."""
    own = {"stacks": [None], "command": ("aws", "s3", "cp"), "comm": "aws", "ppid": 4000 + ODD, **facts}
    return Looks(5000, **own)  # type: ignore[arg-type]


@pytest.mark.parametrize("switches", [70, 0], ids=["it polls", "it sleeps for long"])
def test_twin_a_process_below_it_works(switches: int) -> None:
    report = diagnosis([*job(poller(switches=switches)), below(cpu_s=2.0)])
    assert report.verdict.kind is Kind.UNKNOWN
    assert "aws" in report.verdict.summary


def test_a_process_below_it_that_proves_progress_makes_it_slow() -> None:
    loads = [data_file("model.bin", n * MIB) for n in (1, 50, 200)]
    report = diagnosis([*job(poller(switches=0)), below(files=loads)])
    assert answer(report) == (Kind.SLOW, Cause.LOADING, {ODD})


def test_twin_a_thread_beside_the_poll_works() -> None:
    stack = Stack(frames("convert /job/convert.py:9"), Method.PY_SPY_NONBLOCKING)
    thread = Thread(4999, "converter", state="R", stack=stack, run_ns=5)
    assert diagnosis(job(poller(extra_threads=(thread,)))).verdict.kind is Kind.HUNG
    works = diagnosis(job(poller(extra_threads=(thread,), extra_cpu_s=2.0)))
    assert works.verdict.kind is Kind.UNKNOWN


def test_twin_ranks_on_another_host_may_be_what_it_waits_for() -> None:
    everyone = job(poller())
    for looks in everyone:
        looks.environ["WORLD_SIZE"] = str(2 * WORLD)
        looks.environ["LOCAL_WORLD_SIZE"] = str(WORLD)
    assert diagnosis(everyone).verdict.kind is not Kind.HUNG


# -- files that are read over and over -------------------------------------------------------------


def rereading(chars: list[int], name: str = "adapter_model.bin") -> Report:
    """An 8 MiB file, met further on at each look, while so many bytes were read in all."""
    files = [data_file(name, n * MIB, 8 * MIB) for n in (1, 3, 7)]
    odd = poller(files=files, read_chars=chars, is_cached=True)
    return diagnosis(job(odd))


def test_a_file_that_is_read_over_and_over_is_no_progress() -> None:
    report = rereading([0, 60 * MIB, 200 * MIB])
    assert answer(report) == (Kind.HUNG, Cause.LAGGARD, {ODD})


def test_twin_a_file_that_is_read_once_is() -> None:
    report = rereading([0, 2 * MIB, 6 * MIB])
    assert answer(report) == (Kind.SLOW, Cause.LOADING, {ODD})


def test_twin_without_counters_positions_are_believed() -> None:
    report = rereading([0, 0, 0])
    assert report.verdict.kind is Kind.SLOW


def test_reading_at_offsets_is_a_load_only_while_the_file_stays_open() -> None:
    reads = [0, 90 * MIB, 300 * MIB]
    stays = [data_file("model.safetensors", 0)] * 3
    assert diagnosis(job(poller(files=stays, read_chars=reads))).verdict.kind is Kind.SLOW
    opened_anew = [(), (), data_file("model.safetensors", 0)]
    again = diagnosis(job(poller(files=opened_anew, read_chars=reads, is_cached=True)))
    assert again.verdict.kind is not Kind.SLOW


# -- several ranks load: who is behind --------------------------------------------------------------


def loaders(percents: dict[int, int]) -> list[Looks]:
    """Ranks that read one file each, up to so many percent at the last look."""
    made = []
    for number, percent in percents.items():
        positions = [percent * 10 * MIB - back * MIB for back in (30, 20, 0)]
        files = [data_file("model.safetensors", position, 1000 * MIB) for position in positions]
        made.append(rank(number, WORLD, [LOADING], syscall=RUNNING, state="R", files=files))
    return made


def test_of_ranks_that_load_the_one_behind_is_named() -> None:
    shares = {0: 80, 1: 85, 2: 80, 3: 82, 4: 81, ODD: 40, 6: 84}
    report = diagnosis([*loaders(shares)])
    assert (report.verdict.kind, report.verdict.cause) == (Kind.SLOW, Cause.LOADING)
    assert culprit_ranks(report) == {ODD}
    assert "behind" in report.verdict.summary and "80 to 85 %" in report.verdict.summary
    progress = report.verdict.progress
    assert progress is not None and progress.percent == pytest.approx(40, abs=0.1)


VLLM_LOADS = frames(
    "_ColumnvLLMParameter.load_merged_column_weight /site-packages/vllm/model_executor/parameter.py:173",
    "DefaultModelLoader.load_weights /site-packages/vllm/model_executor/model_loader/default_loader.py:300",
    "Worker.load_model /site-packages/vllm/v1/worker/gpu_worker.py:400",
    "WorkerProc.worker_main /site-packages/vllm/v1/executor/multiproc_executor.py:900",
)
VLLM_HAS_LOADED = frames(
    "MessageQueue.wait_until_ready /site-packages/vllm/distributed/device_communicators/shm_broadcast.py:703",
    "WorkerProc.worker_main /site-packages/vllm/v1/executor/multiproc_executor.py:939",
)


def loads_in_vllm(number: int, *, is_done: bool) -> Looks:
    stacks = [VLLM_LOADS, VLLM_LOADS, VLLM_HAS_LOADED if is_done else VLLM_LOADS]
    files = [data_file("model-00003-of-00007.safetensors", place * MIB) for place in (200, 300, 400)]
    title = (f"VLLM::Worker_TP{number}",)
    return Looks(4100 + number, stacks, command=title, comm=title[0], ppid=4099, files=files, syscall=RUNNING)


@pytest.mark.parametrize(("is_done", "named"), [(True, {4101}), (False, {4100, 4101})])
def test_a_rank_that_has_just_finished_loading_holds_nobody_up(is_done: bool, named: set[int]) -> None:
    """It read more than the other between the looks; its twin still reads, as far as the other."""
    report = diagnosis([loads_in_vllm(0, is_done=is_done), loads_in_vllm(1, is_done=False)])
    assert (report.verdict.kind, report.verdict.cause) == (Kind.SLOW, Cause.LOADING)
    assert {c.pid for c in report.verdict.culprits} == named


def test_twin_ranks_that_are_level_are_named_together() -> None:
    report = diagnosis([*loaders({n: 60 + n % 3 for n in range(WORLD)})])
    assert culprit_ranks(report) == set(range(WORLD))


def test_the_place_in_the_whole_load_is_known_across_a_switch_of_shards() -> None:
    """Measured with vLLM: 6.9 of 34 MB of shard 2 of 7 in memory, 3 s later 5.5 MB of shard 3."""
    size = 34 * MIB
    places = [("model-00002-of-00007.safetensors", 6.9), ("model-00003-of-00007.safetensors", 5.5)]
    files = [data_file(name, int(done * MIB), size) for name, done in places]
    odd = rank(ODD, WORLD, [LOADING], files=files, syscall=RUNNING, state="R")
    progress = diagnosis(job(odd), offsets=(0.0, 3.0)).verdict.progress
    assert progress is not None and progress.kind is ProgressClass.PROOF
    reached, before = (2 + 5.5 / 34) / 7, (1 + 6.9 / 34) / 7
    assert progress.percent == pytest.approx(100 * reached, abs=0.1)
    assert progress.eta_s == pytest.approx((1 - reached) * 3 / (reached - before), rel=0.02)


# -- busy: work or a wait in a loop -----------------------------------------------------------------

ONE_PLACE = in_lines("collect_garbage", 7)
LOOP = in_lines("poll_store", 7, 8, 9)


def test_registers_that_lead_through_ever_new_memory_show_work() -> None:
    report = diagnosis(job(busy(ONE_PLACE, SpinSample(300, 0.0, pages=430, new_pages=0.98))))
    assert answer(report) == (Kind.SLOW, Cause.LAGGARD, {ODD})
    assert "430 pages" in report.verdict.summary


def test_twin_so_do_those_of_a_list_that_grows_without_end() -> None:
    hoarder = busy(ONE_PLACE, SpinSample(300, 0.0, pages=430, new_pages=0.98))
    hoarder.rss_bytes = [n * 50 * MIB for n in (10, 11, 14)]
    assert diagnosis(job(hoarder)).verdict.kind is Kind.UNKNOWN


@pytest.mark.parametrize("stacks", [ONE_PLACE, LOOP], ids=["in one line", "in several lines"])
def test_twin_registers_that_keep_to_few_pages_say_nothing(stacks: list[tuple[Frame, ...]]) -> None:
    report = diagnosis(job(busy(stacks, SpinSample(590, 0.13, pages=108, new_pages=0.02))))
    assert answer(report) == (Kind.UNKNOWN, Cause.LAGGARD, {ODD})


def test_twin_a_wait_that_asks_many_objects_in_turn_repeats_itself() -> None:
    report = diagnosis(job(busy(LOOP, SpinSample(600, 0.57, pages=258, new_pages=0.32))))
    assert answer(report) == (Kind.HUNG, Cause.SPIN, {ODD})


def test_few_samples_that_repeat_are_enough_for_a_spin_but_none_that_do_not_for_work() -> None:
    assert answer(diagnosis(job(busy(LOOP, SpinSample(50, 0.6))))) == (Kind.HUNG, Cause.SPIN, {ODD})
    assert diagnosis(job(busy(LOOP, SpinSample(30, 0.6)))).verdict.kind is Kind.UNKNOWN
    assert diagnosis(job(busy(ONE_PLACE, SpinSample(50, 0.0, pages=90, new_pages=1.0)))).verdict.kind is (
        Kind.UNKNOWN
    )


def test_pages_that_come_from_storage_all_the_time_make_it_slow() -> None:
    odd = rank(ODD, WORLD, LOOP, cpu_s=1.0, syscall=RUNNING, state="R", faults=[(0, 0), (0, 400), (0, 1500)])
    report = diagnosis(job(odd))
    assert answer(report) == (Kind.SLOW, Cause.LAGGARD, {ODD})
    assert "does not fit into memory" in report.verdict.summary


def test_twin_a_page_now_and_then_does_not() -> None:
    odd = rank(ODD, WORLD, LOOP, cpu_s=5.0, syscall=RUNNING, state="R", faults=[(0, 0), (0, 4), (0, 15)])
    assert diagnosis(job(odd)).verdict.kind is Kind.UNKNOWN


def test_twin_pages_that_other_threads_fetch_do_not_move_a_rank_that_sleeps() -> None:
    odd = rank(ODD, WORLD, [LOADING], syscall=SLEEP, faults=[(0, 0), (0, 400), (0, 1500)])
    assert answer(diagnosis(job(odd))) == (Kind.HUNG, Cause.LAGGARD, {ODD})


# -- storage, checkpoints, requests -----------------------------------------------------------------


def test_a_page_that_never_comes_is_the_cause_also_where_the_gil_is_held() -> None:
    stack = frames("sum_rows /job/data.py:9", "main /job/train.py:44")
    odd = rank(ODD, WORLD, [stack], state="D", syscall=None, owns_gil=True)
    assert answer(diagnosis(job(odd))) == (Kind.HUNG, Cause.IO_STUCK, {ODD})


SAVING = frames(
    "_save /site-packages/torch/serialization.py:1312",
    "save /site-packages/torch/serialization.py:1003",
    "train /job/train.py:44",
)


def saver(position: tuple[int, int, int]) -> Looks:
    files = [
        (OpenFile(9, "/ckpt/step_900.pt", "file", position=n * MIB, size_bytes=n * MIB, access="w"),)
        for n in position
    ]
    return rank(ODD, WORLD, [SAVING], files=files, syscall=SLEEP, switches=60)


def test_a_checkpoint_that_grows_is_slow() -> None:
    report = diagnosis(job(saver((10, 40, 90))))
    assert answer(report) == (Kind.SLOW, Cause.LAGGARD, {ODD})
    assert "writes step_900.pt" in report.verdict.summary


def test_twin_a_checkpoint_that_does_not_grow_is_not() -> None:
    assert diagnosis(job(saver((10, 10, 10)))).verdict.kind is not Kind.SLOW


COUNT = frames("count /job/serve.py:18", "worker /job/serve.py:13", "<module> /job/serve.py:30")


def worker(number: int, stacks: list[tuple[Frame, ...]], calls: list[int]) -> Looks:
    return rank(number, 2, stacks, read_calls=calls, cpu_s=1.5, switches=700, syscall=RUNNING, state="R")


def test_workers_that_come_back_to_their_queue_serve() -> None:
    ranks = [worker(n, [QUEUE, COUNT, COUNT], [1700, 2400, 3900]) for n in range(2)]
    report = diagnosis(ranks)
    assert (report.verdict.kind, report.verdict.cause) == (Kind.READY, Cause.SERVING)


def test_twin_a_worker_that_reads_no_more_is_not_said_to_serve() -> None:
    ranks = [worker(n, [QUEUE, COUNT, COUNT], [1700, 2400, 2400 if n else 3900]) for n in range(2)]
    assert diagnosis(ranks).verdict.kind is not Kind.READY


def test_twin_a_worker_that_was_never_met_in_its_queue_is_not_said_to_serve() -> None:
    ranks = [worker(n, [COUNT], [1700, 2400, 3900]) for n in range(2)]
    assert diagnosis(ranks).verdict.kind is not Kind.READY


# -- builds -----------------------------------------------------------------------------------------

BUILDING = frames(
    "Popen.wait subprocess.py:1264", "build_ninja cpp_extension.py:533", "main /job/train.py:44"
)


def building(written: list[int]) -> Report:
    command = ("/usr/libexec/gcc/cc1plus", "-quiet", "x.cpp")
    compiler = Looks(5000, [None], command=command, comm="cc1plus", ppid=4000 + ODD, write_chars=written)
    return diagnosis([*job(rank(ODD, WORLD, [BUILDING])), compiler])


def test_output_of_a_compiler_is_progress() -> None:
    report = building([0, 70_000, 220_000])
    assert answer(report) == (Kind.SLOW, Cause.COMPILING, {ODD})
    assert "cc1plus" in report.verdict.summary


def test_twin_a_compiler_that_only_says_something_is_not_proven_to_work() -> None:
    assert building([0, 0, 200]).verdict.kind is Kind.UNKNOWN


# -- a server under load, whose stacks cannot be had at every look ------------------------------------

SCHEDULER = "/site-packages/sglang/srt/managers/scheduler.py"
EVENT_LOOP = (f"Scheduler.event_loop_overlap {SCHEDULER}:1594", f"run_scheduler_process {SCHEDULER}:4041")
DECODES = frames(
    "ModelRunner.forward_decode /site-packages/sglang/srt/model_executor/model_runner.py:3173",
    f"Scheduler.run_batch {SCHEDULER}:3039",
    *EVENT_LOOP,
)
RECEIVES = frames(
    "broadcast /site-packages/torch/distributed/distributed_c10d.py:2974",
    f"Scheduler.recv_requests {SCHEDULER}:1760",
    *EVENT_LOOP,
)
LOADS = frames(
    "LlamaForCausalLM.load_weights /site-packages/sglang/srt/models/llama.py:600",
    "ModelRunner.load_model /site-packages/sglang/srt/model_executor/model_runner.py:900",
    f"run_scheduler_process {SCHEDULER}:3000",
)
DECODED = [
    (f"[2026-11-30 03:15:{20 + n} TP0] Decode batch, #running-req: 8, #token: {400 * n}, #queue-req: 0",)
    for n in (1, 2, 3)
]


def loaded(
    stacks: list[tuple[Frame, ...] | None],
    sequences: tuple[int, ...] = (100, 700, 1900),
    torn: tuple[bool, ...] = (),
) -> Report:
    """Three schedulers whose log counts on; ``stacks`` are those of TP1, and ``torn`` are some of them."""

    def scheduler(
        number: int,
        looks: list[tuple[Frame, ...] | None],
        newest: tuple[int, ...],
        torn: tuple[bool, ...] = (),
    ) -> Looks:
        title = (f"sglang::scheduler_TP{number}",)
        flight = [(FlightEntry("3", "gloo:broadcast", n, state="retired"),) for n in newest]
        return Looks(
            4200 + number,
            looks,
            "R",
            RUNNING,
            4.0,
            400,
            command=title,
            comm="sglang::schedul",
            ppid=4199,
            flight=flight,
            torn=torn,
        )

    others = [scheduler(n, [DECODES, RECEIVES, DECODES], (100, 700, 1900)) for n in (0, 2)]
    return diagnosis([others[0], scheduler(1, stacks, sequences, torn), others[1]], logs=DECODED)


def test_a_rank_under_load_whose_last_stack_could_not_be_had_serves() -> None:
    verdict = loaded([DECODES, RECEIVES, None]).verdict
    assert (verdict.kind, verdict.cause) == (Kind.READY, Cause.SERVING)


def test_a_rank_under_load_whose_last_stack_was_read_in_part_serves() -> None:
    part = frames("THPVariable_getitem torch/_C.py:1")
    verdict = loaded([DECODES, RECEIVES, part], torn=(False, False, True)).verdict
    assert (verdict.kind, verdict.cause) == (Kind.READY, Cause.SERVING)


def test_twin_a_rank_that_was_never_met_in_a_step_is_not_said_to_serve() -> None:
    verdict = loaded([LOADS, LOADS, None]).verdict
    assert (verdict.kind, [c.pid for c in verdict.culprits]) == (Kind.SLOW, [4201])


def test_twin_a_rank_whose_collectives_stand_is_not_said_to_serve() -> None:
    verdict = loaded([DECODES, RECEIVES, None], (700, 700, 700)).verdict
    assert verdict.kind is not Kind.READY
    assert [c.pid for c in verdict.culprits] == [4201]


# -- a stack that no reader can follow to its end, at any look ----------------------------------------------


def unreadable(**facts: object) -> Report:
    stacks = in_lines("await_tokenizer", 12, 12, 12)
    return diagnosis(job(rank(ODD, WORLD, stacks, torn=(True,) * 3, **facts)))


def test_a_stack_that_is_never_whole_stands_still_if_its_thread_never_ran() -> None:
    report = unreadable()
    assert answer(report) == (Kind.HUNG, Cause.LOCK_HELD, {ODD})
    assert any("not read whole" in evidence.text for evidence in report.evidence)


@pytest.mark.parametrize("facts", [{"switches": 70}, {"cpu_s": 4.0}])
def test_twin_a_thread_that_ran_may_have_moved(facts: dict[str, object]) -> None:
    assert unreadable(**facts).verdict.kind is Kind.UNKNOWN
