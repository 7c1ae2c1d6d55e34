"""Everything about a process except its stacks, read in small steps so that one that blocks costs only itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path

from hangdoctor.collect import deadline, files, mappings, procfs
from hangdoctor.collect.denials import explain_denial
from hangdoctor.collect.environ import EnvironResult, read_environ
from hangdoctor.collect.memory import read_regions
from hangdoctor.collect.procfs import Stat, text
from hangdoctor.collect.readers import Readers
from hangdoctor.model import Gap, IoCounters, Process
from hangdoctor.model.records import changed

STEP_S = 1.0
"""One step takes 0.1-20 ms; a step that has not returned by then waits for a lock or a dead file server."""
ALL_STEPS_S = 6.0


class Step(str, Enum):
    """What is read together. The value names it in a gap."""

    IDENTITY = "identity and input/output counters"
    COMMAND = "command line"
    FILES = "open files"
    MAPPINGS = "address space"
    ENVIRON = "environment"
    SIZES = "file sizes"


_UNSET = tuple((item.name, getattr(Process(0), item.name)) for item in fields(Process) if item.name != "pid")
_NEEDS_MEMORY_LOCK = frozenset((Step.COMMAND, Step.MAPPINGS, Step.ENVIRON))
"""These wait for the same lock: after one did not return, the others of that process are not tried."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A step for a process. ``versions`` are those already known from an earlier look."""

    pid: int
    task: int
    """What to ask instead of ``pid``: a living thread of a process whose leader has ended."""
    step: Step
    is_env_allowed: Callable[[str], bool]
    versions: Mapping[str, str] = field(default_factory=dict)

    def __reduce__(self) -> tuple[object, ...]:
        """For the way to a reader, which has the rule already: it would bring all of the knowledge along."""
        return _arrive, (self.pid, self.task, self.step, self.versions)


def _arrive(pid: int, task: int, step: Step, versions: Mapping[str, str]) -> Wanted:
    return Wanted(pid, task, step, _allow_nothing, versions)


def _allow_nothing(name: str) -> bool:
    del name
    return False


@dataclass(frozen=True, slots=True)
class Part:
    """What a step found: a process with only those fields set."""

    process: Process
    sizes: Mapping[str, files.FileSize] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()


def from_stat(stat: Stat) -> Process:
    """What the process table alone tells."""
    return Process(
        pid=stat.pid,
        start_ticks=stat.start_ticks,
        ppid=stat.ppid,
        session=stat.session,
        state=stat.state,
        comm=stat.comm,
        started_at=procfs.started_at(stat.start_ticks),
        exit_code=_exit_code(stat),
        thread_count=stat.thread_count,
        rss_bytes=stat.rss_bytes,
        minor_faults=stat.minor_faults,
        major_faults=stat.major_faults,
        user_ticks=stat.user_ticks,
        system_ticks=stat.system_ticks,
    )


def _exit_code(stat: Stat) -> int | None:
    """As subprocess has it: -9 for SIGKILL. The kernel shows strangers a 0, which would be a lie."""
    if stat.wait_status is None:
        return None
    try:
        if stat.wait_status == 0 and os.geteuid() not in (0, Path(f"/proc/{stat.pid}").stat().st_uid):
            return None
        return os.waitstatus_to_exitcode(stat.wait_status)
    except (OSError, ValueError):
        return None


def read_processes(
    stats: Sequence[Stat],
    is_env_allowed: Callable[[str], bool],
    known: Mapping[int, Process],
    limit_s: float = ALL_STEPS_S,
) -> tuple[tuple[Process, ...], tuple[Gap, ...]]:
    """As :func:`ask_processes`, with readers of its own."""
    read = step_reader(is_env_allowed)
    readers = Readers((read,), deadline.reader_count())
    try:
        return ask_processes(readers, read, stats, known, limit_s)
    finally:
        readers.end()


def step_reader(is_env_allowed: Callable[[str], bool]) -> Callable[[Wanted], Part]:
    """What a reader needs for :func:`ask_processes`. ``is_env_allowed(name)``: which variables are kept."""
    return lambda want: read_step(replace(want, is_env_allowed=is_env_allowed))


def ask_processes(
    readers: Readers,
    read: Callable[[Wanted], Part],
    stats: Sequence[Stat],
    known: Mapping[int, Process],
    limit_s: float = ALL_STEPS_S,
) -> tuple[tuple[Process, ...], tuple[Gap, ...]]:
    """All processes of ``stats`` without their threads, and what could not be read, within ``limit_s`` seconds.

    ``read`` is a :func:`step_reader` that ``readers`` know. ``known``: the same processes at the last look (versions
    are not looked up again).
    """
    wanted = [
        Wanted(stat.pid, task, step, _allow_nothing, known[stat.pid].versions if stat.pid in known else {})
        for stat in stats
        if (task := procfs.living_task(stat)) != stat.pid or stat.state not in "ZX"
        for step in Step
    ]
    found = {stat.pid: from_stat(stat) for stat in stats}
    gaps: list[Gap] = []
    refused: dict[int, list[tuple[Wanted, str]]] = {}
    patience = deadline.patience()
    for want, part in readers.ask(
        read,
        wanted,
        item_s=STEP_S * patience,
        total_s=min(limit_s, ALL_STEPS_S * patience),
        belongs_to=lambda want: want.pid,
        is_pointless=_is_pointless,
    ):
        if isinstance(part, Part):
            found[want.pid] = _add(found[want.pid], part)
            gaps.extend(part.gaps)
        elif part.is_timeout:
            gaps.append(_explain_timeout(want, part))
        else:
            refused.setdefault(want.pid, []).append((want, part.reason))
    gaps.extend(_explain_refusal(pid, steps) for pid, steps in refused.items())
    return tuple(found.values()), tuple(gaps)


