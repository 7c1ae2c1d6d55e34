"""What a perfect capture of each public report holds: who, which threads, which frames, which numbers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hangdoctor.model import Capture, Method
from hangdoctor.parsers import read_text
from tests.parsers_support import bugs, functions, knowledge, messages, processes, reports, thread


def read(case: str) -> Capture:
    return read_text(reports()[case], "report", knowledge())


@pytest.mark.parametrize("case", sorted(reports()))
def test_every_report_is_read_without_a_failure(case: str) -> None:
    assert not bugs(read(case))


@dataclass(frozen=True)
class Expected:
    """One thread: whose, its name or number, its innermost and outermost function, how many frames."""

    owner: str
    thread: str | int | None
    inner: str
    outer: str
    count: int


THREADS: dict[str, list[Expected]] = {
    "sglang-3709-faulthandler-recv-requests": [
        Expected("-1", "MainThread", "broadcast", "run_scheduler_process", 7),
        Expected("-1", "thread 0x00007efd93ffc640", "forward", "_bootstrap", 5),
    ],
    "pytorch-95944-last-rank-different": [
        Expected(
            "-1",
            None,
            "??",
            "at::native::_local_scalar_dense_cuda(at::Tensor const&)::{lambda()#1}::operator()() const",
            16,
        )
    ],
    "autoround-1701-loader-lock-gil": [
        Expected("1726753", 2929931, "futex_wait", "_ctypes call", 8),
        Expected("1726753", "MainThread", "futex_wait", "__GI___dl_iterate_phdr", 3),
    ],
    "pytorch-129367-tcpstore-get-rank3": [
        Expected("-1", None, "__libc_recv", "c10d::TCPStore::get(std::string const&)", 6)
    ],
    "hf-m4-rank0-D-state": [Expected("280064", "MainThread", "barrier", "wait_for_everyone", 3)],
    "sglang-slurm-7plus1-prefill-delayer": [
        Expected(
            "sglang::scheduler_DP3_TP3_EP3",
            "MainThread",
            "pthread_cond_wait",
            "prepare_mlp_sync_batch_raw",
            5,
        ),
        Expected("117492", "MainThread", "init_next_round_input", "0x7fdc6442a1ca", 3),
    ],
    "sglang-pp0-pp1-mutual-recv": [
        Expected("PP1 ATTN_CP0 TP0", None, "recv_tensor_dict", "_pp_recv_proxy_tensors", 2),
        Expected(
            "PP0 ATTN_CP0 TP0", None, "_pp_recv_pyobj_from_prev_stage", "_pp_recv_pyobj_from_prev_stage", 1
        ),
        Expected("PP0 ATTN_CP0 TP0", None, "_watchdog_once", "_watchdog_once", 1),
        Expected("PP1 ATTN_CP0 TP0", None, "_watchdog_once", "_watchdog_once", 1),
    ],
    "sglang-12121-pp-dp-send": [
        Expected("sglang::scheduler_DP1_TP1_EP1_PP0", "MainThread", "send", "run_scheduler_process", 7)
    ],
    "sglang-30760-hicache-tp0-allreduce-vs-broadcast": [
        Expected("TP0", None, "all_reduce", "_get_new_batch_prefill_raw", 5),
        Expected("TP1", None, "broadcast", "_broadcast_reqs_across_ranks", 3),
        Expected("TP2", None, "broadcast", "_broadcast_reqs_across_ranks", 3),
        Expected("TP3", None, "broadcast", "_broadcast_reqs_across_ranks", 3),
    ],
    "lmcache-2823-gil-cuda-lock": [
        Expected("-1", None, "0x7f661a041dd4", "0x7f661b4be8d0", 16),
        Expected("-1", "ThreadPoolExecutor-1_11", "0x7f661b429117", "0x7f661b4be8d0", 11),
        Expected("-1", "ThreadPoolExecutor-1_12", "0x7f661b429117", "0x7f661a4f06ca", 3),
    ],
    "sglang-11208-gb200-symm-window": [
        Expected("-1", "MainThread", "decorate_context", "<module>", 7),
        Expected(
            "-1", "Thread-2 (forward_thread_func)", "ncclCommWindowRegister", "forward_batch_generation", 15
        ),
    ],
    "vllm-ascend-two-different-hangs": [
        Expected("22823", "MainThread", "synchronize", "worker_busy_loop", 6)
    ],
    "sglang-4257-tp2-prefill-ragged-run": [
        Expected("TP0", "MainThread", "wait", "<module>", 13),
        Expected("TP0", "Thread-3 (forward_thread_func)", "__call__", "ragged_run", 4),
    ],
    "sglang-22276-mtp-allgather-item": [
        Expected("TP0", None, "cuStreamSynchronize", "update_single_wrapper", 3)
    ],
    "sglang-7254-launch-blocking-stack": [Expected("392", "MainThread", "wait", "<module>", 12)],
    "vllm-17676-flashinfer-sampler-warmup": [
        Expected("VLLM::EngineCore", "MainThread", "top_k_top_p_sampling_from_logits", "__init__", 21)
    ],
    "sglang-npu-mrope-copy-native": [
        Expected("sglang::scheduler_TP0", "MainThread", "read", "0xffff9cbf7400", 36),
        Expected("sglang::scheduler_TP0", "QueueFeederThread", "0xffff9cc4cb78", "_bootstrap", 9),
    ],
    "deepep-240-low-latency-unit-test": [Expected("-1", "MainThread", "__torch_function__", "<module>", 10)],
    "vllm-2479-ray-allgather-logits": [
        Expected("96488", "MainThread", "all_gather_into_tensor", "execute_method", 13)
    ],
    "vllm-41834-healthy-idle-worker": [
        Expected("VLLM::Worker_TP0_EP0", "MainThread", "poll", "worker_main", 6)
    ],
    "sglang-20766-dp-controller-false-alarm": [
        Expected("sglang::data_parallel_controller", "MainThread", "wait4", "0x7f983b82a1ca", 11)
    ],
    "vllm-weights-tqdm-100-still-copying": [Expected("270", "MainThread", "_load_w2", "load_weights", 4)],
    "ray-65100-forked-dataloader-worker": [
        Expected("1339145", "MainThread", "poll", "_raylet_task_execution_handler", 26)
    ],
    "sglang-clusterip-handshake": [
        Expected(
            "python3 -m sglang.launch_server",
            None,
            "_wait_for_scheduler_ready",
            "_wait_for_scheduler_ready",
            1,
        ),
        Expected(
            "sglang::data_parallel_controller",
            None,
            "_broadcast_ports_as_server",
            "launch_dp_attention_schedulers",
            3,
        ),
    ],
    "sglang-6891-mtp-draft-dp": [Expected("DP1 TP3", "MainThread", "draft", "<module>", 11)],
    "sglang-33289-gb10-nccl-proxy-pool": [Expected("-1", None, "ncclLocalOpAppend", "SaveProxy", 2)],
    "sglang-3836-watchdog-16rank-allreduce": [
        Expected("-2", "thread 0x00007f922ffff640", "forward", "forward_extend", 12)
    ],
    "ms-swift-8506-colocate-symm-mem": [
        Expected("59633", "MainThread", "__call__", "_wrapped_call_impl", 21)
    ],
    "blendcorpus-lazy-barrier": [Expected("-1", None, "barrier", "barrier", 1)],
}


@pytest.mark.parametrize("case", sorted(THREADS))
def test_threads_and_frames(case: str) -> None:
    found = processes(read(case))
    for expected in THREADS[case]:
        process = found[expected.owner]
        if expected.thread is None:
            (names,) = [n for n in map(functions, process.threads) if n and n[0] == expected.inner]
        else:
            names = functions(thread(process, expected.thread))
        assert (names[0], names[-1], len(names)) == (expected.inner, expected.outer, expected.count), expected


# -- what frames alone do not say -------------------------------------------------------------------------


def test_header_without_frames_is_a_thread_without_a_stack() -> None:
    cut = thread(processes(read("sglang-7254-launch-blocking-stack"))["392"], 12965)
    assert (cut.name, cut.stack, cut.is_active_hint) == ("Thread-4 (forward_thread_func)", None, True)


def test_containers_share_pid_1_and_are_still_two_processes() -> None:
    (snapshot,) = read("marin-7344-jax-lagging-rank").snapshots
    assert [(p.known_pid, p.ns_pid) for p in snapshot.processes] == [(None, 1), (None, 1)]
    frames = [thread(p, "MainThread").stack.frames[0] for p in snapshot.processes]  # type: ignore[union-attr]
    assert [(f.function, f.line) for f in frames] == [("main", 389), ("_value", 642)]


def test_gil_is_seen_on_its_holder_only() -> None:
    found = processes(read("sglang-slurm-7plus1-prefill-delayer"))
    assert thread(found["117492"], "MainThread").owns_gil is True
    assert thread(found["sglang::scheduler_DP3_TP3_EP3"], "MainThread").owns_gil is None


def test_refused_process_exists_without_stacks() -> None:
    capture = read("hf-m4-rank0-D-state")
    refused = processes(capture)["280058"]
    assert refused.threads == ()
    (message,) = messages(capture, "py-spy.failed")
    assert message.fields == {"pid": "280058", "reason": "refused"}
    (gap,) = [g for g in capture.gaps if g.source == "py-spy"]
    assert gap.subject == "pid 280058" and "State" in (gap.remedy or "")


def test_missing_py_spy_is_not_taken_for_anything_else() -> None:
    capture = read("sglang-7783-pyspy-missing")
    (message,) = messages(capture, "py-spy.failed")
    assert (message.process, message.fields["reason"], message.fields["pid"]) == (
        "TP2",
        "not installed",
        "171",
    )
    (fired,) = messages(capture, "watchdog")
    assert fired.process == "TP3"
    (held,) = messages(capture, "sglang.holds-batch")
    assert (held.process, held.fields["batch"]) == ("TP3", "109")


def test_process_that_died_under_py_spy_is_no_process_of_the_picture() -> None:
    capture = read("sglang-npu-mrope-copy-native")
    assert len(capture.snapshots) == 1
    assert [p.pid for p in capture.snapshots[0].processes] == [163685]
    assert [m.fields["reason"] for m in messages(capture, "py-spy.failed")] == [
        "native unwinding",
        "gone",
        "other",
    ]


def test_dump_belongs_to_the_rank_of_its_own_record_not_to_the_line_before() -> None:
    capture = read("sglang-6891-mtp-draft-dp")
    (process,) = capture.snapshots[0].processes
    assert (process.rank_hint, process.pid) == ("DP1 TP3", 231810)
    assert [m.process for m in messages(capture, "sglang.holds-batch")] == ["DP3 TP7"]


def test_time_of_the_dump_is_that_of_its_log_record() -> None:
    capture = read("sglang-20766-dp-controller-false-alarm")
    assert capture.snapshots[0].taken_at == capture.snapshots[0].processes[0].taken_at == 1773768713.0
    beats = messages(capture, "heartbeat")
    assert [m.process for m in beats] == ["DP12 TP12", "DP14 TP14"]


def test_only_the_compiler_is_seen_in_a_ps_line() -> None:
    (process,) = read("sglang-7339-20s-stall-cicc").snapshots[0].processes
    assert (process.pid, process.state) == (1413, "S")
    assert process.command[0] == "/bin/dash" and any("cicc" in word for word in process.command)
    assert any(word.endswith('cascade.cu"') for word in process.command)


def test_kernel_of_cuda_gdb_names_collective_algorithm_and_protocol() -> None:
    capture = read("sglang-10124-cudagdb-fr-reducescatter")
    (kernel,) = messages(capture, "gpu.kernel")
    fields = kernel.fields
    assert (fields["collective"], fields["algorithm"], fields["protocol"], fields["grid"]) == (
        "ReduceScatter",
        "RING",
        "LL",
        "361558",
    )
    (only,) = capture.snapshots[0].processes[0].threads
    assert only.stack is not None and only.stack.method is Method.FLIGHT_RECORDER
    assert functions(only)[0] == "forward" and len(functions(only)) == 14


def test_line_broken_after_its_head_keeps_its_writer_and_its_place() -> None:
    (message,) = messages(read("vllm-51921-reader-site-enginecore"), "waiting")
    assert (message.process, message.fields["pid"], message.fields["at"]) == (
        "EngineCore",
        "280",
        "shm_broadcast.py:802",
    )


def test_only_one_rank_announces_itself() -> None:
    capture = read("sglang-6864-tp1-never-started")
    assert {m.process for m in capture.snapshots[0].messages} == {"TP0"}
    assert [m.fields["phase"] for m in messages(capture, "begin")] == ["sglang.dist-init"]


# -- sequence numbers ---------------------------------------------------------------------------------------


def flight(case: str) -> dict[str, list[tuple[str, str, int | None, str | None]]]:
    return {
        name: [(e.group, e.op, e.sequence, e.state) for e in process.flight]
        for name, process in processes(read(case)).items()
        if process.flight
    }


def test_two_ranks_never_enqueued_what_six_wait_in() -> None:
    found = flight("torch-2vs6-gloo-nccl-skew")
    behind = [("0", "?", 77, "completed")]
    ahead = [*behind, ("0", "BROADCAST", 78, "started"), ("0", "?", 79, "scheduled")]
    assert found == {f"rank {r}": behind if r in (0, 4) else ahead for r in range(8)}


def test_gloo_side_of_the_same_report() -> None:
    capture = read("torch-2vs6-gloo-nccl-skew")
    assert {m.process for m in messages(capture, "gloo.peer-closed")} == {"rank 0", "rank 4"}
    (raised,) = messages(capture, "python.exception")
    assert (raised.process, raised.fields["function"]) == ("rank 0", "all_gather")
    assert {m.fields["signalled_by"] for m in messages(capture, "nccl.status") if m.fields.get("reason")} == {
        "1"
    }


def test_last_completed_is_one_apart_and_last_enqueued_equal() -> None:
    assert flight("vllm-23448-seq-off-by-one") == {
        "rank 0": [
            ("67", "?", 5729, "completed"),
            ("67", "BROADCAST", 5730, "started"),
            ("67", "?", 6464, "scheduled"),
        ],
        "rank 3": [
            ("67", "?", 5728, "completed"),
            ("67", "BROADCAST", 5729, "started"),
            ("67", "?", 6464, "scheduled"),
        ],
    }


def test_groups_are_told_apart_by_guid_and_ranks_by_their_global_number() -> None:
    assert flight("nccl-1610-two-groups") == {
        "rank 13": [
            ("119", "?", 215, "completed"),
            ("119", "ALLTOALL_BASE", 216, "started"),
            ("119", "?", 220, "scheduled"),
        ],
        "rank 15": [("112", "?", 56, "completed"), ("112", "ALLREDUCE", 57, "started")],
    }


def test_rank_without_counters_still_shows_its_operation() -> None:
    found = flight("nemo-13562-seq-divergence")
    assert found["rank 0"] == [("0", "_ALLGATHER_BASE", 532341, "started")]
    assert found["rank 1"] == found["rank 2"] == [("0", "BROADCAST", 532339, "started")]


def test_start_times_can_be_compared_between_ranks() -> None:
    capture = read("llamafactory-6269-same-seq")
    started = {m.process: float(m.fields["started_s"]) for m in messages(capture, "nccl.timeout")}
    assert started["rank 3"] - started["rank 0"] == pytest.approx(0.53, abs=0.01)
    (entry,) = processes(capture)["rank 3"].flight
    assert (entry.input_sizes, entry.output_sizes, entry.timeout_s, entry.age_s) == (
        "544997376",
        "68124672",
        600.0,
        600.089,
    )


def test_stuck_watchdog_is_no_timeout() -> None:
    capture = read("llamafactory-6964-watchdog-stuck")
    assert [(m.process, m.fields["seconds"]) for m in messages(capture, "nccl.watchdog-stuck")] == [
        ("rank 6", "480"),
        ("rank 3", "480"),
    ]
    assert not messages(capture, "nccl.timeout") and not capture.snapshots[0].processes


def test_progress_bars_are_read_where_no_server_is_known_to_print_them() -> None:
    bars = messages(read("vllm-52291-autotune-desync"), "bar")
    assert [(m.fields["name"], m.fields["done"], m.fields["total"]) for m in bars] == [
        ("Tuning mxfp8_gemm", "16", "16"),
        ("Tuning mxfp8_gemm", "0", "16"),
    ]


@pytest.mark.parametrize(
    "case",
    [
        "sglang-omni-1194-cutlass-moe-build",
        "vllm-52247-copy-event-no-timeout",
        "vllm-40988-post-shard-materialisation",
    ],
)
def test_prose_is_said_to_be_prose(case: str) -> None:
    capture = read(case)
    assert capture.snapshots[0].processes == () and capture.snapshots[0].messages == ()
    assert any("nothing" in gap.reason for gap in capture.gaps)
