"""A training job over gloo that goes wrong when it is told to: ``training_job.py PANEL``, under torchrun.

For more ranks than GPUs. NCCL refuses two ranks of one communicator on one GPU, so what they exchange goes over gloo;
each computes on GPU ``LOCAL_RANK`` modulo their number, or on the CPU where there is none.

PANEL is as in faults/sitecustomize.py, only that an armed fault's content is the rank in which it strikes. Before
every step rank 0 tells all others what is armed, so that all of them are at the same step.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from endless_kernel import launch

WIDTH = 1024
IN_STEP = ("gpu_spin", "skip_reduce", "cross_groups")
"""What can be armed while the job runs; ``late_rank`` only before it starts."""


class Job:
    """One rank of it."""

    def __init__(self, panel: Path) -> None:
        self.panel = panel
        self.rank, count = int(os.environ["RANK"]), torch.cuda.device_count()
        self.device = f"cuda:{int(os.environ['LOCAL_RANK']) % count}" if count else "cpu"
        self.weights = torch.zeros(WIDTH, WIDTH, device=self.device)  # the GPU's context is made here

    def join(self) -> None:
        """Come to the rendezvous, unless this is the rank that must not."""
        if self._armed("late_rank") == self.rank:
            fetched = threading.Event()
            signal.signal(signal.SIGUSR2, lambda *_: fetched.set())
            self._strike("late_rank")
            fetch_dataset(fetched)
        dist.init_process_group("gloo")
        self.groups = [dist.new_group(), dist.new_group()]
        for group in self.groups:  # who is in a group is known from its first collective
            dist.all_reduce(torch.ones(8), group=group)

    def train(self) -> None:
        """Step by step until it is ended; PANEL/job.steps counts them."""
        step = 0
        while True:
            fault, victim = self._agree()
            self.train_step(fault, victim)
            step += 1
            if self.rank == 0:
                (self.panel / "job.steps").write_text(str(step))
            time.sleep(0.02)

    def train_step(self, fault: str, victim: int) -> None:
        is_mine = victim == self.rank
        loss = (self.weights @ self.weights).sum()
        if fault == "gpu_spin" and is_mine:
            self.spin()
        gradient = torch.full((WIDTH,), float(loss))
        if fault == "skip_reduce" and is_mine:
            self._strike(fault)
        else:
            self.reduce_gradient(gradient)
        if fault == "cross_groups":
            self.exchange_activations(victim)
        self.gather_metrics(gradient[:8])

    def reduce_gradient(self, gradient: torch.Tensor) -> None:
        dist.all_reduce(gradient)

    def gather_metrics(self, metrics: torch.Tensor) -> None:
        gathered = [torch.empty_like(metrics) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, metrics)

    def exchange_activations(self, first_of_upper: int) -> None:
        """The upper ranks use the two groups in the other order."""
        if self.rank == first_of_upper:
            self._strike("cross_groups")
        for group in reversed(self.groups) if self.rank >= first_of_upper else self.groups:
            dist.all_reduce(torch.ones(WIDTH), group=group)

    def spin(self) -> None:
        """A kernel that never ends, and the host waits for it."""
        end_kernel = launch()

        def release() -> None:
            with (self.panel / "gpu_spin.release").open() as fifo:
                fifo.read()
            end_kernel()

        threading.Thread(target=release, name="fault-release", daemon=True).start()
        self._strike("gpu_spin")
        torch.cuda.current_stream().synchronize()

    def _agree(self) -> tuple[str, int]:
        """What strikes in this step and in which rank, as rank 0 has read it."""
        told = torch.tensor([-1, -1])
        if self.rank == 0:
            armed = ((number, self._armed(fault)) for number, fault in enumerate(IN_STEP))
            told = torch.tensor(next(((n, rank) for n, rank in armed if rank is not None), (-1, -1)))
        dist.broadcast(told, src=0)
        number, victim = told.tolist()
        if number < 0:
            return "", -1
        if self.rank == 0:
            (self.panel / IN_STEP[number]).unlink()
        return IN_STEP[number], victim

    def _armed(self, fault: str) -> int | None:
        try:
            return int((self.panel / fault).read_text())
        except (OSError, ValueError):  # not there, or just being written
            return None

    def _strike(self, fault: str) -> None:
        part = self.panel / f"{fault}.part"
        part.write_text(f"{os.getpid()} {time.time()}\n")
        part.replace(self.panel / f"{fault}.reached")


def fetch_dataset(fetched: threading.Event) -> None:
    fetched.wait()


def main() -> None:
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    job = Job(Path(sys.argv[1]))
    job.join()
    job.train()


if __name__ == "__main__":
    main()
