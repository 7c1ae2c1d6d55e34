"""Faults planted in a real SGLang, armed and released from outside while it runs.

Python imports ``sitecustomize`` in every process that has this folder on PYTHONPATH. Nothing happens without
HD_FAULTS. That folder is the control panel:

    <fault>            the fault is armed; the content is its parameter
    <fault>.reached    written here once the victim is in its state
    <fault>.release    a FIFO; the victim goes on when somebody opens it for writing (``nccl_init``: on SIGUSR2)

Only tensor-parallel rank 1 is hit. What a fault does is ordinary code of the kind that hangs servers: a lock taken
twice, an event nobody sets, a kernel that waits for a flag. Function names say what a server would call it, because
they are what the stack shows.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
import threading
import time
from pathlib import Path

PANEL = os.environ.get("HD_FAULTS", "")
VICTIM = os.environ.get("HD_FAULTS_RANK", "TP1")


def is_victim() -> bool:
    import setproctitle

    return VICTIM in setproctitle.getproctitle()


def parameter(fault: str) -> str | None:
    """The content of the armed fault's file, or ``None`` when it is not armed here."""
    try:
        with open(os.path.join(PANEL, fault)) as panel:
            text = panel.read().strip()
    except OSError:
        return None
    return text if is_victim() else None


def reached(fault: str) -> None:
    with open(os.path.join(PANEL, f"{fault}.reached"), "w") as panel:
        panel.write(f"{os.getpid()} {time.time()}\n")


def disarm(fault: str) -> None:
    Path(PANEL, fault).unlink()


def wait_for_release(fault: str) -> None:
    with open(os.path.join(PANEL, f"{fault}.release")) as fifo:
        fifo.read()


def release_later(fault: str, action) -> None:
    def release() -> None:
        wait_for_release(fault)
        action()

    threading.Thread(target=release, name="fault-release", daemon=True).start()


# The faults. Each takes (self, args, kwargs) of the call it replaces and returns whether that call is skipped.


def nccl_init(*_) -> bool:
    """The rank never comes to ncclCommInitRank: it waits for an event of its own, which only a signal sets.

    A helper thread that waits for the FIFO would be somebody who may yet set the event.
    """
    licensed = threading.Event()
    signal.signal(signal.SIGUSR2, lambda *_: licensed.set())
    disarm("nccl_init")
    reached("nccl_init")
    check_license(licensed)
    return False


def check_license(licensed) -> None:
    licensed.wait()


def slow_dequant(_, args, __) -> bool:
    """A CPU dequantization of so many seconds for every linear layer."""
    seconds = float(parameter("slow_dequant") or 3)
    reached("slow_dequant")
    dequantize_int4_weights(args[0], seconds)
    return False


def dequantize_int4_weights(layer, seconds: float) -> None:
    import torch

    packed = torch.randint(0, 15, (2048, 2048), dtype=torch.int32)
    scales = torch.rand(2048, 1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        layer._dequantized = ((packed.to(torch.float32) - 8) * scales).to(torch.bfloat16)


def kv_alloc(*_) -> bool:
    """The pool's lock is taken twice by the same thread."""
    lock = threading.Lock()
    lock.acquire()
    release_later("kv_alloc", lock.release)
    disarm("kv_alloc")
    reached("kv_alloc")
    reserve_pool(lock)
    return False


def reserve_pool(lock) -> None:
    lock.acquire()


def lock_forward(*_) -> bool:
    """Another thread of the rank keeps the metrics lock that the forward step needs."""
    lock, held = threading.RLock(), threading.Event()

    def flush_metrics() -> None:
        with lock:
            held.set()
            wait_for_release("lock_forward")

    threading.Thread(target=flush_metrics, name="metrics-flusher", daemon=True).start()
    held.wait()
    disarm("lock_forward")
    reached("lock_forward")
    observe_batch(lock)
    return False


def observe_batch(lock) -> None:
    with lock:
        pass


def lock_cycle(*_) -> bool:
    """Two threads take two locks in opposite order; nobody can end this."""
    metrics, cache = threading.RLock(), threading.RLock()
    both = threading.Barrier(2)

    def evict_cache() -> None:
        with cache:
            both.wait()
            with metrics:
                pass

    threading.Thread(target=evict_cache, name="cache-evictor", daemon=True).start()
    with metrics:
        both.wait()
        disarm("lock_cycle")
        reached("lock_cycle")
        with cache:
            pass
    return False


def gpu_spin(*_) -> bool:
    """A kernel that waits for a flag in host memory; parameter ``sync``: the host waits for it at once."""
    import torch
    from endless_kernel import launch

    how = parameter("gpu_spin")
    release_later("gpu_spin", launch())
    disarm("gpu_spin")
    reached("gpu_spin")
    if how == "sync":
        torch.cuda.current_stream().synchronize()
    return False


skipped = 0


def skip_allreduce(_, args, __) -> bool:
    """This rank leaves out so many all-reduces of the forward pass."""
    global skipped
    wanted = int(parameter("skip_allreduce") or 1)
    if not args[0].is_cuda:
        return False
    skipped += 1
    if skipped >= wanted:
        disarm("skip_allreduce")
        reached("skip_allreduce")
    return True


PLACES = {
    "sglang.srt.distributed.device_communicators.pynccl": ("PyNcclCommunicator", "__init__", (nccl_init,)),
    "sglang.srt.layers.quantization.unquant": (
        "UnquantizedLinearMethod",
        "process_weights_after_loading",
        (slow_dequant,),
    ),
    "sglang.srt.mem_cache.memory_pool": ("MHATokenToKVPool", "_create_buffers", (kv_alloc,)),
    "sglang.srt.managers.scheduler": ("Scheduler", "run_batch", (lock_forward, lock_cycle)),
    "sglang.srt.model_executor.model_runner": ("ModelRunner", "forward", (gpu_spin,)),
    "sglang.srt.distributed.parallel_state": ("GroupCoordinator", "all_reduce", (skip_allreduce,)),
}
"""Module: class, method and the faults that strike when it is called (SGLang 0.5.12)."""


def plant(module) -> None:
    class_name, method, faults = PLACES[module.__name__]
    owner = getattr(module, class_name)
    original = getattr(owner, method)

    def hooked(self, *args, **kwargs):
        import torch

        if torch.compiler.is_compiling():  # a traced function may not open files
            return original(self, *args, **kwargs)
        for fault in faults:
            if parameter(fault.__name__) is not None and fault(self, args, kwargs):
                return args[0]
        return original(self, *args, **kwargs)

    hooked.__name__, hooked.__qualname__ = original.__name__, original.__qualname__
    setattr(owner, method, hooked)


class Loader(importlib.abc.Loader):
    def __init__(self, inner) -> None:
        self.inner = inner

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module) -> None:
        self.inner.exec_module(module)
        plant(module)

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in PLACES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = Loader(spec.loader)
        return spec


if PANEL:
    sys.meta_path.insert(0, Finder())
