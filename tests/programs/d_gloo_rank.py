"""One rank of a real torch.distributed job that goes into one fault after another, as it is told to.

Environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (or what torchrun sets), GLOO_JOB (a folder with the FIFOs
``say``, which all ranks write lines to, and ``hear.RANK``, which commands come from).

Between commands the main thread is where an idle server's is: in ``queue.get``. A fault ends with SIGUSR1.
"""

import contextlib
import ctypes
import os
import queue
import signal
import threading
import time

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
FOLDER = os.environ["GLOO_JOB"]
SAY = os.open(f"{FOLDER}/say", os.O_WRONLY)
LATE = os.environ.get("GLOO_LATE")
"""The rank that never comes to the first rendezvous."""

HALT = threading.Event()
GROUPS = []
"""Two more groups of all ranks."""


class Released(Exception):
    """The test has seen enough of the fault."""


def release(_number, _frame):
    raise Released


def say(word):
    """One line of less than PIPE_BUF bytes: lines of several ranks do not mix."""
    os.write(SAY, f"{RANK} {word}\n".encode())


def load_tokenizer():
    """Asleep in Python."""
    say("placed")
    time.sleep(3600)


def read_cache():
    """Waits for a lock that another thread took and keeps."""
    cache_lock, taken, finished = threading.Lock(), threading.Event(), threading.Event()

    def prefetch_pages():
        with cache_lock:
            taken.set()
            finished.wait()

    holder = threading.Thread(target=prefetch_pages, name="prefetcher", daemon=True)
    holder.start()
    taken.wait()
    try:
        say("placed")
        with cache_lock:
            pass
    finally:
        finished.set()
        holder.join()


def call_driver():
    """Asleep in C, without having given up the GIL that another thread of the rank wants."""
    finished = threading.Event()

    def report_health():
        while not finished.wait(0.05):
            pass

    reporter = threading.Thread(target=report_health, name="health", daemon=True)
    reporter.start()
    libc = ctypes.PyDLL(None)
    try:
        say("placed")
        libc.pause()
    finally:
        finished.set()
        reporter.join()


def stage_batch():
    """Stopped by a signal at this line, and no other."""
    say("placed")
    os.kill(os.getpid(), signal.SIGSTOP)
    signal.pause()


def unpack_int4(packed):
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten() - 8


def scale_groups(values, scales):
    groups = values.view(-1, 32).float()
    return (groups * scales).view(-1)


def permute_tiles(weights):
    tiles = weights.view(-1, 16, 8, 4).permute(0, 3, 2, 1)
    return tiles.contiguous()


def clip_outliers(weights):
    weights = weights.clamp(-3.0, 3.0)
    return weights.nan_to_num()


def round_weights(weights):
    weights = weights.bfloat16()
    return weights.float()


def check_layer(weights):
    largest = weights.abs().max()
    return largest.item(), weights.std().item()


def dequantize_layers():
    """Computes outside the collective: functions, lines and values change, the log does not.

    Many steps of about the same length, so that three looks hardly ever meet the same one.
    """
    packed = torch.randint(0, 255, (1 << 20,), dtype=torch.uint8)
    scales = torch.rand(1 << 16, 1)
    say("placed")
    while True:
        values = unpack_int4(packed)
        weights = scale_groups(values, scales)
        weights = permute_tiles(weights)
        weights = clip_outliers(weights)
        weights = round_weights(weights)
        check_layer(weights)


FAULTS = {
    "sleep": load_tokenizer,
    "lock": read_cache,
    "gil": call_driver,
    "stopped": stage_batch,
    "compute": dequantize_layers,
}


def meet(tensor):
    dist.all_reduce(tensor)


def run_fault(fault, culprit):
    """The culprit goes into its fault, the others into the collective; afterwards all meet in it."""
    if culprit == RANK:
        with contextlib.suppress(Released):
            FAULTS[fault]()
    else:
        say("placed")
    meet(torch.ones(4096))


def run_training():
    """Healthy: collective after collective, with a little work in between, until one rank is told to halt."""
    weights = torch.rand(256, 256)
    flag = torch.zeros(1)
    is_first = True
    while flag.item() == 0:
        weights = torch.tanh(weights @ weights)
        dist.all_reduce(weights)
        flag = torch.tensor([float(HALT.is_set())])
        dist.all_reduce(flag)
        if is_first:
            say("placed")
            is_first = False
    HALT.clear()


def run_mismatch(culprit):
    """One rank calls another collective than the rest."""
    say("placed")
    if culprit == RANK:
        dist.all_gather([torch.ones(4096) for _ in range(dist.get_world_size())], torch.ones(4096))
    else:
        meet(torch.ones(4096))


def run_subgroup(culprit):
    """The culprit never comes (the test kills it), the others wait for it to join a new group."""
    say("placed")
    if culprit == RANK:
        signal.pause()
    dist.new_group()


def run_crossed():
    """Two groups of all ranks, in which one half meets in another order than the other."""
    say("placed")
    is_upper = dist.get_world_size() // 2 <= RANK
    order = reversed(GROUPS) if is_upper else GROUPS
    for group in order:
        dist.all_reduce(torch.ones(4096), group=group)


def hear(commands):
    with open(f"{FOLDER}/hear.{RANK}") as lines:
        for line in lines:
            if line.strip() == "halt":
                HALT.set()
            else:
                commands.put(line.split())


def main():
    signal.signal(signal.SIGUSR1, release)
    torch.set_num_threads(1)
    if LATE is not None:
        say(f"pid {os.getpid()}")
        if int(LATE) == RANK:
            load_tokenizer()
    dist.init_process_group("gloo")
    GROUPS.extend(dist.new_group() for _ in range(2))
    for group in (None, *GROUPS):
        dist.barrier(group)
    commands = queue.Queue()
    threading.Thread(target=hear, args=(commands,), name="control", daemon=True).start()
    say(f"pid {os.getpid()}")
    while True:
        name, culprit = commands.get()
        if name == "train":
            run_training()
        elif name == "mismatch":
            run_mismatch(int(culprit))
        elif name == "subgroup":
            run_subgroup(int(culprit))
        elif name == "crossed":
            run_crossed()
        else:
            run_fault(name, int(culprit))
        say("done")


main()
