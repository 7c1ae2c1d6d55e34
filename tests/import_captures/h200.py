"""Recordings of SGLang on two H200s: one compressed JSON file a look."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from hangdoctor.collect.procfs import parse_stat
from hangdoctor.model import Capture, Gap, Gpu, GpuProcess, LogTail, Process, Snapshot
from tests.import_captures import logs, procfs, pyspy
from tests.import_captures.assemble import HOST, KernelThread, capture_of, threads_of
from tests.import_captures.procfs import Links

_PYTHON = re.compile(r"python|sglang")
_LOG = re.compile(r"/root/out/\w+\.log")
"""The file is named after what was done to the server."""


class _Task(TypedDict):
    stat: str
    wchan: str
    syscall: str
    schedstat: str
    stack: str
    ctxt: Sequence[str]


class _ProcessRecord(TypedDict, total=False):
    pid: int
    t: float
    comm: str
    cmdline: str
    stat: str
    io: str
    status: Mapping[str, str]
    env: Sequence[str]
    threads: Mapping[str, _Task]
    fds: Mapping[str, str]
    pyspy: Sequence[pyspy.JsonThread] | None
    pyspy_err: str


class _GpuRecord(TypedDict):
    gpu: float
    memutil: float
    mem: int
    power_mw: int
    sm: int
    pcie_tx: int
    pcie_rx: int
    procs: Sequence[tuple[int, int]]
    procutil: Sequence[tuple[int, int, int]]


class _LookRecord(TypedDict):
    t: float
    root: int
    procs: Sequence[_ProcessRecord]
    gpu: Sequence[_GpuRecord]


def load(paths: Sequence[Path], log: Path) -> Capture:
    """Read the looks in ``paths`` as one capture; ``log`` is the server's log as it was at the end."""
    text = log.read_text(errors="backslashreplace")
    records: list[_LookRecord] = [json.loads(gzip.decompress(path.read_bytes())) for path in paths]
    snapshots = [_snapshot(record, text) for record in records]
    return capture_of(records[0]["root"], snapshots, cpu_count=None)


def _snapshot(record: _LookRecord, log: str) -> Snapshot:
    began = min(process["t"] for process in record["procs"])
    all_links = [_links(process) for process in record["procs"]]
    holders = procfs.pipe_holders(all_links)
    processes = tuple(
        _process(process, links, holders) for process, links in zip(record["procs"], all_links, strict=True)
    )
    return Snapshot(
        taken_at=began,
        processes=processes,
        duration_s=record["t"] - began,
        gpus=tuple(_gpu(index, gpu) for index, gpu in enumerate(record["gpu"])),
        file_locks=procfs.file_locks(processes),
        logs=_logs(log, began, processes),
        gaps=(
            Gap("sockets", f"host {HOST}", "the socket table was not recorded"),
            *(_unread(process) for process in record["procs"] if _is_unread(process)),
        ),
    )


def _links(record: _ProcessRecord) -> Links:
    targets = {int(fd): _LOG.sub("/root/out/server.log", link) for fd, link in record["fds"].items()}
    return Links(record["pid"], targets)


def _process(record: _ProcessRecord, links: Links, holders: Mapping[int, list[int]]) -> Process:
    stat = parse_stat(record["stat"].encode())
    status = record["status"]
    python = pyspy.from_json(record.get("pyspy") or ())
    environ = procfs.environ_of(record["env"])
    rss = status.get("VmRSS", "").split()
    return Process(
        pid=stat.pid,
        start_ticks=stat.start_ticks,
        host=HOST,
        ppid=stat.ppid,
        session=stat.session,
        uid=0,
        state=stat.state,
        comm=stat.comm,
        command=_command(record["cmdline"]),
        threads=threads_of(stat.pid, [_task(task) for task in record["threads"].values()], python, links, ()),
        thread_count=stat.thread_count,
        taken_at=record["t"],
        rss_bytes=int(rss[0]) * 1024 if rss else None,
        minor_faults=stat.minor_faults,
        major_faults=stat.major_faults,
        user_ticks=stat.user_ticks,
        system_ticks=stat.system_ticks,
        exit_code=procfs.exit_code_of(stat),
        io=procfs.io_of(record["io"]),
        files=procfs.open_files(links, holders),
        environ=environ or None,
        environ_source="/proc" if environ else None,
    )


def _task(task: _Task) -> KernelThread:
    counts = [int(line.split()[-1]) for line in task["ctxt"]]
    return KernelThread(
        stat=task["stat"],
        wchan=task["wchan"],
        syscall=task["syscall"],
        schedstat=task["schedstat"],
        kernel_stack=task["stack"],
        voluntary_switches=counts[0] if counts else None,
        involuntary_switches=counts[1] if counts else None,
    )


def _command(recorded: str) -> tuple[str, ...]:
    """The recorder turned the NULs between arguments into blanks; the argument of ``-c`` holds blanks itself."""
    line = recorded.rstrip()
    if "::" in line.split(" ")[0]:
        return (line,)
    head, dash_c, script = line.partition(" -c ")
    if not dash_c:
        return tuple(line.split())
    tail = [word for word in script.split() if word == "--multiprocessing-fork"]
    script = script.removeprefix("-- ").removesuffix(" --multiprocessing-fork")
    return (*head.split(), "-c", script, *tail)


def _is_unread(record: _ProcessRecord) -> bool:
    return record.get("pyspy") is None and _PYTHON.search(record["comm"]) is not None


def _unread(record: _ProcessRecord) -> Gap:
    is_stopped = record["status"]["State"].startswith("T")
    reason = "it is stopped: blocking py-spy cannot read it" if is_stopped else "py-spy could not read it"
    return Gap(
        "py-spy", f"pid {record['pid']}", reason, f"kill -CONT {record['pid']}" if is_stopped else None
    )


def _gpu(index: int, record: _GpuRecord) -> Gpu:
    # NVML found no samples: the recorder wrote down the error instead of three numbers
    sm = {row[0]: row[1] for row in record["procutil"] if len(row) == 3}
    return Gpu(
        index=index,
        name="NVIDIA H200",
        utilization_percent=float(record["gpu"]),
        memory_utilization_percent=float(record["memutil"]),
        memory_used_bytes=record["mem"],
        power_w=record["power_mw"] / 1000,
        sm_clock_mhz=record["sm"],
        pcie_tx_bytes_s=record["pcie_tx"] * 1000,
        pcie_rx_bytes_s=record["pcie_rx"] * 1000,
        processes=tuple(
            GpuProcess(pid, memory, float(sm[pid]) if pid in sm else None) for pid, memory in record["procs"]
        ),
        host=HOST,
    )


def _logs(log: str, moment: float, processes: Sequence[Process]) -> tuple[LogTail, ...]:
    writers = {
        process.pid: file.target
        for process in processes
        for file in process.files
        if file.fd in (1, 2) and file.target.endswith("/server.log")
    }
    if not writers:
        return ()
    text = logs.as_of(log, moment)
    path = next(iter(writers.values()))
    return (LogTail(path, len(text.encode()), None, logs.tail(text), tuple(sorted(writers))),)
