"""Verdicts on pasted evidence: one look, bare frames, watchdogs, logs. Every rule has a twin where it is silent."""

from __future__ import annotations

from functools import cache

import pytest

from hangdoctor.analysis import diagnose
from hangdoctor.knowledge import Knowledge, load_knowledge
from hangdoctor.parsers import read_text
from hangdoctor.report import Cause, Confidence, Kind, Report

WORLD = 7
ODD = 5
C10D = "torch/distributed/distributed_c10d.py"


@cache
def knowledge() -> Knowledge:
    return load_knowledge()


def diagnosis(text: str) -> Report:
    return diagnose(read_text(text, "ticket", knowledge()), knowledge())


def culprits(report: Report) -> set[str]:
    return {c.rank.label if c.rank is not None else str(c.pid) for c in report.verdict.culprits}


def victims(report: Report) -> set[str]:
    return {v.rank.label if v.rank is not None else str(v.pid) for v in report.verdict.victims}


def py_spy(pid: int, title: str, *calls: str, state: str = "idle") -> str:
    body = "\n".join(f"    {call}" for call in calls)
    return f'Process {pid}: {title}\nPython v3.12.3 (/bin/python3)\n\nThread {pid} ({state}): "MainThread"\n{body}\n'


# -- NCCL's watchdog: counters without stacks ----------------------------------------------------


def timeout(rank: int, sequence: int, op: str = "ALLREDUCE", sizes: tuple[int, int] = (80, 80)) -> str:
    return (
        f"[rank{rank}]:[E810 03:04:11.061727749 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={sequence}, OpType={op}, NumelIn={sizes[0]}, NumelOut={sizes[1]}, "
        "Timeout(ms)=600000) ran for 600096 milliseconds before timing out."
    )


def status(rank: int, sequence: int, enqueued: int, completed: int, group: str = "0(default_pg)") -> str:
    return (
        f"[rank{rank}]:[E810 03:04:11.063313477 ProcessGroupNCCL.cpp:2241] [PG ID 0 PG GUID {group} Rank {rank}]  "
        f"failure detected by watchdog at work sequence id: {sequence} PG status: last enqueued work: {enqueued}, "
        f"last completed work: {completed}"
    )


def signalled(rank: int, enqueued: int, completed: int) -> str:
    return (
        f"[rank{rank}]:[E810 03:04:11.562692551 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        "Received a dump signal due to a collective timeout from  rank 1 and we will try our best to dump the debug "
        f"info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
    )


def stuck(rank: int, sequence: int = 78, enqueued: int = 79, completed: int = 77, **facts: object) -> str:
    return f"{timeout(rank, sequence, **facts)}\n{status(rank, sequence, enqueued, completed)}"  # type: ignore[arg-type]


def test_the_rank_that_never_enqueued_the_work_is_named() -> None:
    lines = [signalled(n, 77, 77) if n == ODD else stuck(n) for n in range(WORLD)]
    report = diagnosis("\n".join(lines))
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.COLLECTIVE_MISMATCH)
    assert culprits(report) == {f"rank {ODD}"}
    assert len(victims(report)) == WORLD - 1
    assert report.verdict.confidence is Confidence.LIKELY, "the timers span ten minutes"


def test_twin_ranks_that_enqueued_further_ahead_are_not_accused_of_it() -> None:
    """How far a host runs ahead of the stuck work differs from rank to rank, and means nothing."""
    lines = [stuck(n, enqueued=90 if n == ODD else 85 + n) for n in range(WORLD)]
    report = diagnosis("\n".join(lines))
    assert report.verdict.kind is Kind.HUNG
    assert culprits(report) == set()


def test_the_rank_that_completed_least_is_where_to_look() -> None:
    behind = stuck(ODD, 77, completed=76)
    report = diagnosis("\n".join(behind if n == ODD else stuck(n) for n in range(WORLD)))
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.LAGGARD)
    assert culprits(report) == {f"rank {ODD}"}


def test_equal_counters_name_nobody() -> None:
    report = diagnosis("\n".join(stuck(n) for n in range(WORLD)))
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.ALL_IN_COLLECTIVE)
    assert not report.verdict.culprits
    assert len(victims(report)) == WORLD


def test_a_scatter_tells_how_many_ranks_did_not_report() -> None:
    sizes = (WORLD * 64, 64)
    lines = [stuck(n, op="_REDUCE_SCATTER_BASE", sizes=sizes) for n in (0, 3, 4)]
    report = diagnosis("\n".join(lines))
    assert not report.verdict.culprits
    assert "rank 1, 2, 5, 6 did not report" in report.verdict.summary


