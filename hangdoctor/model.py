"""The nouns of a capture: what was seen, on which thread of which process, and how.

Nothing here touches the machine and nothing here interprets. A value that could not be read is ``None``
(never 0, -1 or ""), and the reason stands in a :class:`Gap`. Units are in the names. Identity of a process
is ``(host, pid, start_ticks)``: pids are reused.

Everything is frozen and slotted; sequences are tuples. The shapes are what the bundle stores, so a field may
be added with a default (minor format change) but not renamed or retyped (major).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Method(str, Enum):
    """How a stack was obtained; part of the datum, because trust depends on it."""

    PY_SPY_NONBLOCKING = "py-spy --nonblocking"
    PY_SPY_BLOCKING = "py-spy"
    PY_SPY_NATIVE = "py-spy --native"
    REMOTE_DEBUGGING = "_remote_debugging"
    PYSTACK = "pystack"
    GDB = "gdb"
    FAULTHANDLER = "faulthandler"
    TRACEBACK = "traceback"
    FLIGHT_RECORDER = "flight-recorder"
    PASTED = "pasted text"
    OTHER = "other"
    """A method that this release does not know, in a bundle from a newer one."""


class Activity(str, Enum):
    """What a thread is doing, as far as one look can tell (DESIGN.md section 5)."""

    WAIT_LOCK = "waits for a lock"
    WAIT_EVENT = "waits to be notified"
    """A Condition, an Event: nobody holds it, somebody has to set it."""
    WAIT_PEER = "waits for a peer process"
    WAIT_COLLECTIVE = "waits in a collective"
    WAIT_GPU = "waits for the GPU"
    WAIT_IO = "waits for input or output"
    WAIT_CHILD = "waits for a child process"
    WAIT_WORK = "waits for work"
    TIMED_SLEEP = "sleeps"
    SPIN = "spins"
    RUN = "runs"
    UNINTERRUPTIBLE = "is in an uninterruptible wait"
    STOPPED = "is stopped"
    BLOCKED = "is blocked"
    """In a system call or lock that could not be named more closely."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One call. ``function`` is qualified where the source knows it (``Event.wait``), bare otherwise."""

    function: str
    file: str
    line: int | None = None
    module: str | None = None
    """Shared library of a native frame."""
    is_native: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """Frames, innermost first, and how they were obtained."""

    frames: tuple[Frame, ...]
    method: Method
    is_torn: bool = False
    """The stack does not end in a root frame, so it changed while it was read: the thread runs."""


@dataclass(frozen=True, slots=True)
class Syscall:
    """The system call a thread sits in, decoded as far as its pointers could be followed."""

    name: str
    """``futex``, ``epoll_wait`` …; ``running`` when on a CPU; ``page-fault`` when blocked outside a call."""
    args: tuple[int, ...] = ()
    fd: int | None = None
    target: str | None = None
    """What ``fd`` is: a path, ``pipe:[ino]``, ``TCP a:p <-> b:q``, ``eventfd``, a pid …"""
    timeout_s: float | None = None
    """Remaining or full time-out in seconds; ``None`` with ``is_timed=False`` means for ever."""
    is_timed: bool | None = None
    detail: str | None = None
    """The call as one readable clause: ``futex wait, private, no timeout``."""
    fds: tuple[int, ...] = ()
    """All descriptors it waits for: the set of a poll, select or epoll, else just ``fd``."""


@dataclass(frozen=True, slots=True)
class LockWait:
    """The lock a thread waits for, read from the target's memory, and who holds it where that is recorded."""

    kind: str
    """``mutex``, ``rwlock``, ``threading.Lock``, ``threading.RLock``, ``gil``, ``mp.Lock``, ``thread.join``;
    without an owner by nature: ``condition``, ``semaphore``, ``mp.Semaphore``."""
    address: int
    owner_tid: int | None = None
    owner_pid: int | None = None
    owner_how: str | None = None
    """``recorded`` (the lock stores it), ``value-stack`` (a ``with`` block holds it), ``possible``."""
    is_shared: bool = False
    is_orphaned: bool = False
    """Locked, and the owner it records is no thread of this process: copied by fork while it was held, or its
    holder ended."""


