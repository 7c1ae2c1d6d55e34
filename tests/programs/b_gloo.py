"""A gloo job of N ranks (argv 1) in which rank LAGGARD (argv 2) sleeps before the fourth all_reduce.

Argument 3 is a free file name.

Each rank says ``rank R pid P`` once the job is under way and it is about to do what it will be stuck in.
"""

import os
import sys
import time

import handshake
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, count, laggard, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    pair = dist.new_group([0, 1], group_desc="pair")
    for _ in range(3):
        dist.all_reduce(torch.ones(1 << 10))
    if rank < 2:
        dist.broadcast(torch.ones(5, dtype=torch.int64), 0, group=pair)
    handshake.ready("rank", rank, "pid", os.getpid())
    if rank == laggard:
        time.sleep(3600)
    dist.all_reduce(torch.ones(3, 7))


if __name__ == "__main__":
    count, laggard = int(sys.argv[1]), int(sys.argv[2])
    store = sys.argv[3]
    ranks = [
        mp.get_context("fork").Process(target=run, args=(r, count, laggard, store)) for r in range(count)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