def test_the_only_rank_that_did_not_report_is_named_from_the_sizes() -> None:
    sizes = (64, WORLD * 64)
    lines = [stuck(n, op="_ALLGATHER_BASE", sizes=sizes) for n in range(WORLD) if n != ODD]
    report = diagnosis("\n".join(lines))
    assert culprits(report) == {f"rank {ODD}"}
    assert report.verdict.culprits[0].pid is None
    assert report.verdict.confidence is not Confidence.CERTAIN


def test_two_operations_under_one_number_are_a_mismatch() -> None:
    odd = stuck(ODD, op="BROADCAST")
    report = diagnosis("\n".join(odd if n == ODD else stuck(n) for n in range(WORLD)))
    assert (report.verdict.cause, culprits(report)) == (Cause.COLLECTIVE_MISMATCH, {f"rank {ODD}"})


@pytest.mark.parametrize(("op", "other"), [("SEND", "RECV"), ("ALLTOALL_BASE", "ALLTOALL_BASE")])
def test_twin_a_send_and_its_receive_or_uneven_sizes_are_no_mismatch(op: str, other: str) -> None:
    lines = [stuck(2, op=op, sizes=(64, 96)), stuck(3, op=other, sizes=(96, 64))]
    assert diagnosis("\n".join(lines)).verdict.cause is not Cause.COLLECTIVE_MISMATCH


def test_two_groups_that_wait_at_once_accuse_nobody() -> None:
    lines = [timeout(2, 216), status(2, 216, 220, 215, "119"), timeout(3, 57), status(3, 57, 57, 56, "112")]
    report = diagnosis("\n".join(lines))
    assert report.verdict.kind is Kind.HUNG
    assert not report.verdict.culprits
    assert "119" in report.verdict.summary and "112" in report.verdict.summary


def test_one_rank_that_timed_out_is_a_victim() -> None:
    report = diagnosis(stuck(ODD))
    assert (report.verdict.kind, report.verdict.culprits) == (Kind.HUNG, ())
    assert victims(report) == {f"rank {ODD}"}


def test_time_outs_without_a_group_are_not_compared() -> None:
    report = diagnosis("\n".join(timeout(n, 76 if n == ODD else 78) for n in range(WORLD)))
    assert (report.verdict.kind, report.verdict.culprits) == (Kind.HUNG, ())


# -- watchdogs -----------------------------------------------------------------------------------

WATCHDOG = "[2026-11-29 19:24:30 TP3] Watchdog timeout (self.watchdog_timeout=300)"
DECODE = (
    "[2026-11-29 19:{minute}:50 TP3] Decode batch, #running-req: 11, #token: 768, token usage: 0.00, cuda graph: True, "
    "gen throughput (token/s): 3.28, #queue-req: 0"
)


def test_a_watchdog_that_ran_out_is_a_hang_without_a_culprit() -> None:
    report = diagnosis(WATCHDOG)
    assert (report.verdict.kind, report.verdict.culprits) == (Kind.HUNG, ())
    assert "300 s" in report.verdict.summary


def test_twin_steps_after_the_time_out_withdraw_it() -> None:
    report = diagnosis(f"{WATCHDOG}\n{DECODE.format(minute=25)}")
    assert report.verdict.kind is not Kind.HUNG


def test_steps_before_the_time_out_do_not() -> None:
    assert diagnosis(f"{DECODE.format(minute=13)}\n{WATCHDOG}").verdict.kind is Kind.HUNG


def test_twin_the_false_alarm_of_the_controller_is_none() -> None:
    assert diagnosis("DataParallelController watchdog timeout").verdict.kind is not Kind.HUNG


def test_twin_a_step_watchdog_knows_nothing_of_compilers() -> None:
    jit = "2026-11-29 19:22:45,039 - INFO - flashinfer.jit: Loading JIT ops: norm"
    assert diagnosis(f"{jit}\n{WATCHDOG}").verdict.kind is not Kind.HUNG


# -- one look: who may be named --------------------------------------------------------------------

SCHEDULER = ("run_scheduler_process (scheduler.py:2618)", "run (multiprocessing/process.py:108)")
FORWARD = (
    "forward (deepseek_v2.py:527)",
    "forward_decode (model_runner.py:1847)",
    "run_batch (scheduler.py:2000)",
)


def test_a_rank_met_in_its_forward_pass_is_described_and_not_named() -> None:
    report = diagnosis(py_spy(4711, "sglang::scheduler_TP3", *FORWARD, *SCHEDULER, state="active"))
    assert (report.verdict.kind, report.verdict.culprits) == (Kind.UNKNOWN, ())
    assert "TP3" in report.verdict.summary


