"""A torch.distributed job that goes wrong: ``torch_job.py PANEL sizes|early-exit|laggard [--backend gloo]``.

Runs under torchrun. PANEL/job.reached appears once every rank is where it stays; PANEL/flight.json is what PyTorch's
own Flight Recorder says of it then, to compare with what is read from outside.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

LATE = 1


def tensor(elements: int, backend: str) -> torch.Tensor:
    return torch.ones(elements, device=f"cuda:{os.environ['LOCAL_RANK']}" if backend == "nccl" else "cpu")


def finish(backend: str) -> None:
    if backend == "nccl":
        torch.cuda.synchronize()


def train_step(rank: int, fault: str, backend: str) -> None:
    """The step in which it goes wrong."""
    if rank == LATE and fault == "laggard":
        wait_for_batch(threading.Event())
    # Twice or four times the size still completes over NVLink (seen on H200s); this much does not.
    elements = (1 << 28) if rank == LATE and fault == "sizes" else (1 << 20)
    dist.all_reduce(tensor(elements, backend))
    dist.all_reduce(tensor(1 << 20, backend))
    finish(backend)


def wait_for_batch(filled: threading.Event) -> None:
    filled.wait()


def report(panel: Path) -> None:
    """From a thread, while the main thread is stuck."""
    time.sleep(2)
    try:
        trace = torch._C._distributed_c10d._dump_nccl_trace_json()
        (panel / "flight.json").write_bytes(trace if isinstance(trace, bytes) else str(trace).encode())
    except (AttributeError, RuntimeError) as problem:
        (panel / "flight.json").write_text(f"not available: {problem}")
    (panel / "job.reached").write_text(f"{os.getpid()}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("panel", type=Path)
    parser.add_argument("fault", choices=("sizes", "early-exit", "laggard"))
    parser.add_argument("--backend", default="nccl")
    words = parser.parse_args()
    if words.backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(words.backend)
    rank = dist.get_rank()
    for _ in range(3):
        dist.all_reduce(tensor(1 << 20, words.backend))
    finish(words.backend)
    if rank == 0:
        threading.Thread(target=report, args=(words.panel,), daemon=True).start()
    if rank == LATE and words.fault == "early-exit":
        os._exit(0)  # as a script that returns early; destroying the group would wait for the others
    train_step(rank, words.fault, words.backend)
    time.sleep(600)


if __name__ == "__main__":
    main()
