"""The matching rules one by one, each with a stack in which it must not decide."""

from __future__ import annotations

import time

import pytest

from hangdoctor.knowledge.catalogue import PhaseMatch, Via
from hangdoctor.knowledge.frames import parse, parse_stack, split_name
from hangdoctor.model import Activity, Frame, Method, Stack, Thread
from tests.knowledge_support import built_in, stack, thread

KNOWLEDGE = built_in()
LOOP = "Scheduler.event_loop_overlap scheduler.py | run_scheduler_process scheduler.py"
DECODE = f"ModelRunner.forward_decode model_runner.py | Scheduler.run_batch scheduler.py | {LOOP}"
START = (
    "Scheduler.init_model_worker scheduler.py | Scheduler.__init__ scheduler.py | run_scheduler_process x.py"
)


def match(text: str, server: str | None, role: str | None = None) -> PhaseMatch:
    found = KNOWLEDGE.match(stack(text), server, role)
    assert found is not None
    return found


def phase(text: str, server: str | None, role: str | None = None) -> tuple[str, str | None]:
    found = match(text, server, role)
    return found.phase.id, found.aspect.id if found.aspect else None


def test_the_same_broadcast_is_start_up_or_the_loop_by_its_caller() -> None:
    top = "broadcast torch/distributed/distributed_c10d.py | broadcast_pyobj utils/common.py | "
    assert phase(top + f"TpModelWorker.__init__ tp_worker.py | {START}", "sglang")[0] == "sglang.seed-sync"
    assert (
        phase(top + f"Scheduler.recv_requests scheduler.py | {LOOP}", "sglang")[0]
        == "sglang.receive-requests"
    )


def test_select_means_what_its_caller_says() -> None:
    top = "_PollLikeSelector.select selectors.py | "
    assert match(
        top + "Popen._communicate subprocess.py | run subprocess.py | main t.py", None
    ).phase.activity is (Activity.WAIT_CHILD)
    assert phase(top + "wait multiprocessing/connection.py | main t.py", None)[0] == "python.pipe-wait"
    assert (
        phase(top + "BaseEventLoop._run_once asyncio/base_events.py | main t.py", None)[0]
        == "python.event-loop"
    )
    assert phase(top + "BaseServer.serve_forever socketserver.py | main t.py", None)[0] == "python.serve"
    assert phase(top + "own_wait train.py", None)[0] == "python.poll"


def test_a_named_wait_far_away_does_not_explain_a_primitive() -> None:
    far = "Condition.wait threading.py | a t.py | b t.py | c t.py | d t.py | Queue.get queue.py | main t.py"
    assert phase(far, None)[0] == "python.lock-wait"
    near = "Condition.wait threading.py | Queue.get queue.py | main t.py"
    assert phase(near, None)[0] == "python.queue-wait"


@pytest.mark.parametrize(
    "top",
    [
        "BaseFileLock._poll_until_acquired filelock/_api.py | BaseFileLock.acquire filelock/_api.py",
        "acquire filelock/_core/_lock.py",
        "FileLock.blocking_acquire tvm_ffi/utils/lockfile.py | FileLock.__enter__ tvm_ffi/utils/lockfile.py",
        "FileBaton.wait torch/utils/file_baton.py",
    ],
)
def test_lock_file_waits(top: str) -> None:
    assert phase(f"{top} | load train.py", None) == ("python.lock-file-wait", "python.lock-file-wait")
    building = f"{top} | build_and_load flashinfer/jit/core.py | capture_one_batch_size cuda_graph_runner.py"
    found = match(building, "sglang")
    assert (found.phase.id, found.aspect and found.aspect.id) == (
        "sglang.jit-compile",
        "python.lock-file-wait",
    )
    assert [outer.id for outer in found.enclosing] == ["sglang.graph-capture"]