def test_twin_it_is_named_when_another_rank_waits_for_it() -> None:
    waiting = (
        f"all_gather_into_tensor ({C10D}:4193)",
        "prepare_mlp_sync_batch_raw (scheduler_dp_attn_mixin.py:202)",
    )
    text = py_spy(4711, "sglang::scheduler_TP3", *FORWARD, *SCHEDULER, state="active")
    text += "\n" + py_spy(4712, "sglang::scheduler_TP4", *waiting, *SCHEDULER)
    assert culprits(diagnosis(text)) == {"TP3"}


@pytest.mark.parametrize("frame", [f"barrier ({C10D}:4193)", f"all_reduce ({C10D}:2100)"])
def test_one_process_in_a_collective_is_a_victim_of_peers_not_seen(frame: str) -> None:
    report = diagnosis(py_spy(4711, "python train.py", frame, "main (train.py:31)"))
    assert (report.verdict.cause, report.verdict.culprits) == (Cause.MISSING_PEER, ())
    assert victims(report) == {"4711"}
    assert any("other ranks" in step.text for step in report.next_steps)


def test_ranks_that_one_look_met_in_the_same_collective_are_all_victims() -> None:
    text = "".join(f"# TP{n}\nall_reduce ({C10D}:3075)\nstep (a.py:1)\n" for n in range(WORLD))
    report = diagnosis(text)
    assert (report.verdict.kind, report.verdict.culprits) == (Kind.UNKNOWN, ())
    assert len(victims(report)) == WORLD


def test_who_waits_at_a_lock_file_is_not_named() -> None:
    call = "wait (torch/utils/file_baton.py:49)"
    report = diagnosis(py_spy(4711, "sglang::scheduler_TP1", call, "load (torch/utils/cpp_extension.py:9)"))
    assert not report.verdict.culprits


def test_a_stack_of_the_recorder_or_a_traceback_is_not_where_a_thread_stands() -> None:
    trace = (
        "[rank3]: Traceback (most recent call last):\n"
        f'[rank3]:   File "/x/{C10D}", line 3949, in all_gather\n[rank3]:     work.wait()\n'
        "[rank3]: RuntimeError: Connection closed by peer [10.0.0.1]:57000"
    )
    report = diagnosis(trace)
    assert not report.verdict.culprits
    assert "runs" not in report.verdict.summary


def test_processes_without_a_pid_show_none() -> None:
    text = f"# TP2\nall_reduce ({C10D}:3075)\nstep (a.py:1)\n# TP3, TP5\nbroadcast ({C10D}:2974)\nloop (a.py:9)\n"
    report = diagnosis(text)
    assert culprits(report) == {"TP2"}
    assert all(c.pid is None for c in report.verdict.culprits)
    assert "-1" not in report.verdict.summary


# -- the forward thread --------------------------------------------------------------------------

RESTING = (
    "wait (threading.py:355)",
    "get (queue.py:171)",
    "resolve_last_batch_result (tp_worker_overlap_thread.py:188)",
)


def overlap(*worker: str) -> str:
    main = py_spy(392, "sglang::scheduler", *RESTING, "event_loop_overlap (scheduler.py:1631)", *SCHEDULER)
    lines = "\n".join(f"    {call}" for call in worker)
    return f'{main}Thread 967 (active): "Thread-3 (forward_thread_func)"\n{lines}\n'


def test_the_thread_that_runs_the_model_speaks_for_a_main_thread_that_waits_for_it() -> None:
    call = "_call_impl (torch/nn/modules/module.py:1784)"
    report = diagnosis(overlap("ragged_run (flashinfer/prefill.py:237)", call))
    assert report.verdict.kind is not Kind.READY
    assert {c.thread for c in report.verdict.culprits} == {"Thread-3 (forward_thread_func)"}


def test_twin_a_forward_thread_that_waits_for_work_leaves_the_scheduler_at_rest() -> None:
    report = diagnosis(
        overlap(
            "wait (threading.py:355)",
            "get (queue.py:171)",
            "forward_thread_func (tp_worker_overlap_thread.py:119)",
        )
    )
    assert not report.verdict.culprits


# -- pipelines -----------------------------------------------------------------------------------


def stage(number: int, *calls: str) -> str:
    return "\n".join((f"# PP{number} TP0", *calls, ""))


