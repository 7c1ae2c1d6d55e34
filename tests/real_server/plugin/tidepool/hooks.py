"""Puts the bugs into a worker's steps, when and where the test orders it.

TIDEPOOL_FOLDER holds what both sides share:

- ``order``, a file ``BUG RANK``: what the next step does, on which rank (``*``: on all);
- ``say``, a FIFO: ``placed BUG RANK`` right before the worker blocks, ``released BUG RANK`` once it goes on.

SIGUSR1 releases a blocked worker; its step then goes on as if nothing had been.

TIDEPOOL_USE_GLOO=1 makes all ranks use torch.distributed instead of vLLM's shared memory. TIDEPOOL_PORTS=N,M makes
rank 0 wait for its peers at port N and rank 1 at port M, which only differ on nodes that were configured differently.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidepool import pages


class Release(Exception):
    """Raised by SIGUSR1 in the main thread while a bug holds it."""


BUGS: dict[str, Callable[[Callable[[], None]], None]] = {
    "lock": lambda say: pages.PagePool().reserve_page(say),
    "sleep": pages.fetch_remote_page,
    "gil": pages.call_copy_engine,
    "nogil": pages.wait_copy_engine,
    "spin": pages.scan_free_list,
}


def register() -> None:
    """Called by vLLM in each of its processes; does something in workers only."""
    name = multiprocessing.current_process().name
    folder = os.environ.get("TIDEPOOL_FOLDER")
    if folder is None or not name.startswith("VllmWorker-"):
        return
    Hooks(Path(folder), int(name.rpartition("-")[2])).install()


class Hooks:
    """What one worker does at its steps."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._blocked_in = ""
        self._postponed: list[Callable[[], object]] = []

    def install(self) -> None:
        """Wrap the worker's step and one layer's forward pass."""
        from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
        from vllm.model_executor.models.llama import LlamaMLP
        from vllm.v1.worker.cpu_worker import CPUWorker

        signal.signal(signal.SIGUSR1, self._on_signal)
        for method in ("execute_model", "sample_tokens"):
            setattr(CPUWorker, method, self._around_step(method, getattr(CPUWorker, method)))
        setattr(LlamaMLP, "forward", self._around_layer(LlamaMLP.forward))  # noqa: B010
        if ports := os.environ.get("TIDEPOOL_PORTS"):
            CPUWorker.__init__ = self._at_port(ports.split(",")[self._rank], CPUWorker.__init__)
        if os.environ.get("TIDEPOOL_USE_GLOO"):
            setattr(CpuCommunicator, "_all_group_ranks_share_shm_group_name", lambda self: False)  # noqa: B010

    def _around_step(self, method: str, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def execute(worker: object, *args: object, **kwargs: object) -> Any:
            order = self._order()
            if order == "desync" or self._postponed:
                # The rank skips the step: it goes back to its queue while the others wait in the collective.
                if method == "execute_model":
                    self._say("placed desync")
                self._postponed.append(functools.partial(step, worker, *args, **kwargs))
                return None
            if method == "execute_model" and order == "compile":
                pages.build_pack_kernel(self._folder / "kernels", lambda: self._say("placed compile"))
            elif method == "execute_model" and order in BUGS:
                self._block(order, BUGS[order])
            return step(worker, *args, **kwargs)

        return execute

    def _at_port(self, port: str, create: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(create)
        def init(worker: object, *args: object, **kwargs: object) -> None:
            create(worker, *args, **{**kwargs, "distributed_init_method": f"tcp://127.0.0.1:{port}"})

        return init

    def _around_layer(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(layer: object, x: object) -> Any:
            if self._order() == "layer":
                self._block("layer", pages.fetch_remote_page)
            return forward(layer, x)

        return run

    def _block(self, bug: str, action: Callable[[Callable[[], None]], None]) -> None:
        self._blocked_in = bug
        try:
            action(lambda: self._say(f"placed {bug}"))
        except Release:
            self._say(f"released {bug}")
        finally:
            self._blocked_in = ""

    def _on_signal(self, number: int, frame: object) -> None:
        if self._blocked_in:
            raise Release
        if self._postponed:
            steps, self._postponed = self._postponed, []
            self._say("released desync")
            for step in steps:
                step()

    def _order(self) -> str:
        try:
            bug, rank = (self._folder / "order").read_text().split()
        except OSError:
            return ""
        return bug if rank in ("*", str(self._rank)) else ""

    def _say(self, words: str) -> None:
        with (self._folder / "say").open("w") as fifo:
            fifo.write(f"{words} {self._rank}\n")