def test_third_party_post_processing_is_not_reading() -> None:
    tail = (
        "DefaultModelLoader.load_weights_and_postprocess model_loader/loader.py"
        " | DefaultModelLoader.load_model model_loader/loader.py | ModelRunner.load_model model_runner.py"
    )
    assert (
        phase(f"repack acme/quant.py | hook acme/quant.py | {tail}", "sglang")[0]
        == "sglang.weights-postprocess"
    )
    assert (
        phase(f"dequantize_int4 acme/quant.py | hook acme/quant.py | {tail}", "sglang")[0]
        == "sglang.dequantize"
    )
    assert phase(f"LlamaForCausalLM.load_weights llama.py | {tail}", "sglang")[0] == "sglang.weights-load"
    serving = f"dequantize_kv acme/kv.py | {DECODE}"
    assert phase(serving, "sglang")[0] == "sglang.decode"


def test_a_dummy_forward_is_still_start_up_and_a_real_one_is_not() -> None:
    forward = "LlamaModel.forward llama.py | ModelRunner.forward_decode model_runner.py"
    warm = f"{forward} | ModelRunner._dummy_run model_runner.py | ModelRunner.initialize model_runner.py | {START}"
    assert phase(warm, "sglang")[0] == "sglang.autotune"
    assert phase(f"{forward} | Scheduler.run_batch scheduler.py | {LOOP}", "sglang")[0] == "sglang.decode"


def test_a_start_up_step_at_serving_time_is_named_with_what_encloses_it() -> None:
    late = (
        "Popen.communicate subprocess.py | run_ninja flashinfer/jit/cpp_ext.py | LlamaModel.forward llama.py"
        f" | ModelRunner.forward_extend model_runner.py | Scheduler.run_batch scheduler.py | {LOOP}"
    )
    found = match(late, "sglang")
    assert found.phase.id == "sglang.jit-compile"
    assert "sglang.prefill" in [outer.id for outer in found.enclosing]


def test_a_triton_launch_is_no_compilation() -> None:
    launch = (
        "CompiledKernel.launch_metadata triton/compiler/compiler.py | JITFunction.run triton/runtime/jit.py"
    )
    assert phase(f"{launch} | {DECODE}", "sglang") == ("sglang.decode", None)


def test_a_forked_child_is_not_judged_by_its_parents_frames() -> None:
    executor = "vllm/v1/executor/multiproc_executor.py"
    own = (
        "MessageQueue.dequeue vllm/distributed/device_communicators/shm_broadcast.py"
        f" | WorkerProc.worker_busy_loop {executor} | WorkerProc.worker_main {executor}"
    )
    parent = f"WorkerProc.make_worker_process {executor} | EngineCore.__init__ vllm/v1/engine/core.py"
    assert phase(f"{own} | BaseProcess._bootstrap multiprocessing/process.py | {parent}", "vllm")[0] == (
        "vllm.worker-idle"
    )
    assert phase(parent, "vllm")[0] == "vllm.wait-workers"


def test_the_role_narrows_the_search_when_it_is_known() -> None:
    shared = "Runner.run asyncio/runners.py | main server.py"
    assert phase(shared, "vllm", "vllm.api-server")[0] == "vllm.http-idle"
    assert phase(shared, "vllm", "vllm.worker")[0] == "python.event-loop"


def test_a_plain_torch_job_has_its_aspects_as_phases() -> None:
    wrapper = "_exception_logger.<locals>.wrapper torch/distributed/c10d_logger.py | main train.py"
    assert (
        phase(f"all_reduce torch/distributed/distributed_c10d.py | {wrapper}", None)[0]
        == "torch.collective-wait"
    )
    found = match(f"all_reduce torch/distributed/distributed_c10d.py | {wrapper}", None)
    assert (found.via, found.aspect) == (Via.WAIT, found.phase)
    assert phase("synchronize torch/cuda/__init__.py | main train.py", None)[0] == "torch.gpu-wait"
    build = (
        "FileBaton.wait torch/utils/file_baton.py | _jit_compile torch/utils/cpp_extension.py | main train.py"
    )
    assert phase(build, None) == ("torch.jit-compile", "python.lock-file-wait")
    assert KNOWLEDGE.match(stack("step train.py | main train.py"), None, None) is None