RECEIVE = (
    "recv_tensor_dict (distributed/parallel_state.py:1299)",
    "_pp_recv_proxy_tensors (scheduler_pp_mixin.py:941)",
)
RECEIVE_REQUESTS = ("_pp_recv_pyobj_from_prev_stage (scheduler_pp_mixin.py:877)",)
SEND = (
    "send (torch/distributed/distributed_c10d.py:2487)",
    "send_tensor_dict (distributed/parallel_state.py:1050)",
)


def test_stages_that_all_receive_wait_in_a_circle() -> None:
    report = diagnosis(stage(0, *RECEIVE_REQUESTS) + stage(1, *RECEIVE) + stage(2, *RECEIVE))
    assert (report.verdict.kind, report.verdict.rule) == (Kind.HUNG, "pipeline")
    assert culprits(report) == {"PP0 TP0", "PP1 TP0", "PP2 TP0"}


def test_twin_a_stage_that_computes_breaks_the_circle() -> None:
    report = diagnosis(
        stage(0, *RECEIVE_REQUESTS) + stage(1, *RECEIVE) + stage(2, "forward_step (model.py:7)")
    )
    assert report.verdict.kind is Kind.UNKNOWN
    assert culprits(report) == {"PP2 TP0"}


def test_a_sender_waits_for_the_next_stage() -> None:
    report = diagnosis(stage(1, *SEND))
    assert (report.verdict.cause, report.verdict.culprits) == (Cause.MISSING_PEER, ())
    assert "PP2" in report.verdict.summary


# -- native locks --------------------------------------------------------------------------------


def gdb(lwp: int, *functions: str) -> str:
    lines = "\n".join(f"#{n}  0x00007f0000000000 in {name} ()" for n, name in enumerate(functions))
    return f'Thread {lwp - 4700} (Thread 0x7f00 (LWP {lwp}) "w{lwp}"):\n{lines}\n\n'


TAKES_GIL = ("futex_wait", "pthread_cond_timedwait", "take_gil", "PyEval_RestoreThread", "callback")


def test_the_gil_against_the_loader_is_a_deadlock() -> None:
    text = gdb(4711, "__lll_lock_wait", "___pthread_mutex_lock", "__GI___dl_iterate_phdr", "_Unwind_Find_FDE")
    text += gdb(4713, *TAKES_GIL, "__GI___dl_iterate_phdr", "ffi_call")
    report = diagnosis(text)
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, Cause.LOCK_CYCLE)
    assert {c.tid for c in report.verdict.culprits} == {4711, 4713}


def test_twin_a_wait_for_the_gil_outside_that_region_is_no_cycle() -> None:
    text = gdb(4711, "__lll_lock_wait", "___pthread_mutex_lock", "__GI___dl_iterate_phdr", "_Unwind_Find_FDE")
    text += gdb(4713, *TAKES_GIL, "ffi_call")
    assert diagnosis(text).verdict.cause is not Cause.LOCK_CYCLE


def native_store(call: str, library: str) -> str:
    frames = [f"    0x7f661a041dd{n} ({library})" for n in range(3)]
    return "\n".join(
        (*frames, f"    {call} ({library})", "    store (server.py:296)", "    _worker (x.py:93)")
    )


def test_a_driver_call_that_never_sleeps_waits_for_the_drivers_lock() -> None:
    report = diagnosis(native_store("cudaSetDevice", "libcudart.so.12"))
    assert (report.verdict.kind, report.verdict.cause) == (Kind.UNKNOWN, Cause.LOCK_HELD)
    assert len(report.verdict.culprits) == 1


def test_twin_a_call_that_sleeps_by_nature_is_no_lock() -> None:
    assert (
        diagnosis(native_store("cudaStreamSynchronize", "libcudart.so.12")).verdict.cause
        is not Cause.LOCK_HELD
    )


# -- refused, compiling, said missing --------------------------------------------------------------

REFUSED = (
    "$ py-spy dump --pid 4713\nError: Failed to suspend process\nReason: EPERM: Operation not permitted\n"
)


def test_the_sibling_that_could_not_be_attached_to_is_the_one_outside_the_barrier() -> None:
    barrier = py_spy(4711, "python train.py", f"barrier ({C10D}:2784)", "main (train.py:31)")
    report = diagnosis(f"{barrier}\n{REFUSED}")
    assert culprits(report) == {"4713"}
    assert any(step.command and "/proc/4713/status" in step.command for step in report.next_steps) or any(
        "state" in step.text for step in report.next_steps
    )


def test_twin_without_a_sibling_that_waits_a_refusal_is_only_missing_rights() -> None:
    assert not diagnosis(REFUSED).verdict.culprits