def _add(process: Process, part: Part) -> Process:
    process = overlay(process, part.process)
    if not part.sizes:
        return process
    return replace(
        process,
        files=files.add_sizes(process.files, part.sizes),
        mapped=files.add_mapped_sizes(process.mapped, part.sizes),
    )


def overlay(base: Process, part: Process) -> Process:
    """``base`` with every field that ``part`` sets. (An empty environment is set: it was read.)"""
    changes = {name: value for name, unset in _UNSET if (value := getattr(part, name)) != unset}
    return changed(base, **changes)


def _is_pointless(stuck: object, later: Wanted) -> bool:
    if not isinstance(stuck, Wanted) or stuck.pid != later.pid:
        return False
    return stuck.step in _NEEDS_MEMORY_LOCK and later.step in _NEEDS_MEMORY_LOCK


def read_step(want: Wanted) -> Part:
    """One step, unguarded. Raises ``OSError``."""
    return _READERS[want.step](want)


def _read_identity(want: Wanted) -> Part:
    pid, task = want.pid, want.task
    status = procfs.read_status(pid)
    if status is None:
        raise ProcessLookupError("it has ended")
    inner = status.ns_pids[-1] if status.ns_pids else pid
    return Part(
        Process(
            pid,
            uid=status.uid,
            tracer_pid=status.tracer_pid,
            ns_pid=inner if inner != pid else None,
            exe=_link(task, "exe"),
            cwd=_link(task, "cwd"),
            io=_read_io(pid),
        )
    )


def _link(pid: int, name: str) -> str | None:
    try:
        return text(os.fsencode(os.readlink(f"/proc/{pid}/{name}")))
    except OSError:
        return None


def _read_io(pid: int) -> IoCounters | None:
    try:
        lines = procfs.read_bytes(f"/proc/{pid}/io").splitlines()
        values = {name: int(value) for name, _, value in (line.partition(b":") for line in lines)}
        return IoCounters(
            read_chars=values[b"rchar"],
            write_chars=values[b"wchar"],
            read_bytes=values[b"read_bytes"],
            write_bytes=values[b"write_bytes"],
            read_calls=values.get(b"syscr"),
            write_calls=values.get(b"syscw"),
        )
    except (OSError, KeyError, ValueError):
        return None


def _read_command(want: Wanted) -> Part:
    return Part(Process(want.pid, command=procfs.read_command(want.task)))


def _read_files(want: Wanted) -> Part:
    return Part(Process(want.pid, files=files.read_files(want.task)))


def _read_mappings(want: Wanted) -> Part:
    regions = read_regions(want.task).of_files
    versions = want.versions
    if "torch" not in versions:
        paths = {region.path for region in regions if region.path.startswith("/")}
        versions = mappings.find_versions(want.task, sorted(paths), _link(want.task, "exe"))
    return Part(
        Process(want.pid, mapped=mappings.measure_mapped_files(want.task, regions), versions=versions)
    )


def _read_environ(want: Wanted) -> Part:
    found = read_environ(want.task, want.is_env_allowed)
    if isinstance(found, EnvironResult):
        return Part(Process(want.pid, environ=dict(found.variables), environ_source=found.source))
    return Part(Process(want.pid), gaps=(found,))


def _read_sizes(want: Wanted) -> Part:
    mapped = mappings.find_mapped_files(read_regions(want.task).of_files)
    sizes = {**files.read_mapped_sizes(want.task, mapped), **files.read_sizes(want.task)}
    return Part(Process(want.pid), sizes=sizes)


_READERS: Mapping[Step, Callable[[Wanted], Part]] = {
    Step.IDENTITY: _read_identity,
    Step.COMMAND: _read_command,
    Step.FILES: _read_files,
    Step.MAPPINGS: _read_mappings,
    Step.ENVIRON: _read_environ,
    Step.SIZES: _read_sizes,
}


def _explain_timeout(want: Wanted, trouble: deadline.Trouble) -> Gap:
    return Gap(
        "proc",
        f"pid {want.pid}",
        f"reading its {want.step.value} {trouble.reason}",
        f"As root, see where its threads are held: cat /proc/{want.pid}/task/*/stack",
    )


def _explain_refusal(pid: int, steps: Sequence[tuple[Wanted, str]]) -> Gap:
    """One gap a process, however many of its files the kernel refuses."""
    names = ", ".join(want.step.value for want, _ in steps)
    reasons = ", ".join(dict.fromkeys(reason for _, reason in steps))
    if is_denial(reasons):
        denial = explain_denial(pid, is_attach=False)
        return Gap(
            "proc", f"pid {pid}", f"not readable: its {names} ({reasons}: {denial.cause})", denial.remedy
        )
    return Gap("proc", f"pid {pid}", f"not readable: its {names} ({reasons})")


def is_denial(reason: str) -> bool:
    """Whether an error's words are those of a refusal (EACCES, EPERM)."""
    return "permission" in reason.lower() or "not permitted" in reason


def merge_gaps(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Each gap once, in the order of first sight."""
    return tuple(dict.fromkeys(gaps))