@dataclass(frozen=True, slots=True)
class Thread:
    """One OS thread: the kernel's view and, where there is one, Python's."""

    tid: int | None
    """Host numbering; ``None`` in foreign dumps that print none."""
    name: str | None = None
    """Python's name (``MainThread``)."""
    comm: str | None = None
    state: str | None = None
    """The kernel's letter: R S D T t Z X I P."""
    stack: Stack | None = None
    owns_gil: bool | None = None
    wchan: str | None = None
    syscall: Syscall | None = None
    kernel_stack: tuple[str, ...] = ()
    user_ticks: int | None = None
    system_ticks: int | None = None
    run_ns: int | None = None
    """Time on a CPU so far (schedstat)."""
    runnable_ns: int | None = None
    """Time spent ready to run but without a CPU: a starved thread is not a resting one."""
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    last_ran_s: float | None = None
    """Seconds since the thread was last on a CPU, at the time of the look."""
    minor_faults: int | None = None
    major_faults: int | None = None
    lock: LockWait | None = None
    spin: SpinSample | None = None
    is_active_hint: bool | None = None
    """py-spy's ``active``: noise, kept for foreign dumps where nothing better exists."""


@dataclass(frozen=True, slots=True)
class SpinSample:
    """How often sampled user registers repeat: a tight spin repeats the same few vectors."""

    samples: int
    recurrence: float
    """0..1, share of samples whose register vector was seen before."""


@dataclass(frozen=True, slots=True)
class IoCounters:
    """/proc/PID/io, in bytes and calls since the start of the process."""

    read_chars: int
    write_chars: int
    read_bytes: int
    write_bytes: int
    read_calls: int | None = None
    write_calls: int | None = None


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file descriptor that matters: a regular file, a pipe, an eventfd, a device. (Sockets are apart.)"""

    fd: int
    target: str
    kind: str
    """``file``, ``pipe``, ``eventfd``, ``device``, ``pidfd``, ``other``."""
    position: int | None = None
    size_bytes: int | None = None
    access: str | None = None
    """``r``, ``w`` or ``rw``."""
    inode: int | None = None
    other_end: tuple[int, ...] = ()
    """Pids that hold the other end of a pipe, or the process a pidfd stands for."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A large data file in the address space (weights), with the share that is in memory."""

    path: str
    size_bytes: int | None
    resident_bytes: int | None
    mapped_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Socket:
    """One socket of a process and who is at the other end."""

    fd: int
    family: str
    """``tcp``, ``tcp6``, ``unix``."""
    state: str | None = None
    local: str | None = None
    """``host:port`` or a path."""
    remote: str | None = None
    receive_queue_bytes: int | None = None
    send_queue_bytes: int | None = None
    inode: int | None = None
    peers: tuple[int, ...] = ()
    """Pids on this host that hold the other end; empty for a remote peer."""
    bytes_received: int | None = None
    bytes_sent: int | None = None


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """One collective from PyTorch's Flight Recorder: a group's newest, or one still pending."""

    group: str
    op: str
    sequence: int | None
    state: str | None = None
    """``scheduled``, ``started``, ``completed``; for gloo ``pending`` or ``retired``."""
    age_s: float | None = None
    group_description: str | None = None
    p2p_sequence: int | None = None
    input_sizes: str | None = None
    output_sizes: str | None = None
    dtype: str | None = None
    timeout_s: float | None = None
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one look."""

    pid: int
    start_ticks: int | None = None
    host: str | None = None
    ppid: int | None = None
    session: int | None = None
    uid: int | None = None
    ns_pid: int | None = None
    """Its pid inside its own PID namespace, when that differs."""
    state: str | None = None
    comm: str | None = None
    command: tuple[str, ...] = ()
    """argv, or the title that setproctitle left (one element)."""
    exe: str | None = None
    cwd: str | None = None
    started_at: float | None = None
    """Unix time."""
    exit_code: int | None = None
    tracer_pid: int | None = None
    threads: tuple[Thread, ...] = ()
    thread_count: int | None = None
    taken_at: float | None = None
    """Unix time of this process' look (of its stacks, where there are any)."""
    rss_bytes: int | None = None
    minor_faults: int | None = None
    major_faults: int | None = None
    user_ticks: int | None = None
    system_ticks: int | None = None
    io: IoCounters | None = None
    files: tuple[OpenFile, ...] = ()
    mapped: tuple[MappedFile, ...] = ()
    sockets: tuple[Socket, ...] = ()
    environ: Mapping[str, str] | None = None
    """Allow-listed variables only."""
    environ_source: str | None = None
    """``memory`` (live), ``/proc`` (as at exec), ``dump``."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """``python``, ``torch``, ``nccl``, ``cuda`` … as really loaded."""
    flight: tuple[FlightEntry, ...] = ()
    rank_hint: str | None = None
    """What a foreign dump called this process (``rank 3``, ``TP1``), verbatim."""

    @property
    def known_pid(self) -> int | None:
        """The pid; ``None`` where a foreign dump gave none (those are numbered -1, -2 … to tell them apart)."""
        return self.pid if self.pid > 0 else None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process as the driver sees it on one GPU."""

    pid: int
    memory_bytes: int | None = None
    sm_percent: float | None = None
    how: str = "driver"
    """Who says so: ``driver``, or ``device files`` where the driver numbers pids of another namespace."""


