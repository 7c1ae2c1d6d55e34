"""Where evidence comes from, what it costs the target, and what its absence means: for `list` and `explain`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """A kind of evidence, by the name that gaps and evidence carry."""

    id: str
    reads: str
    tier: str
    """``default``, or the option that allows it."""
    without: str
    """What a diagnosis lacks without it."""
    aliases: tuple[str, ...] = ()
    """Other names that gaps carry."""


SOURCES = (
    Source("proc", "state, threads, system calls, CPU time, open files of every process, from /proc", "default",
           "Nothing can be said of a process that /proc hides. Run as the same user, or as root."),
    Source("stacks", "Python stacks, from the memory of the process, and by py-spy where hangdoctor's own reader fails",
           "default; stops it only with --allow-pause",
           "Without stacks a rank's phase is unknown, so the verdict is mostly `unknown`. `hangdoctor check PID`.",
           ("py-spy",)),
    Source("py-spy --native", "native frames; stops each process for 0.3 to 2 s", "--native",
           "What a thread does inside C or CUDA code is not named."),
    Source("environ", "NCCL_*, CUDA_*, TORCH_* and server variables, from the memory of the process", "default",
           "Differences between ranks stay unseen. /proc/PID/environ is no substitute: process titles overwrite it."),
    Source("locks", "who holds a lock that a thread waits for, from the memory of the process", "default",
           "A lock wait ends at the lock, not at its holder."),
    Source("flight-recorder", "PyTorch's record of collectives, from the memory of the process", "default",
           "Which rank is behind is judged by stacks only. TORCH_NCCL_TRACE_BUFFER_SIZE=2000 turns it on.",
           ("flight recorder",)),
    Source("sockets", "which process is at the other end of a connection", "default",
           "Waits for a peer end at the connection."),
    Source("pipes", "which process is at the other end of a pipe", "default",
           "Waits for a child or a parent end at the pipe."),
    Source("log", "the last lines of the log behind standard output, or of --log FILE", "default",
           "Progress that only the log shows is missed, and whether the server said that it was ready."),
    Source("nvml", "utilisation, power, memory and processes of each GPU, in a process of its own", "default",
           "A GPU that spins at idle watts is not told from one that computes.", ("gpu",)),
    Source("kernel log", "GPU errors and out-of-memory kills", "default, root",
           "Why a process vanished may stay unknown. `dmesg -T` as root shows it."),
    Source("ncclras", "which ranks NCCL misses and how far each communicator is", "--ras",
           "Ranks on other hosts are not seen. Querying has crashed jobs with NCCL 2.26 to 2.29, so it is optional.",
           ("ras",)),
    Source("cluster", "what other hosts of the job send when they are asked", "--hosts",
           "Ranks on that host are not seen, and waits for them end at the host. `hangdoctor check --hosts HOST`."),
    Source("world", "how many nodes and ranks there should be, from command lines, torchrun, Slurm and Kubernetes",
           "default", "Whether all of the job was looked at is not known. `hangdoctor attach --hosts` looks at more."),
    Source("parser", "dumps and logs given to `hangdoctor analyze`", "offline",
           "The lines that it names were skipped."),
    Source("strace", "system calls in a trace given to `hangdoctor analyze`", "offline",
           "What a thread of the trace waits for is not known."),
    Source("bundle", "a capture saved earlier", "offline", "What was damaged is lost; the rest was read."),
    Source("collect", "the run itself", "default", "The capture was cut short."),
)  # fmt: skip
"""Most important first."""


def explain_source(source: Source) -> str:
    """A paragraph on what it is and what its absence means."""
    return f"{source.id}: a source of evidence ({source.tier})\n\nReads {source.reads}.\n\nWithout it: {source.without}"
