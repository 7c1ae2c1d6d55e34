"""Reports as the analysis writes them, for the tests of formats, and comparison with reviewed golden files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoctor.model import Frame, Gap, Rank
from hangdoctor.report import (
    Cause,
    Confidence,
    Culprit,
    Evidence,
    Group,
    Kind,
    LogLine,
    NcclEnv,
    NextStep,
    Party,
    ProcessRow,
    Progress,
    ProgressClass,
    Report,
    Series,
    Strength,
    TargetInfo,
    ThreadRow,
    Timings,
    Verdict,
    Victim,
    Wait,
)

GOLDEN = Path(__file__).parent / "golden"
SITE = "/opt/venv/lib/python3.12/site-packages"
T0 = 1_795_974_182.25

WORKER_LOOP = (
    Frame("worker_busy_loop", f"{SITE}/vllm/v1/executor/multiproc_executor.py", 842),
    Frame("worker_main", f"{SITE}/vllm/v1/executor/multiproc_executor.py", 688),
    Frame("run", "/usr/lib/python3.12/multiprocessing/process.py", 108),
    Frame("_bootstrap", "/usr/lib/python3.12/multiprocessing/process.py", 314),
    Frame("_main", "/usr/lib/python3.12/multiprocessing/spawn.py", 135),
    Frame("spawn_main", "/usr/lib/python3.12/multiprocessing/spawn.py", 122),
    Frame("<module>", "<string>", 1),
)
ALL_REDUCE = (
    Frame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 3252),
    Frame("wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 81),
    Frame("all_reduce", f"{SITE}/vllm/distributed/parallel_state.py", 512),
    Frame("forward", f"{SITE}/vllm/model_executor/layers/linear.py", 1418),
    Frame("forward", f"{SITE}/vllm/model_executor/models/llama.py", 121),
    Frame("execute_model", f"{SITE}/vllm/v1/worker/gpu_worker.py", 412),
    *WORKER_LOOP,
)
RESERVE = (
    Frame("reserve_slot", f"{SITE}/vllm/v1/kv_offload/manager.py", 88),
    Frame("get_matched_blocks", f"{SITE}/vllm/v1/kv_offload/manager.py", 61),
    Frame("forward", f"{SITE}/vllm/model_executor/models/llama.py", 119),
    Frame("_model_forward", f"{SITE}/vllm/v1/worker/gpu_model_runner.py", 2301),
    Frame("execute_model", f"{SITE}/vllm/v1/worker/gpu_model_runner.py", 2188),
    Frame("execute_model", f"{SITE}/vllm/v1/worker/gpu_worker.py", 412),
    *WORKER_LOOP,
)
FLUSHER = (
    Frame("_flush_loop", f"{SITE}/vllm/v1/kv_offload/manager.py", 131),
    Frame("run", "/usr/lib/python3.12/threading.py", 1012),
    Frame("_bootstrap_inner", "/usr/lib/python3.12/threading.py", 1075),
    Frame("_bootstrap", "/usr/lib/python3.12/threading.py", 1032),
)
GET_RESPONSE = (
    Frame("acquire_read", f"{SITE}/vllm/distributed/device_communicators/shm_broadcast.py", 511),
    Frame("dequeue", f"{SITE}/vllm/distributed/device_communicators/shm_broadcast.py", 589),
    Frame("get_response", f"{SITE}/vllm/v1/executor/multiproc_executor.py", 301),
    Frame("step", f"{SITE}/vllm/v1/engine/core.py", 277),
    Frame("run_busy_loop", f"{SITE}/vllm/v1/engine/core.py", 701),
)


def laggard() -> Report:
    """Seven ranks of vLLM; TP3 waits for a lock that its own flusher thread holds; the other six in all_reduce."""
    culprit = 41_901
    victims = {rank: 41_898 + rank for rank in range(7) if rank != 3}
    rows = [_vllm_row(rank, pid, ALL_REDUCE) for rank, pid in victims.items()]
    rows.insert(3, _vllm_row(3, culprit, RESERVE))
    core = ProcessRow(
        pid=41_850, role="vllm.engine-core", rank=None, state="S", phase="vllm.step", frame=GET_RESPONSE[2],
        progress=Progress(ProgressClass.NONE), activity="waits for a peer process", cpu_percent=0.0,
        threads=(ThreadRow(41_850, "MainThread", "S", "waits for a peer process", "vllm.step", GET_RESPONSE),),
        host="node3", command="VLLM::EngineCore", phases=("vllm.step",) * 3,
    )  # fmt: skip
    ranks = [Rank(global_rank=rank, tp=rank, host="node3") for rank in range(7)]
    return Report(
        tool_version="0.1.0",
        knowledge="4be1c0d2a7f3",
        target=TargetInfo(
            41_822, "node3", "vllm", "0.32.0", T0 - 7_403, f"{SITE[:9]}/bin/vllm serve /models/llama-70b -tp 7",
            7, {"python": "3.12.11", "torch": "2.13.0+cu130", "nccl": "2.28.9", "vllm": "0.32.0"},
        ),
        verdict=Verdict(
            Kind.HUNG, Confidence.LIKELY, Cause.LOCK_HELD,
            "TP3 (pid 41901) waits for a threading.Lock in reserve_slot (manager.py:88): the thread that holds it "
            "sleeps (7433 s); TP0-2,4-6 and engine core wait for it",
            culprits=(
                Culprit(
                    culprit, 41_977, "kv-offload-flusher", "vllm.worker", ranks[3], None, FLUSHER[0],
                    "sleeps in _flush_loop (manager.py:131)", ("E1", "E2", "E3"), FLUSHER, "node3",
                ),
            ),
            victims=(
                *(
                    Victim(pid, "vllm.worker", ranks[rank], (culprit,), "torch.collective-wait", ALL_REDUCE[0], "node3")
                    for rank, pid in victims.items()
                ),
                Victim(41_850, "vllm.engine-core", None, (culprit,), "vllm.step", GET_RESPONSE[2], "node3"),
            ),
            progress=Progress(ProgressClass.NONE),
            refuted_by=("the named thread moving on, or proof of progress in a longer look",),
            rule="sinks",
        ),
        processes=(*rows, core),
        groups=(
            Group(("TP3",), "TP3", "vllm.step", RESERVE, 1, False),
            Group(("engine core",), "engine core", "vllm.step", GET_RESPONSE, 1, False),
            Group(
                tuple(f"TP{rank}" for rank in victims), "TP0-2,4-6", "torch.collective-wait", ALL_REDUCE, 6, False
            ),
        ),
        waits=(
            *(
                Wait(
                    Party(pid, pid, f"TP{rank}", "node3"), Party(culprit, culprit, "TP3", "node3"),
                    "is in all_reduce, which TP3 has not entered", "process group tp", Strength.LIKELY,
                )
                for rank, pid in victims.items()
            ),
            Wait(
                Party(culprit, culprit, "TP3", "node3"), Party(culprit, 41_977, "TP3", "node3"),
                "waits for a threading.Lock it holds", "0x7ef9e6187580", Strength.CERTAIN,
            ),
            Wait(
                Party(41_850, 41_850, "engine core", "node3"), Party(culprit, culprit, "TP3", "node3"),
                "waits for the answer of its workers", None, Strength.LIKELY,
            ),
        ),
        nccl_env=NcclEnv(
            {"NCCL_VERSION": "2.28.9", "NCCL_NVLS_ENABLE": "0", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6"},
            {"NCCL_IB_HCA": {**{f"TP{rank}": "mlx5_0" for rank in victims}, "TP3": "mlx5_2"}},
            ("NCCL_IB_HCA is not the same on all ranks",),
        ),
        evidence=(
            Evidence(
                "E1", "TP3 (pid 41901), kv-offload-flusher", None, "py-spy --nonblocking",
                "same 4 frames in 3 of 3 looks: _flush_loop (manager.py:131) ◂ run (threading.py:1012) ◂ 2 more",
            ),
            Evidence(
                "E2", "TP3 (pid 41901), kv-offload-flusher", 2, "/proc syscall", "clock_nanosleep, 86395 s left"
            ),
            Evidence(
                "E3", "TP3 (pid 41901), MainThread", 2, "target memory",
                "threading.Lock at 0x7ef9e6187580, held by thread 41977 (value-stack)",
            ),
            Evidence(
                "E4", "TP0-2,4-6", None, "py-spy --nonblocking",
                "6 alike: all_reduce (distributed_c10d.py:3252) ◂ wrapper (c10d_logger.py:81) ◂ 11 more",
            ),
        ),
        gaps=(
            Gap("flight-recorder", "pid 41822", "not enabled on the target",
                "start it with TORCH_NCCL_TRACE_BUFFER_SIZE=2000"),
            Gap("nvml", "pid 41898", "GPU pids cannot be mapped: another pid namespace"),
            Gap("nvml", "pid 41901", "GPU pids cannot be mapped: another pid namespace"),
        ),
        next_steps=(
            NextStep(
                "Look at the other threads of TP3 (pid 41901): one of them holds the lock.",
                "py-spy dump --nonblocking --pid 41901",
            ),
            NextStep("Before you restart, keep this report and its bundle: they are all that is left afterwards."),
        ),
        log_tail=(
            "INFO 11-29 17:41:02 [loggers.py:118] Engine 000: Avg generation throughput: 812.4 tokens/s",
            "INFO 11-29 17:43:12 [shm_broadcast.py:501] No available shared memory broadcast block in 60 seconds.",
        ),
        timings=Timings((T0, T0 + 3.02, T0 + 10.05), 0.21, 10.4, 0.0),
        bundle="hangdoctor-41822-20261129T174302Z.hang",
    )  # fmt: skip


def _vllm_row(rank: int, pid: int, stack: tuple[Frame, ...]) -> ProcessRow:
    waits = stack is ALL_REDUCE
    phase = "torch.collective-wait" if waits else "vllm.step"
    main = ThreadRow(
        pid, "MainThread", "S", "waits in a collective" if waits else "waits for a lock", phase, stack, 0.0,
        waits_on="futex wait, private, no timeout",
    )  # fmt: skip
    helpers = tuple(
        ThreadRow(pid + 100 + i, f"pt_gloo_runloop-{i}", "S", None, None, (), 0.0, True) for i in range(3)
    )
    flusher = ThreadRow(41_977, "kv-offload-flusher", "S", "sleeps", None, FLUSHER, 0.0)
    return ProcessRow(
        pid=pid, role="vllm.worker", rank=Rank(global_rank=rank, tp=rank, host="node3"), state="S", phase=phase,
        frame=stack[0], progress=Progress(ProgressClass.NONE),
        activity="waits in a collective" if waits else "waits for a lock", cpu_percent=0.0,
        gpu=({"index": rank, "utilization_percent": 100.0 if waits else 0.0, "memory_bytes": 76_000_000_000,
              "power_w": 118.0, "power_limit_w": 700.0},),
        threads=(main, *helpers) if waits else (main, flusher, *helpers),
        host="node3", command=f"VLLM::Worker_TP{rank}", phases=(phase,) * 3, title=f"VLLM::Worker_TP{rank}",
        series=(
            Series("collectives issued", ProgressClass.PROOF, "collectives", ((5_120.0 - (not waits)),) * 3),
            Series("resident memory", ProgressClass.WEAK, "bytes", (4.1e9 + rank * 1e7,) * 3),
            Series("CPU time", ProgressClass.ACTIVITY, "s", (0.0, 3.01, 10.02) if waits else (0.0, 0.0, 0.01)),
        ),
    )  # fmt: skip


def loading(count: int = 11, slow: int = 4) -> Report:
    """Ranks that load a checkpoint; one gets its shards slowly, the others wait in a barrier behind the load."""
    base = laggard()
    rows = []
    for number in range(count):
        row = _vllm_row(number % 7, 41_898 + number, ALL_REDUCE)
        is_slow = number == slow
        whole = (27.0, 30.4, 38.2) if is_slow else (99.0, 100.0, 100.0)
        progress = Progress(
            ProgressClass.PROOF, "has read 55 % of model-00004-of-00011.safetensors, shard 4 of 11", 1.1e9,
            "bytes/s", 38.2, 52.0,
        ) if is_slow else Progress(ProgressClass.ACTIVITY, "uses the CPU")  # fmt: skip
        series = (
            Series("weights loaded", ProgressClass.PROOF, "%", whole),
            Series(
                "bytes read",
                ProgressClass.ACTIVITY,
                "bytes",
                (0.0, 3.3e9, 11e9) if is_slow else (0.0, None, 2e7),
            ),
            Series("CPU time", ProgressClass.ACTIVITY, "s", (0.0, 0.7, 2.3) if is_slow else (0.0, 3.0, 10.0)),
        )
        rows.append(
            replace(
                row, rank=Rank(tp=number), progress=progress, series=series, title=f"VLLM::Worker_TP{number}"
            )
        )
    guilty = rows[slow]
    culprit = replace(
        base.verdict.culprits[0], pid=guilty.pid, tid=guilty.pid, thread="MainThread", rank=guilty.rank,
        frame=ALL_REDUCE[3], stack=ALL_REDUCE, doing="loads weights", evidence=("E1",),
    )  # fmt: skip
    return replace(
        base,
        verdict=replace(
            base.verdict, kind=Kind.SLOW, cause=Cause.LOADING, culprits=(culprit,), victims=(),
            progress=guilty.progress,
            summary=f"TP{slow} (pid {guilty.pid}) loads weights: it has read 38 %; the others wait for it",
        ),
        target=replace(base.target, world_size=count), processes=tuple(rows), waits=(), groups=(),
        evidence=(
            Evidence("E1", f"TP{slow} (pid {guilty.pid})", None, "diff of looks", "proof: has read 38 % of 11 shards"),
        ),
    )  # fmt: skip


BATON = (
    Frame("wait", f"{SITE}/torch/utils/file_baton.py", 49),
    Frame("_jit_compile", f"{SITE}/torch/utils/cpp_extension.py", 2142),
    Frame("load", f"{SITE}/torch/utils/cpp_extension.py", 1623),
    Frame("capture", f"{SITE}/sglang/srt/model_executor/cuda_graph_runner.py", 518),
)
NINJA = (
    Frame("communicate", "/usr/lib/python3.12/subprocess.py", 1209),
    Frame("run", "/usr/lib/python3.12/subprocess.py", 550),
    Frame("_run_ninja_build", f"{SITE}/torch/utils/cpp_extension.py", 2506),
    Frame("_jit_compile", f"{SITE}/torch/utils/cpp_extension.py", 2138),
    Frame("load", f"{SITE}/torch/utils/cpp_extension.py", 1623),
    Frame("capture", f"{SITE}/sglang/srt/model_executor/cuda_graph_runner.py", 518),
)


def compiling() -> Report:
    """SGLang with two ranks: TP1 runs cicc for a kernel, TP0 polls its lock file."""
    lock = "/root/.cache/torch_extensions/py312_cu130/fused_moe/lock"
    progress = Progress(
        ProgressClass.PROOF, "compiled 7 of 17 objects of fused_moe", 0.11, "objects/s", 41.2, 92.0
    )
    rows = []
    for rank, (stack, cpu) in enumerate(((BATON, 0.4), (NINJA, 1.2))):
        rows.append(
            ProcessRow(
                pid=4_901 + rank, role="sglang.scheduler", rank=Rank(tp=rank), state="S", phase="sglang.graph-capture",
                frame=stack[0], progress=progress if rank else Progress(ProgressClass.ACTIVITY, "context switches"),
                activity="waits for a child process" if rank else "sleeps", cpu_percent=cpu,
                gpu=({"index": rank, "utilization_percent": 0.0, "memory_bytes": 76_000_000_000, "power_w": 121.0},),
                threads=(ThreadRow(4_901 + rank, "MainThread", "S", "sleeps", "sglang.graph-capture", stack, cpu),),
                host="h200-1", command=f"sglang::scheduler_TP{rank}", title=f"sglang::scheduler_TP{rank}",
                series=(Series("CPU time", ProgressClass.ACTIVITY, "s", (0.0, cpu / 50, None)),),
                phases=("torch.jit-compile", "torch.jit-compile", "sglang.graph-capture"),
            )
        )  # fmt: skip
    rows.append(
        ProcessRow(
            pid=5_377, role="build.cicc", rank=None, state="R", phase="build.compile", frame=None,
            progress=progress, activity="runs", cpu_percent=98.4, host="h200-1", command="cicc --c++17 fused_moe.cu",
            series=(Series("CPU time", ProgressClass.ACTIVITY, "s", (0.0, 2.96, 9.9)),),
        )
    )  # fmt: skip
    return Report(
        tool_version="0.1.0",
        knowledge="4be1c0d2a7f3",
        target=TargetInfo(4_902, "h200-1", "sglang", "0.5.12.post1", T0 - 141, "python3 -m sglang.launch_server", 2),
        verdict=Verdict(
            Kind.SLOW, Confidence.CERTAIN, Cause.COMPILING,
            "TP1 (pid 4902) compiles in _run_ninja_build (cpp_extension.py:2506) (cicc): it compiles: compiled 7 of 17 "
            "objects of fused_moe; TP0 waits for it",
            culprits=(
                Culprit(
                    4_902, 4_902, "MainThread", "sglang.scheduler", Rank(tp=1), "torch.jit-compile", NINJA[2],
                    "compiles in _run_ninja_build (cpp_extension.py:2506) (cicc)", ("E1", "E2"), NINJA, "h200-1",
                ),
            ),
            victims=(Victim(4_901, "sglang.scheduler", Rank(tp=0), (4_902,), "torch.jit-compile", BATON[0], "h200-1"),),
            progress=progress,
            refuted_by=("no compiler using the CPU and no object written in a longer look",),
            rule="sinks",
        ),
        processes=tuple(rows),
        groups=(
            Group(("TP1",), "TP1", "torch.jit-compile", NINJA, 1, False),
            Group(("TP0",), "TP0", "torch.lock-file-wait", BATON, 1, False),
        ),
        waits=(
            Wait(
                Party(4_902, 4_902, "TP1", "h200-1"), Party(5_377, None, "CUDA device compiler", "h200-1"),
                "waits for its child process", "pipe:[81120]", Strength.CERTAIN,
            ),
            Wait(
                Party(4_901, 4_901, "TP0", "h200-1"), Party(4_902, None, "TP1", "h200-1"),
                "polls the lock file of the build", lock, Strength.CERTAIN,
            ),
        ),
        evidence=(
            Evidence("E1", "TP1 (pid 4902), MainThread", None, "py-spy --nonblocking",
                     "same 6 frames in 3 of 3 looks: communicate (subprocess.py:1209) ◂ run (subprocess.py:550)"),
            Evidence("E2", "TP1 (pid 4902)", None, "/proc", "child cicc (pid 5377), state R, 98 % of a core"),
        ),
        next_steps=(NextStep("Do not kill it: give it about 2 min more, then look again.",
                             "hangdoctor attach 4902 --interval 30"),),
        log_tail=("[2026-11-29 17:40:11 TP0] Capture cuda graph begin. This can take up to several minutes.",),
        timings=Timings((T0, T0 + 3.0, T0 + 10.1), 0.08, 10.4, 0.0),
    )  # fmt: skip


def ready() -> Report:
    """An idle SGLang: both ranks inside the event loop's broadcast, and healthy."""
    stack = (
        Frame("broadcast", f"{SITE}/torch/distributed/distributed_c10d.py", 2931),
        Frame("broadcast_pyobj", f"{SITE}/sglang/srt/utils/common.py", 1288),
        Frame("recv_requests", f"{SITE}/sglang/srt/managers/scheduler.py", 1101),
        Frame("event_loop_normal", f"{SITE}/sglang/srt/managers/scheduler.py", 889),
    )
    return Report(
        tool_version="0.1.0",
        knowledge="4be1c0d2a7f3",
        target=TargetInfo(4_902, "h200-1", "sglang", "0.5.12.post1", T0, None, 2),
        verdict=Verdict(
            Kind.READY, Confidence.CERTAIN, Cause.IDLE,
            "Every rank waits for work in its event loop and the port listens",
            refuted_by=("a request that stays unanswered while it is looked at again",), rule="ready",
        ),
        processes=tuple(
            ProcessRow(4_901 + tp, "sglang.scheduler", Rank(tp=tp), "S", "sglang.idle", stack[0],
                       Progress(ProgressClass.ACTIVITY, "31,204 context switches"), host="h200-1",
                       phases=("sglang.idle",) * 2)
            for tp in range(2)
        ),
        groups=(Group(("TP0", "TP1"), "TP0-1", "sglang.idle", stack, 2, True),),
        timings=Timings((T0, T0 + 3.0), 0.05, 3.3, 0.0),
    )  # fmt: skip


