"""Launch the ranks of a job and look after them as a simple launcher does: ``d_launch.py HOW WORLD_SIZE``.

HOW: ``popen`` starts a process a rank with RANK in its environment and waits for them in order, so that a rank that
dies stays a zombie; ``reap`` does the same and takes note of any child that ends; ``spawn`` uses
``torch.multiprocessing.spawn``.
"""

import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

RANK_PROGRAM = str(Path(__file__).resolve().with_name("d_gloo_rank.py"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def spawned(rank):
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    runpy.run_path(RANK_PROGRAM, run_name="rank")


def main():
    how, world_size = sys.argv[1], int(sys.argv[2])
    os.environ.update(WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    if how == "spawn":
        import torch.multiprocessing

        torch.multiprocessing.spawn(spawned, nprocs=world_size)
        return
    ranks = [
        subprocess.Popen(
            [sys.executable, RANK_PROGRAM], env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(world_size)
    ]
    if how == "reap":
        for _ in ranks:
            os.wait()
    for rank in ranks:
        rank.wait()


if __name__ == "__main__":
    main()
