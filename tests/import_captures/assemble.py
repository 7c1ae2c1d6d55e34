"""What both kinds of recording have in common: joining the kernel's threads with py-spy's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hangdoctor.collect.procfs import parse_stat
from hangdoctor.model import Capture, Gap, Host, Snapshot, Socket, Target, Thread, Tool
from tests.import_captures.procfs import Links, kernel_stack_of, syscall_of, wchan_of
from tests.import_captures.pyspy import PythonThread

HOST = "node0"
TOOL = Tool("0 (imported recording)", py_spy="0.4.3")


@dataclass(frozen=True, slots=True)
class KernelThread:
    """The saved files of one /proc/PID/task/TID."""

    stat: str
    wchan: str
    syscall: str
    schedstat: str | None = None
    kernel_stack: str = ""
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None


def threads_of(
    pid: int,
    kernel: Iterable[KernelThread],
    python: Sequence[PythonThread],
    links: Links,
    sockets: Sequence[Socket],
) -> tuple[Thread, ...]:
    """All threads, the main one first; a thread that only py-spy saw had started in between."""
    halves = [_kernel_half(thread, links, sockets) for thread in kernel]
    by_tid = {half.tid: half for half in halves}
    for seen in python:
        half = by_tid.get(seen.tid, Thread(tid=seen.tid))
        by_tid[seen.tid] = replace(
            half, name=seen.name, stack=seen.stack, owns_gil=seen.owns_gil, is_active_hint=seen.is_active
        )
    return tuple(sorted(by_tid.values(), key=lambda thread: (thread.tid != pid, thread.tid or 0)))


def _kernel_half(thread: KernelThread, links: Links, sockets: Sequence[Socket]) -> Thread:
    stat = parse_stat(thread.stat.encode())
    wchan = wchan_of(thread.wchan, stat.state)
    return Thread(
        tid=stat.pid,
        comm=stat.comm,
        state=stat.state,
        wchan=wchan,
        syscall=syscall_of(thread.syscall, wchan, links, sockets),
        kernel_stack=kernel_stack_of(thread.kernel_stack),
        user_ticks=stat.user_ticks,
        system_ticks=stat.system_ticks,
        run_ns=int(thread.schedstat.split()[0]) if thread.schedstat else None,
        voluntary_switches=thread.voluntary_switches,
        involuntary_switches=thread.involuntary_switches,
        minor_faults=stat.minor_faults,
        major_faults=stat.major_faults,
    )


def capture_of(root: int, snapshots: Sequence[Snapshot], *, cpu_count: int | None) -> Capture:
    """As if somebody had attached to ``root`` when the first look was taken."""
    start = next((p.start_ticks for p in snapshots[0].processes if p.pid == root), None)
    return Capture(
        tool=TOOL,
        target=Target(f"pid {root}", pid=root, start_ticks=start, root_pid=root),
        hosts=(
            Host(
                HOST,
                kernel="6.18",
                machine="x86_64",
                cpu_count=cpu_count,
                ticks_per_s=100,
                page_bytes=4096,
                access_tier="root",
            ),
        ),
        snapshots=tuple(snapshots),
        gaps=(
            Gap(
                "recording",
                HOST,
                "taken with other programs: no file positions, no memory of the target, blocking py-spy",
            ),
        ),
        origin="recording",
    )