@dataclass(frozen=True, slots=True)
class GpuError:
    """An error the driver logged for one GPU (NVIDIA: an Xid)."""

    code: int
    text: str
    age_s: float | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator at one look, through NVML (or amdsmi)."""

    index: int
    name: str | None = None
    uuid: str | None = None
    utilization_percent: float | None = None
    memory_utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    pcie_tx_bytes_s: int | None = None
    pcie_rx_bytes_s: int | None = None
    nvlink_tx_bytes: int | None = None
    nvlink_rx_bytes: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    uncorrected_ecc: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    host: str | None = None
    vendor: str | None = None
    """``nvidia`` or ``amd``."""
    driver_version: str | None = None
    pci_bus_id: str | None = None
    minor: int | None = None
    """N of /dev/nvidiaN; differs from ``index`` where a container sees only some GPUs."""
    memory_clock_mhz: int | None = None
    is_mig: bool | None = None
    """Cut into MIG instances: the whole-GPU readings then say nothing about one job."""
    sm_occupancy_percent: float | None = None
    """GPM (Hopper and newer): warps resident on the multiprocessors, share of the maximum."""
    tensor_percent: float | None = None
    dram_percent: float | None = None
    """GPM: share of the memory bandwidth in use."""
    errors: tuple[GpuError, ...] = ()


@dataclass(frozen=True, slots=True)
class RasRank:
    """One rank of a communicator as NCCL's RAS service lists it."""

    rank: int
    host: str | None = None
    pid: int | None = None
    """The rank's own getpid(): its number inside its PID namespace."""
    gpu: str | None = None
    """NVML index, or CUDA index and NVML index where they differ, as RAS prints them."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Operations launched so far by kind (``AllReduce``); launched, not finished."""
    status: str | None = None
    """``RUNNING``, ``INIT``, ``FINALIZE``, ``ABORT`` or what the error text says."""
    is_unresponsive: bool | None = None
    is_dead: bool | None = None


@dataclass(frozen=True, slots=True)
class RasCount:
    """So many ranks of a communicator have launched so many operations of a kind (RAS prints no more)."""

    operation: str
    launched: int
    rank_count: int
    ranks: tuple[int, ...] = ()
    """Only those it names; never read "named" as "guilty"."""


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """One NCCL communicator."""

    id: str
    size: int | None = None
    ranks: tuple[RasRank, ...] = ()
    missing: tuple[RasRank, ...] = ()
    missing_count: int = 0
    counts: tuple[RasCount, ...] = ()
    """Text answers only; JSON gives the counts of each rank."""
    status: str | None = None
    problems: tuple[str, ...] = ()
    """``MISMATCH``, ``INCOMPLETE``, ``ERROR``."""


