"""The nouns of a capture: what was seen, on which thread of which process, and how.

Nothing here touches the machine and nothing here interprets. A value that could not be read is ``None``
(never 0, -1 or ""), and the reason stands in a :class:`Gap`. Units are in the names. Identity of a process
is ``(host, pid, start_ticks)``: pids are reused.

Everything is frozen and slotted; sequences are tuples. The shapes are what the bundle stores, so a field may
be added with a default (minor format change) but not renamed or retyped (major).
"""

from __future__ import annotations

from hangdoctor.model.captures import (
    Capture,
    FileLock,
    Gap,
    Host,
    HostLoad,
    LogMessage,
    LogTail,
    Snapshot,
    Target,
    Tool,
)
from hangdoctor.model.gpus import (
    Gpu,
    GpuError,
    GpuProcess,
    RasAnswer,
    RasCommunicator,
    RasCount,
    RasRank,
)
from hangdoctor.model.processes import (
    FlightEntry,
    IoCounters,
    MappedFile,
    OpenFile,
    Process,
    Rank,
    Socket,
)
from hangdoctor.model.stacks import (
    Activity,
    Frame,
    LockWait,
    Method,
    SpinSample,
    Stack,
    Syscall,
    Thread,
)

__all__ = [
    "Activity",
    "Capture",
    "FileLock",
    "FlightEntry",
    "Frame",
    "Gap",
    "Gpu",
    "GpuError",
    "GpuProcess",
    "Host",
    "HostLoad",
    "IoCounters",
    "LockWait",
    "LogMessage",
    "LogTail",
    "MappedFile",
    "Method",
    "OpenFile",
    "Process",
    "Rank",
    "RasAnswer",
    "RasCommunicator",
    "RasCount",
    "RasRank",
    "Snapshot",
    "Socket",
    "SpinSample",
    "Stack",
    "Syscall",
    "Target",
    "Thread",
    "Tool",
]
