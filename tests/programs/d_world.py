"""A small world of plain processes for the live scenarios: three ranks that meet in a barrier, one of them at fault."""

import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path

import handshake

WORLD_SIZE = 3
CULPRIT = 1
CONTEXT = multiprocessing.get_context("fork")


def run(fault, others=None, prepare=None, world_size=WORLD_SIZE):
    """Fork the ranks and wait for them. ``fault(folder)`` is the culprit's part and calls ``placed()`` itself;
    ``others(folder)`` replaces waiting in the barrier; ``prepare(folder)`` runs before the fork."""
    folder = Path(tempfile.mkdtemp(prefix="hangdoctor-live-", dir=os.environ.get("LIVE_FOLDER")))
    try:
        # A log that can be found through fd 1, as a server's.
        os.dup2(os.open(folder / "server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        if prepare:
            prepare(folder)
        barrier = CONTEXT.Barrier(world_size)
        ranks = [
            CONTEXT.Process(target=_rank, args=(rank, barrier, fault, others, folder), name=f"rank-{rank}")
            for rank in range(world_size)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def placed():
    """This rank is where its scenario wants it."""
    handshake.ready(os.environ["RANK"], os.getpid())


def wait_for_peers(barrier):
    placed()
    barrier.wait()


def _rank(rank, barrier, fault, others, folder):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(barrier.parties))
    if rank == CULPRIT:
        fault(folder)
        barrier.wait()
    elif others:
        others(folder)
    else:
        wait_for_peers(barrier)