@dataclass(frozen=True, slots=True)
class RasAnswer:
    """What the RAS service of an NCCL job said of all its communicators."""

    address: str
    nccl_version: str | None
    communicators: tuple[RasCommunicator, ...]
    is_partial: bool = False
    """The service stopped in the middle of its answer; what had arrived is kept."""
    format: str = "json"
    lost: tuple[RasRank, ...] = ()
    """Processes (rank -1) that gave no communicator data; ``is_dead`` where RAS has given them up."""
    dead_count: int = 0
    timeouts: int = 0
    """Peers that did not answer the service in time."""
    took_s: float | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileLock:
    """A line of /proc/locks that concerns the target, or an existing lock file found by path."""

    kind: str
    """``flock``, ``posix``, ``ofd``, ``existence`` (a file that is the lock)."""
    path: str | None
    holder: int | None
    waiters: tuple[int, ...] = ()
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of a log file behind fd 1 or 2 of a target, or given with ``--log``."""

    path: str
    size_bytes: int | None
    modified_at: float | None
    lines: tuple[str, ...]
    """The last lines, redacted, oldest first."""
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HostLoad:
    """How busy the host is: a starved target looks stuck."""

    load1: float | None = None
    cpu_pressure_percent: float | None = None
    io_pressure_percent: float | None = None
    memory_pressure_percent: float | None = None
    memory_available_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that could not be seen. A gap is evidence, not a log line."""

    source: str
    """The collector or parser: ``py-spy``, ``proc``, ``nvml`` …"""
    subject: str
    """``pid 4711``, ``host node3``, ``line 17`` …"""
    reason: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at everything."""

    taken_at: float | None
    """Unix time at which the look began; ``None`` in dumps without a clock."""
    processes: tuple[Process, ...]
    duration_s: float | None = None
    gpus: tuple[Gpu, ...] = ()
    file_locks: tuple[FileLock, ...] = ()
    logs: tuple[LogTail, ...] = ()
    load: HostLoad | None = None
    gaps: tuple[Gap, ...] = ()
    paused_s: float | None = None
    """Longest time any one target was stopped by this look; 0.0 for the default tier."""
    messages: tuple[LogMessage, ...] = ()
    ras: tuple[RasAnswer, ...] = ()
    """NCCL's own view of its communicators; only where ``--ras`` asked for it."""


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A line of a server log that the parsers of foreign dumps recognised (watchdog, NCCL, ready …)."""

    kind: str
    text: str
    process: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    line_number: int | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """The machine a capture was taken on."""

    name: str
    kernel: str | None = None
    boot_id: str | None = None
    machine: str | None = None
    cpu_count: int | None = None
    ticks_per_s: int | None = None
    page_bytes: int | None = None
    access_tier: str | None = None
    """``none-attach``, ``attach``, ``root``: what the collectors were allowed to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the user asked for, and the root of the tree it led to."""

    asked: str
    """``pid 4711``, ``--name vllm``, a file name …"""
    pid: int | None = None
    start_ticks: int | None = None
    root_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """Who took the capture."""

    version: str
    knowledge: str | None = None
    py_spy: str | None = None


@dataclass(frozen=True, slots=True)
class Capture:
    """Several looks at one job, complete enough to diagnose it anywhere."""

    tool: Tool
    target: Target
    hosts: tuple[Host, ...]
    snapshots: tuple[Snapshot, ...]
    gaps: tuple[Gap, ...] = ()
    origin: str = "live"
    """``live``, or the format a foreign dump was read from."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A member of the world. Coordinates that are unknown or of size 1 are ``None``."""

    global_rank: int | None = None
    local: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    host: str | None = None
    text: str | None = None
    """The name a foreign dump or an unusual title gave it, when no number could be read."""
    cp: int | None = None
    """Context-parallel coordinate (PCP in vLLM, ATTN_CP in SGLang)."""

    @property
    def label(self) -> str:
        """``DP0 PP1 TP3`` as the servers write it, else ``rank 5``, else the verbatim name."""
        parts = [
            f"{name}{value}"
            for name, value in (
                ("DP", self.dp),
                ("PP", self.pp),
                ("CP", self.cp),
                ("TP", self.tp),
                ("EP", self.ep),
            )
            if value is not None
        ]
        if parts:
            return " ".join(parts)
        if self.global_rank is not None:
            return f"rank {self.global_rank}"
        if self.local is not None:
            return f"local rank {self.local}"
        return self.text or "rank ?"