def unknown() -> Report:
    """Nothing but /proc could be read: eleven ranks, no stack, two kinds of gaps."""
    gaps = [
        Gap("py-spy", f"pid {700 + rank}", "permission denied: ptrace_scope is 1 and the process is not a child",
            "run as root, or docker run --cap-add SYS_PTRACE")
        for rank in range(11)
    ]  # fmt: skip
    gaps += [
        Gap(
            "nvml",
            "host gpu-7",
            "did not answer within 5 s",
            "nvidia-smi; if that hangs too, look for Xid in dmesg",
        ),
        Gap("environ", "pid 703", "the process has ended"),
        Gap("ports", "host gpu-7", "another network namespace", "nsenter -t 699 -n hangdoctor attach 699"),
        Gap("log", "pid 699", "standard output is a pipe", "name the file with --log"),
    ]
    return Report(
        tool_version="0.1.0",
        knowledge=None,
        target=TargetInfo(699, "gpu-7", None, None, None, None, 16),
        verdict=Verdict(
            Kind.UNKNOWN, Confidence.POSSIBLE, None, "No stack of any rank could be read, so nobody can be named",
            alternatives=("hung (possible): no rank used a CPU for 10 s",),
            refuted_by=("one readable stack of a rank",), rule="undecided",
        ),
        processes=tuple(
            ProcessRow(700 + rank, "torchrun.rank", Rank(global_rank=rank), "S", None, None, None, host="gpu-7")
            for rank in range(11)
        ),
        groups=(Group(tuple(f"rank {r}" for r in range(11)), "rank 0-10", None, (), 11, None),),
        gaps=tuple(gaps),
        next_steps=(
            NextStep("What would decide: the Python stacks of the ranks.", "sudo hangdoctor attach 699"),
        ),
        timings=Timings((T0, T0 + 3.0, T0 + 10.0), None, 10.2, None),
    )  # fmt: skip


