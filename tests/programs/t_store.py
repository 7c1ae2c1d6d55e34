"""One rank of a job whose ranks wait in torch's store for rank 0, which never writes what they wait for.

Environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, GLOO_JOB (a folder with the FIFO ``say``).
"""

import datetime
import os
import time

import torch.distributed as dist

RANK = int(os.environ["RANK"])
SAY = os.open(f"{os.environ['GLOO_JOB']}/say", os.O_WRONLY)


def say(word):
    os.write(SAY, f"{RANK} {word}\n".encode())


def prepare_dataset():
    """Asleep in Python."""
    say("placed")
    time.sleep(3600)


def wait_for_dataset(store):
    say("placed")
    store.get("dataset is ready")


def main():
    say(f"pid {os.getpid()}")
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        int(os.environ["WORLD_SIZE"]),
        is_master=RANK == 0,
        timeout=datetime.timedelta(hours=1),
    )
    if RANK == 0:
        prepare_dataset()
    wait_for_dataset(store)


main()