LISTING = "USER PID %CPU %MEM VSZ RSS TTY STAT START TIME COMMAND\n"


def test_a_lone_compiler_is_slow_and_named_with_its_source() -> None:
    line = "root 1413 98.0 0.0 2796 1104 ? R 02:51 0:20 /usr/local/cuda/nvvm/bin/cicc --c++17 /x/csrc/cascade.cu\n"
    report = diagnosis(LISTING + line)
    assert (report.verdict.kind, report.verdict.cause) == (Kind.SLOW, Cause.COMPILING)
    assert "cascade.cu" in report.verdict.summary


def test_twin_a_stopped_compiler_is_not_called_slow() -> None:
    line = "root 1413 0.0 0.0 2796 1104 ? T 02:51 0:20 /usr/local/cuda/nvvm/bin/cicc --c++17 /x/csrc/cascade.cu\n"
    assert diagnosis(LISTING + line).verdict.kind is not Kind.SLOW


def test_a_load_met_on_a_cpu_is_slow_and_nobody_waits_for_it() -> None:
    calls = (
        "weight_loader (vllm/model_executor/layers/linear.py:806)",
        "load_weights (vllm/models/x/model.py:769)",
    )
    report = diagnosis(py_spy(270, "VLLM::Worker_TP1", *calls, state="active"))
    assert (report.verdict.kind, report.verdict.confidence) == (Kind.SLOW, Confidence.POSSIBLE)


def test_twin_a_load_that_rests_is_not_told() -> None:
    calls = (
        "weight_loader (vllm/model_executor/layers/linear.py:806)",
        "load_weights (vllm/models/x/model.py:769)",
    )
    assert diagnosis(py_spy(270, "VLLM::Worker_TP1", *calls)).verdict.kind is Kind.UNKNOWN


# -- only logs -----------------------------------------------------------------------------------


def dist_init(rank: int, word: str = "begin.") -> str:
    return f"[2026-11-29 07:49:5{rank} TP{rank}] Init torch distributed {word}"


def test_one_rank_alone_in_the_rendezvous_is_not_the_culprit() -> None:
    report = diagnosis(dist_init(0))
    assert (report.verdict.kind, report.verdict.cause) == (Kind.UNKNOWN, Cause.MISSING_PEER)
    assert not report.verdict.culprits
    assert "TP1" in report.verdict.summary


def test_the_rank_that_never_began_what_all_others_began_is_named() -> None:
    lines = [dist_init(n) for n in range(WORLD) if n != ODD]
    report = diagnosis(
        "\n".join(
            [dist_init(ODD).replace("Init torch distributed begin.", "sglang is using nccl==2.28.9"), *lines]
        )
    )
    assert culprits(report) == {f"TP{ODD}"}
    assert report.verdict.confidence is Confidence.POSSIBLE


def test_twin_when_all_began_it_nobody_is_named() -> None:
    assert not diagnosis("\n".join(dist_init(n) for n in range(WORLD))).verdict.culprits


def test_twin_a_server_that_became_ready_is_past_it() -> None:
    ready = "[2026-11-29 07:51:00] The server is fired up and ready to roll!"
    assert diagnosis(f"{dist_init(0)}\n{ready}").verdict.cause is not Cause.MISSING_PEER


@pytest.mark.parametrize(
    ("writer", "word"),
    [("(EngineCore pid=280) ", "worker"), ("(Worker_TP1 pid=281) ", "engine core"), ("", "compil")],
)
def test_the_line_about_shared_memory_depends_on_who_wrote_it(writer: str, word: str) -> None:
    line = "INFO 08-12 03:34:43 [shm_broadcast.py:802] No available shared memory broadcast block found in 60 seconds."
    report = diagnosis(writer + line)
    assert (report.verdict.kind, report.verdict.culprits) == (Kind.UNKNOWN, ())
    told = " ".join((report.verdict.summary, *(step.text for step in report.next_steps)))
    assert word in told


# -- foreign dumps have no order of start ------------------------------------------------------------


def test_no_rank_is_dealt_to_a_process_of_a_foreign_dump() -> None:
    text = py_spy(
        117489,
        "sglang::scheduler_DP3_TP3_EP3",
        f"all_gather_into_tensor ({C10D}:4193)",
        "prepare_mlp_sync_batch_raw (scheduler_dp_attn_mixin.py:202)",
    )
    text += '\nThread 117492 (active+gil): "MainThread"\n    init_next_round_input (schedule_batch.py:989)\n'
    text += "    run_scheduler_process (scheduler.py:2618)\n"
    report = diagnosis(text)
    assert culprits(report) == {"117492"}