def many_ranks(count: int = 1024, culprit: int = 613) -> Report:
    """A job over hosts of eight ranks; one rank outside the collective, a rank of every 97th host unreadable."""
    base = laggard()
    rows, waits, victims = [], [], []
    for number in range(count):
        host = f"node{number // 8 + 1}"
        pid = 5_000 + number % 8 * 7
        rank = Rank(global_rank=number, local=number % 8, host=host)
        stack = RESERVE if number == culprit else ALL_REDUCE
        row = _vllm_row(3, pid, stack)
        rows.append(
            replace(row, rank=rank, host=host, command=f"python train.py --rank {number}", role="torchrun.rank",
                    title=None,
                    threads=(replace(row.threads[0], tid=pid), *row.threads[1:]))
        )  # fmt: skip
        if number != culprit:
            holder = Party(5_000 + culprit % 8 * 7, None, f"rank {culprit}", f"node{culprit // 8 + 1}")
            reason = f"is in all_reduce, which rank {culprit} has not entered"
            waits.append(
                Wait(Party(pid, pid, f"rank {number}", host), holder, reason, "group 0", Strength.LIKELY)
            )
            victims.append(
                Victim(pid, "torchrun.rank", rank, (5_000,), "torch.collective-wait", ALL_REDUCE[0], host)
            )
    others = tuple(f"rank {number}" for number in range(count) if number != culprit)
    guilty = rows[culprit]
    named = replace(
        base.verdict.culprits[0], pid=guilty.pid, tid=guilty.pid, thread="MainThread", role="torchrun.rank",
        rank=guilty.rank, host=guilty.host, frame=RESERVE[0], stack=RESERVE,
        doing="waits for a lock in reserve_slot (manager.py:88)",
    )  # fmt: skip
    summary = f"rank {culprit} (pid {guilty.pid}) waits for a lock: {count - 1} ranks wait for it"
    return replace(
        base,
        target=replace(base.target, server="torchrun", server_version=None, world_size=count),
        verdict=replace(base.verdict, summary=summary, culprits=(named,), victims=tuple(victims)),
        processes=tuple(rows),
        groups=(
            Group((f"rank {culprit}",), f"rank {culprit}", "vllm.step", RESERVE, 1, False),
            Group(
                others, f"rank 0-{culprit - 1},{culprit + 1}-{count - 1}", "torch.collective-wait", ALL_REDUCE,
                count - 1, False,
            ),
        ),
        waits=tuple(waits),
        gaps=tuple(
            Gap("py-spy", f"host node{n} pid 5000", "timed out after 2 s") for n in range(1, count // 8 + 1, 97)
        ),
    )  # fmt: skip


def with_threads(report: Report, count: int) -> Report:
    """Every process with so many threads more, in three places."""
    rows = []
    for row in report.processes:
        more = tuple(
            replace(
                row.threads[0],
                tid=row.pid * 1000 + n,
                name=f"t{n}",
                stack=(FLUSHER, GET_RESPONSE, ALL_REDUCE)[n % 3],
            )
            for n in range(count)
        )
        rows.append(replace(row, threads=(*row.threads, *more)))
    return replace(report, processes=tuple(rows))


HOSTILE = (
    "\x1b[31mred\x1b[0m `tick` ```fence``` |pipe| <script>alert(1)</script> [/int] [x](http://e) @user #12 "
    "\u202egnp.exe\n# head\r$&*_~"
)
"""A name that breaks out of terminals, Markdown, tables, HTML and mentions if anybody lets it."""


def hostile() -> Report:
    """Every captured text in the report tries to be markup."""
    base = laggard()
    frame = Frame(HOSTILE, f"/tmp/{HOSTILE}/x.py", 7)
    torn = Frame("f\udcff", "/tmp/\udce9.py", None)
    stack = (frame, torn, *RESERVE)
    rows = tuple(
        replace(
            row, command=HOSTILE, title=HOSTILE, role=HOSTILE,
            series=(*row.series, Series(HOSTILE, ProgressClass.WEAK, HOSTILE, (1.0, None, 3.0))),
            threads=tuple(replace(thread, name=HOSTILE, waits_on=HOSTILE, stack=stack) for thread in row.threads),
        )
        for row in base.processes
    )  # fmt: skip
    culprit = replace(
        base.verdict.culprits[0], thread=HOSTILE, doing=f"sleeps in {HOSTILE}", stack=stack, frame=frame
    )
    return replace(
        base,
        target=replace(base.target, server=HOSTILE, host=HOSTILE, command=HOSTILE, versions={HOSTILE: HOSTILE}),
        verdict=replace(
            base.verdict, summary=HOSTILE, culprits=(culprit,), alternatives=(HOSTILE,), refuted_by=(HOSTILE,)
        ),
        processes=rows,
        groups=tuple(replace(group, label=HOSTILE, phase=HOSTILE, stack=stack) for group in base.groups),
        waits=tuple(replace(wait, reason=HOSTILE, object=HOSTILE) for wait in base.waits),
        nccl_env=NcclEnv({HOSTILE: HOSTILE}, {HOSTILE: {HOSTILE: HOSTILE, "TP1": "x"}}, (HOSTILE,)),
        evidence=tuple(replace(piece, subject=HOSTILE, text=HOSTILE, source=HOSTILE) for piece in base.evidence),
        gaps=(Gap(HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
        next_steps=(NextStep(HOSTILE, HOSTILE),),
        matches=(HOSTILE,),
        log_tail=(HOSTILE, "-----BEGIN\x00nul", "```", "</details>"),
        log_line=LogLine(HOSTILE, 61.0, True, False, HOSTILE, 2.0, path=HOSTILE, host=HOSTILE),
        bundle=HOSTILE,
    )  # fmt: skip


def empty() -> Report:
    """The least a report can hold."""
    return Report(
        tool_version="0.1.0",
        knowledge=None,
        target=TargetInfo(None, None, None, None, None, None),
        verdict=Verdict(Kind.UNKNOWN, Confidence.POSSIBLE, None, "Nothing to read"),
    )


SAMPLES = {
    "laggard": laggard,
    "compiling": compiling,
    "ready": ready,
    "unknown": unknown,
    "hostile": hostile,
    "empty": empty,
}
"""The reports with golden files; `many_ranks` is measured instead."""


def compare_golden(name: str, actual: str, request: pytest.FixtureRequest) -> None:
    """Compare with a reviewed file; ``--update-golden`` or HANGDOCTOR_UPDATE_GOLDEN=1 writes it instead."""
    path = GOLDEN / name
    wanted = request.config.getoption("--update-golden", default=False)
    if wanted or os.environ.get("HANGDOCTOR_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(actual, encoding="utf-8", newline="")
        return
    assert path.exists(), f"{path} is missing: run pytest --update-golden and review it"
    assert actual == path.read_text(encoding="utf-8")
