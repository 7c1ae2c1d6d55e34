"""Recordings of vLLM and SGLang on CPU: a tarball with t0/ and t1/, and in each a folder for every process."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hangdoctor.collect.procfs import parse_stat, parse_status
from hangdoctor.model import Capture, Gap, LogTail, Process, Snapshot, Socket
from tests.import_captures import logs, procfs, pyspy, sockets
from tests.import_captures.assemble import HOST, KernelThread, capture_of, threads_of
from tests.import_captures.procfs import Links

_LINK = re.compile(r"(\d+) -> (.*)")


@dataclass(frozen=True, slots=True)
class _Look:
    """The files of one look; ``stage`` is replaced in every text because it tells the answer."""

    files: Mapping[str, bytes]
    stage: str

    def text(self, path: str) -> str:
        """Empty when it was not saved."""
        return self.files.get(path, b"").decode("utf-8", "backslashreplace").replace(self.stage, "server")

    def folders(self) -> Iterator[tuple[int, str]]:
        """Pid and folder of every process, as they were listed."""
        names = {path.split("/")[0] for path in self.files if re.match(r"\d+-[^/]*/", path)}
        yield from sorted((int(name.split("-")[0]), name) for name in names)


def load(archive: Path) -> Capture:
    """Read one stage."""
    stage = archive.name.removesuffix(".tar.gz")
    looks = [_Look(files, stage) for files in _read(archive)]
    snapshots = [_snapshot(look) for look in looks]
    return capture_of(_root(snapshots[0]), snapshots, cpu_count=2)


def _read(archive: Path) -> list[dict[str, bytes]]:
    files: dict[str, bytes] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None:
                files[member.name.removeprefix("./")] = content.read()
    # One stage was packed twice, inside itself.
    base = min((name for name in files if name.endswith("t0/meta.json")), key=len)
    prefixes = [base.replace("t0/meta.json", f"{look}/") for look in ("t0", "t1")]
    return [
        {name.removeprefix(prefix): data for name, data in files.items() if name.startswith(prefix)}
        for prefix in prefixes
    ]


def _root(snapshot: Snapshot) -> int:
    pids = {process.pid for process in snapshot.processes}
    heads = [process for process in snapshot.processes if process.ppid not in pids and process.ppid != 1]
    return min(heads, key=lambda process: (process.start_ticks or 0, process.pid)).pid


def _snapshot(look: _Look) -> Snapshot:
    meta = json.loads(look.files["meta.json"])
    taken_at = float(meta["start"])
    ages = _ages(look.text("ps-tree.txt"))
    by_pid = sockets.read(look.text("ss-tnp.txt"), look.text("ss-xp.txt"))
    all_links = [_links(look, pid, folder) for pid, folder in look.folders()]
    holders = procfs.pipe_holders(all_links)
    processes, gaps = [], []
    for links, (pid, folder) in zip(all_links, look.folders(), strict=True):
        if not look.text(f"{folder}/stat").startswith(f"{pid} "):
            gaps.append(Gap("proc", f"pid {pid}", "it ended during the look"))
            continue
        age = ages.get(pid)
        found = sockets.with_inodes(by_pid.get(pid, ()), {fd: links.inode(fd) for fd in links.targets})
        process, failed = _process(look, folder, links, found, holders)
        processes.append((process, None if age is None else taken_at - age))
        gaps += failed
    members = tuple(_timed(process, taken_at, started) for process, started in processes)
    return Snapshot(
        taken_at=taken_at,
        processes=members,
        duration_s=float(meta["elapsed"]),
        file_locks=procfs.file_locks(members),
        logs=_logs(look, members, taken_at),
        gaps=tuple(gaps),
    )


def _timed(process: Process, taken_at: float, started_at: float | None) -> Process:
    # All of /proc was read within half a second of the start, before py-spy ran for seconds; the counters matter.
    return replace(process, taken_at=taken_at, started_at=started_at)


def _links(look: _Look, pid: int, folder: str) -> Links:
    found = _LINK.findall(look.text(f"{folder}/fd.txt"))
    return Links(pid, {int(fd): target for fd, target in found})


def _process(
    look: _Look,
    folder: str,
    links: Links,
    found: tuple[Socket, ...],
    holders: Mapping[int, list[int]],
) -> tuple[Process, list[Gap]]:
    stat = parse_stat(look.text(f"{folder}/stat").encode())
    status_text = look.text(f"{folder}/status")
    status = parse_status(status_text.encode())
    python, dump = _python(look, folder)
    switches = (status.voluntary_switches, status.involuntary_switches)
    kernel = [_task(look, f"{folder}/task/{tid}", tid == stat.pid, switches) for tid in _tids(look, folder)]
    environ = procfs.environ_of(look.text(f"{folder}/environ.filtered").splitlines())
    mapped = look.text(f"{folder}/maps.files.txt").splitlines()
    process = Process(
        pid=stat.pid,
        start_ticks=stat.start_ticks,
        host=HOST,
        ppid=stat.ppid,
        session=stat.session,
        uid=status.uid,
        state=stat.state,
        comm=stat.comm,
        command=_command(look.files.get(f"{folder}/cmdline", b"")),
        exe=dump.exe,
        exit_code=procfs.exit_code_of(stat),
        tracer_pid=status.tracer_pid or None,
        threads=threads_of(stat.pid, [task for task in kernel if task], python, links, found),
        thread_count=stat.thread_count,
        rss_bytes=stat.rss_bytes or None,
        minor_faults=stat.minor_faults,
        major_faults=stat.major_faults,
        user_ticks=stat.user_ticks,
        system_ticks=stat.system_ticks,
        io=procfs.io_of(look.text(f"{folder}/io")),
        files=procfs.open_files(links, holders),
        mapped=procfs.weights(mapped),
        sockets=found,
        environ=environ or None,
        environ_source="/proc" if environ else None,
        versions={"python": dump.version} if dump.version else {},
    )
    remedy = f"kill -CONT {stat.pid}" if stat.state == "T" else None
    gaps = [Gap("py-spy", f"pid {stat.pid}", dump.error, remedy)] if dump.error else []
    return process, gaps


def _python(look: _Look, folder: str) -> tuple[tuple[pyspy.PythonThread, ...], pyspy.TextDump]:
    dump = pyspy.from_text(look.text(f"{folder}/pyspy.txt"))
    exact = look.text(f"{folder}/pyspy.json")
    if exact.startswith("["):
        return pyspy.from_json(json.loads(exact)), dump
    return dump.threads, dump


def _tids(look: _Look, folder: str) -> list[int]:
    prefix = f"{folder}/task/"
    return sorted(
        {int(path.removeprefix(prefix).split("/")[0]) for path in look.files if path.startswith(prefix)}
    )


def _task(
    look: _Look, path: str, is_main: bool, switches: tuple[int | None, int | None]
) -> KernelThread | None:
    stat = look.text(f"{path}/stat")
    if ")" not in stat:
        return None  # it ended while it was read
    return KernelThread(
        stat=stat,
        wchan=look.text(f"{path}/wchan").strip(),
        syscall=look.text(f"{path}/syscall").strip(),
        # /proc/PID/status counts the switches of the main thread only
        voluntary_switches=switches[0] if is_main else None,
        involuntary_switches=switches[1] if is_main else None,
    )


def _command(raw: bytes) -> tuple[str, ...]:
    parts = raw.rstrip(b"\0 ").split(b"\0") if raw.strip(b"\0 ") else []
    return tuple(part.decode("utf-8", "backslashreplace") for part in parts)


def _ages(ps_tree: str) -> dict[int, int]:
    """Pid -> seconds since it started, the ninth column of ``ps``."""
    rows = (line.split(None, 9) for line in ps_tree.splitlines()[1:])
    return {int(row[0]): int(row[8]) for row in rows if len(row) > 8 and row[8].isdigit()}


def _logs(look: _Look, processes: tuple[Process, ...], moment: float) -> tuple[LogTail, ...]:
    """The logs were copied at the end of a look, up to a minute and a half after its beginning."""
    found = []
    for name in sorted(name for name in look.files if name.endswith(".log") and "/" not in name):
        shown = name.replace(look.stage, "server")
        writers = {
            process.pid: file.target
            for process in processes
            for file in process.files
            if file.fd in (1, 2) and file.target.rsplit("/", 1)[-1] == shown
        }
        if writers:
            path = next(iter(writers.values()))
            text = logs.as_of(look.text(name), moment)
            size = len(text.encode())
            found.append(LogTail(path, size, None, logs.tail(text), tuple(sorted(writers))))
    return tuple(found)