def test_a_library_counts_only_where_its_frames_are() -> None:
    train = "train_step megatron/training/training.py | train megatron/training/training.py | main pretrain_gpt.py"
    assert phase(train, "torchrun")[0] == "megatron.step"
    assert KNOWLEDGE.match(stack("train_step my/training.py | main train.py"), "torchrun") is None


def test_native_symbols_are_read_without_arguments_and_templates() -> None:
    assert split_name("c10d::TCPStore::doWait(c10::ArrayRef<std::string>, int)") == (
        "c10d::TCPStore::doWait",
        None,
    )
    native = "poll libc.so.6 | c10d::TCPStore::doWait(c10::ArrayRef<std::string>, int) libtorch_cpu.so | main train.py"
    assert phase(native, None)[0] == "torch.store-wait"


def test_innermost_means_innermost_python_frame() -> None:
    frames = (
        Frame("epoll_wait", "libc.so.6", is_native=True),
        *parse_stack("Runner.run asyncio/runners.py | ServeSubcommand.cmd vllm/entrypoints/cli/serve.py"),
    )
    found = KNOWLEDGE.match(Stack(frames, Method.PY_SPY_NATIVE), "vllm", None)
    assert found is not None and (found.phase.id, found.frame) == ("vllm.http-idle", 1)


def test_an_empty_stack_means_nothing() -> None:
    assert KNOWLEDGE.match(Stack((), Method.FAULTHANDLER), "sglang", None) is None


@pytest.mark.parametrize(
    ("pattern", "function", "file", "fits"),
    [
        ("get @ queue.py", "Queue.get", "/usr/lib/python3.12/queue.py", True),
        ("get @ queue.py", "Queue.get", "queue.py", True),
        ("get @ queue.py", "RequestQueue.get", "/opt/vllm/v1/core/sched/queue.py", False),
        ("x @ srt/managers/scheduler.py", "x", "scheduler.py", True),
        ("x @ srt/managers/scheduler.py", "x", "/w/sglang/python/sglang/srt/managers/scheduler.py", True),
        ("x @ srt/managers/scheduler.py", "x", "/opt/vllm/v1/core/sched/scheduler.py", False),
        ("load_weights @ srt/models/", "load_weights", "/opt/sglang/srt/models/llama.py", True),
        ("load_weights @ srt/models/", "load_weights", "llama.py", True),
        ("load_weights @ srt/models/", "load_weights", "/opt/acme/models/llama.py", False),
        ("load_weights @ srt/models/", "load_weights", "vllm/model_executor/models/llama.py", False),
        ("A.f @ m.py", "B.f", "m.py", False),
        ("A.f @ m.py", "f", "m.py", True),
        ("f @ m.py", "outer.<locals>.f", "m.py", True),
        ("/^load_/ @ m.py", "A.load_it", "m.py", True),
        ("/^load_/ @ m.py", "A.reload_it", "m.py", False),
    ],
)
def test_frame_patterns(pattern: str, function: str, file: str, fits: bool) -> None:
    assert parse(pattern).fits(Frame(function, file)) is fits


@pytest.mark.parametrize("bad", ["", "f @", "@ file.py", "/(/ @ m.py", "f g"])
def test_bad_patterns_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match=r"expected NAME|no regular expression"):
        parse(bad)


MACHINERY = [
    (thread(comm="pt_gloo_runloop"), "gloo"),
    (thread(comm="gloo_tcp_loop"), "gloo"),
    (thread(comm="ZMQbg/Reaper"), "ZeroMQ"),
    (thread(comm="ZMQbg/IO/0"), "ZeroMQ"),
    (thread(comm="pt_tcpstore_uv"), "TCPStore server"),
    (thread(comm="pt_nccl_watchdg"), "NCCL watchdog"),
    (thread(comm="pt_nccl_heartbt"), "NCCL watchdog"),
    (thread(comm="NCCL Progress 0"), "NCCL"),
    (thread(comm="cuda-EvtHandlr"), "CUDA driver"),
    (thread(comm="libuv-worker"), "libuv workers"),
    (thread(name="tqdm_monitor"), "progress bar monitor"),
    (thread(name="QueueFeederThread"), "queue feeder"),
    (thread(name="DeathPipeMonitor"), "vLLM monitors"),
    (thread(name="MultiprocWorkerMonitor"), "vLLM monitors"),
    (thread(name="Thread-4 (_watchdog_thread)"), "SGLang watchdogs"),
    (thread(name="Thread-1 (process_input_sockets)"), "vLLM engine I/O"),
    (thread(frames="_worker concurrent/futures/thread.py | Thread.run threading.py"), "idle executor"),
    (
        thread(frames="_recv_msg torch/_inductor/compile_worker/subproc_pool.py | x t.py"),
        "torch.compile workers",
    ),
    (thread(frames="select selectors.py | serve_forever socketserver.py"), "small HTTP server"),
]


