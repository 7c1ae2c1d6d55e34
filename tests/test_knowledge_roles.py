"""Who a process is: before its title is set, after, while it dies; and which server a tree of processes is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangdoctor.knowledge import load_knowledge
from hangdoctor.knowledge.catalogue import RoleKind
from hangdoctor.knowledge.roles import read_rank
from hangdoctor.model import Process, Rank
from tests.knowledge_support import built_in, process, stack, thread

KNOWLEDGE = built_in()
SPAWNED = (
    "python3 -B -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=7, pipe_handle=9)"
)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ("_DP0_PP1_ATTN_CP1_MOE_DP0_TP3_EP3", Rank(dp=0, pp=1, cp=1, tp=3, ep=3)),
        ("_DP2_TP5_PP1", Rank(dp=2, tp=5, pp=1)),
        ("_DP1_PP0_PCP2_TP3_DCP1_EP3", Rank(dp=1, pp=0, cp=2, tp=3, ep=3)),
        ("DP0 TP11", Rank(dp=0, tp=11)),
        ("_4", None),
        ("", None),
    ],
)
def test_coordinates_of_all_title_styles(parts: str, expected: Rank | None) -> None:
    assert read_rank(parts) == expected


def test_titles_padded_by_setproctitle_are_read_to_the_last_digit() -> None:
    title = ("sglang::scheduler_TP11", *[""] * 40)
    found = KNOWLEDGE.find_role(Process(pid=7, command=title), "sglang")
    assert found is not None and found.rank == Rank(tp=11) and found.source == "title"
    blanks = Process(pid=7, command=("VLLM::Worker_TP11" + " " * 90,))
    found = KNOWLEDGE.find_role(blanks, "vllm")
    assert found is not None and found.rank == Rank(tp=11)


def test_a_dying_worker_has_only_its_comm_and_keeps_its_role_but_no_rank() -> None:
    dying = Process(pid=7, comm="VLLM::Worker_TP", command=(), state="Z")
    found = KNOWLEDGE.find_role(dying, "vllm")
    assert found is not None
    assert (found.role.id, found.rank, found.source) == ("vllm.worker", None, "comm")


def test_a_spawned_child_is_a_starting_rank_only_below_a_known_server() -> None:
    child = process(SPAWNED)
    for server in ("sglang", "vllm"):
        found = KNOWLEDGE.find_role(child, server)
        assert found is not None and found.role.id == f"{server}.child" and found.role.kind is RoleKind.RANK
    assert KNOWLEDGE.find_role(child, None) is None


def test_rank_sources_in_their_order_of_trust() -> None:
    both = process("RANK=3 LOCAL_RANK=3 python train.py --local_rank=5")
    found = KNOWLEDGE.find_role(both, "torchrun")
    assert found is not None and found.rank == Rank(global_rank=3, local=5)
    titled = replace(process("VLLM::Worker_TP1"), environ={"RANK": "6"})
    found = KNOWLEDGE.find_role(titled, "vllm")
    assert found is not None and found.rank == Rank(tp=1) and found.source == "title"


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("RANK=4 LOCAL_RANK=0 SLURM_PROCID=1 python train.py", Rank(global_rank=4, local=0)),
        ("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_RANK=1 python train.py", Rank(global_rank=2, local=1)),
        ("PMIX_RANK=6 python train.py", Rank(global_rank=6)),
        ("SLURM_PROCID=9 SLURM_LOCALID=1 python train.py", Rank(global_rank=9, local=1)),
    ],
)
def test_ranks_from_the_environment(text: str, rank: Rank) -> None:
    found = KNOWLEDGE.find_role(process(text), None)
    assert found is not None
    assert (found.role.kind, found.rank, found.source) == (RoleKind.RANK, rank, "environment")


def test_one_command_line_for_all_is_not_one_rank_for_all() -> None:
    """What a command line says is remembered, what the environment says is not."""
    finder = load_knowledge()
    ranks = [
        finder.find_role(process(f"RANK={n} LOCAL_RANK=0 python train.py"), "torchrun") for n in (5, 2, 5)
    ]
    assert [found.rank.global_rank for found in ranks if found and found.rank] == [5, 2, 5]
    without = finder.find_role(process("python train.py"), "torchrun")
    assert without is None or without.rank is None
    # Nor is one server's answer another's.
    title = process("sglang::scheduler_TP1")
    here, there = (finder.find_role(title, server) for server in ("sglang", "vllm"))
    assert here is not None and here.rank == Rank(tp=1) and there != here


def test_a_rank_variable_inherited_by_a_server_process_is_no_rank_of_it() -> None:
    inherited = process("SLURM_PROCID=0 python /opt/venv/bin/vllm serve m")
    found = KNOWLEDGE.find_role(inherited, None)
    assert found is not None and found.role.id == "vllm.api-server" and found.rank is None


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("ninja -v", "build.ninja"),
        ("/usr/local/cuda/bin/nvcc -O2 a.cu", "build.cuda"),
        ("comm:cicc", "build.cuda"),
        ("comm:ptxas", "build.cuda"),
        ("fatbinary --create=a", "build.cuda"),
        ("/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus -quiet", "build.cpp"),
        ("as -o a.o", "build.cpp"),
        ("collect2 -o a", "build.cpp"),
        ("clang-17 -cc1", "build.cpp"),
        ("/bin/sh -c /usr/local/cuda/bin/nvcc -O2", "build.shell"),
        ("/bin/sh -c python3 -m sglang.launch_server", "launch.shell"),
        ("numactl --membind=1 python3 -m sglang.launch_server", "launch.wrapper"),
        ("tini -- vllm serve m", "launch.wrapper"),
        ("timeout 60 python3 train.py", "launch.wrapper"),
        ("mpirun -np 7 python3 train.py", "launch.mpirun"),
        ("comm:pt_data_worker", "torch.data-loader"),
        ("python3 -c from multiprocessing.resource_tracker import main;main(5)", "python.resource-tracker"),
        ("py-spy dump --pid 7", "python.py-spy"),
    ],
)
def test_helpers_below_any_server_even_with_an_inherited_rank(text: str, role: str) -> None:
    for server in (None, "sglang", "vllm", "torchrun"):
        found = KNOWLEDGE.find_role(replace(process(text), environ={"RANK": "3"}), server)
        assert found is not None and found.role.id == role
        assert found.rank is None, "its parent's rank is not its own"


def test_the_entry_function_names_a_child_that_has_no_title_yet() -> None:
    running = "_create_c10d_store torch/distributed/rendezvous.py | run_scheduler_process scheduler.py"
    found = KNOWLEDGE.find_role_by_stack(stack(running), None)
    assert found is not None and (found.role.id, found.source) == ("sglang.scheduler", "stack")
    assert KNOWLEDGE.find_role_by_stack(stack("main train.py | <module> train.py"), None) is None


def test_a_forked_worker_is_not_taken_for_the_engine_core_whose_stack_it_carries() -> None:
    forked = (
        "WorkerProc.worker_main vllm/v1/executor/multiproc_executor.py | BaseProcess.run multiprocessing/process.py"
        " | BaseProcess._bootstrap multiprocessing/process.py | Popen._launch multiprocessing/popen_fork.py"
        " | WorkerProc.make_worker_process vllm/v1/executor/multiproc_executor.py"
        " | EngineCoreProc.run_engine_core vllm/v1/engine/core.py"
    )
    found = KNOWLEDGE.find_role_by_stack(stack(forked), "vllm")
    assert found is not None and found.role.id == "vllm.worker"


TREES = {
    "sglang": [
        "python3 -m sglang.launch_server --tp 3",
        "sglang::scheduler_TP0",
        "sglang::detokenizer",
        SPAWNED,
    ],
    "vllm": ["bash -c vllm serve m", "vllm serve m -tp 3", "VLLM::EngineCore", "VLLM::Worker_TP1"],
    "torchrun": [
        "python /opt/bin/torchrun --nproc-per-node 3 train.py",
        "RANK=1 python train.py",
        "ninja -v",
    ],
    "accelerate": ["python /opt/bin/accelerate launch train.py", "RANK=1 python train.py"],
    "deepspeed": [
        "python /opt/bin/deepspeed train.py",
        "python -u -m deepspeed.launcher.launch x",
        "RANK=1 python t.py",
    ],
    "megatron": ["torchrun pretrain_gpt.py", "RANK=2 python -u pretrain_gpt.py"],
    "tgi": ["text-generation-launcher --num-shard 3", "RANK=1 python text-generation-server serve m"],
    "tensorrt-llm": ["python trtllm-serve m", "OMPI_COMM_WORLD_RANK=1 python -m mpi4py.futures.server"],
    "lmdeploy": ["python /opt/bin/lmdeploy serve api_server m", "comm:ExecutorProc-1"],
    "ray": ["raylet --x", "ray::IDLE", "ray::WorkerDict.generate"],
}


@pytest.mark.parametrize("server", TREES)
def test_find_server(server: str) -> None:
    assert KNOWLEDGE.find_server([process(text) for text in TREES[server]]) == server


def test_an_engine_wins_over_what_embeds_or_starts_it() -> None:
    dynamo = ["python3 -m dynamo.vllm --model m", "VLLM::EngineCore", "VLLM::Worker_TP1"]
    assert KNOWLEDGE.find_server([process(text) for text in dynamo]) == "vllm"
    in_ray = ["ray::IDLE", "ray::RayWorkerWrapper.execute_method", "VLLM::EngineCore"]
    assert KNOWLEDGE.find_server([process(text) for text in in_ray]) == "vllm"


@pytest.mark.parametrize("texts", [[], ["python train.py", SPAWNED], ["bash", "ninja -v", "sleep 5"]])
def test_plain_python_and_unknown_programs_are_no_server(texts: list[str]) -> None:
    assert KNOWLEDGE.find_server([process(text) for text in texts]) is None


def test_a_dump_without_command_lines_tells_its_server_by_its_frames() -> None:
    frames = "forward vllm/models/llama.py | execute_model /opt/python3.12/site-packages/vllm/v1/worker/gpu_worker.py"
    dumped = Process(pid=7, threads=(thread(frames=frames),))
    assert KNOWLEDGE.find_server([dumped]) == "vllm"
    other = Process(pid=7, threads=(thread(frames="forward vllm_like/llama.py | main train.py"),))
    assert KNOWLEDGE.find_server([other]) is None