@pytest.mark.parametrize(("helper", "pool"), MACHINERY, ids=lambda v: v if isinstance(v, str) else None)
def test_machinery(helper: Thread, pool: str) -> None:
    assert KNOWLEDGE.machinery(helper) == pool


@pytest.mark.parametrize(
    "worker",
    [
        thread(name="MainThread", comm="pt_gloo_runloop"),
        thread(name="kv-offload-flusher", frames="_flush_loop acme/kv_offload.py | Thread.run threading.py"),
        thread(frames="upload acme/s3.py | _worker concurrent/futures/thread.py | Thread.run threading.py"),
        thread(frames="do_GET acme/metrics.py | serve_forever socketserver.py"),
        thread(name="Thread-3 (forward_thread_func)", comm="python3"),
        thread(
            name="WorkerAsyncOutputCopy",
            frames="synchronize torch/cuda/streams.py | async_output_busy_loop x.py",
        ),
        thread(),
    ],
)
def test_threads_that_may_do_real_work_are_no_machinery(worker: Thread) -> None:
    assert KNOWLEDGE.machinery(worker) is None


def test_openmp_threads_are_machinery_only_without_python_frames() -> None:
    idle = Frame("__kmp_fork_barrier", "libiomp5.so", is_native=True)
    python = Frame("forward", "llama.py")
    for frames, pool in (((idle,), "OpenMP"), ((idle, python), None)):
        assert KNOWLEDGE.machinery(thread_with(frames)) == pool


def thread_with(frames: tuple[Frame, ...]) -> Thread:
    return Thread(tid=17, stack=Stack(frames, Method.PY_SPY_NATIVE))


def test_a_stack_that_takes_the_place_of_another_in_memory_is_looked_at_anew() -> None:
    """What stands at an address is remembered; freed stacks hand theirs on to the next."""
    pools = {"idle": "idle executor", "work": None}
    texts = {
        "idle": "_worker concurrent/futures/thread.py | Thread.run threading.py",
        "work": "step train.py | main x.py",
    }
    seen = set()
    for number in range(5_000):
        kind = "work" if number % 3 else "idle"
        worker = thread(frames=texts[kind])
        assert KNOWLEDGE.machinery(worker) == pools[kind]
        seen.add(id(worker.stack.frames) if worker.stack else None)
    assert len(seen) < 5_000, "no address was used twice, so nothing was tried"


def test_64_ranks_of_200_threads_match_in_less_than_a_second() -> None:
    """Measured here: 0.25 s. Every stack is different, so that remembering whole stacks does not help."""
    text = " | ".join(
        ["all_reduce torch/distributed/distributed_c10d.py"]
        + [f"Layer{n}.forward llama.py" for n in range(37)]
        + ["ModelRunner.forward_decode model_runner.py", "Scheduler.run_batch scheduler.py"]
    )
    base = parse_stack(text)
    stacks = [
        Stack((*base[:20], Frame(f"f{number}", "x.py"), *base[20:]), Method.PY_SPY_NONBLOCKING)
        for number in range(64 * 200)
    ]
    fresh = type(KNOWLEDGE)(KNOWLEDGE.contents)
    begin = time.process_time()
    for one in stacks:
        assert fresh.match(one, "sglang", "sglang.scheduler") is not None
    assert time.process_time() - begin < 1.0
