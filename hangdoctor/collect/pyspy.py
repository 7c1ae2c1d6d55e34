"""Python stacks through py-spy: which program, how it is asked, what its errors mean.

The default is ``--nonblocking``: it never stops the target and works on stopped, traced and D-state processes, where
the blocking mode fails or, with one thread in D, freezes the target for as long as py-spy lives. Its price is that a
stack that moves cannot be read, so those are tried again. Never ``--subprocesses``: with JSON it prints one process.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hangdoctor.collect import procfs
from hangdoctor.collect.deadline import call
from hangdoctor.collect.denials import explain_denial
from hangdoctor.collect.procfs import read_bytes
from hangdoctor.collect.spawn import Key, Result, run
from hangdoctor.model import Gap, Process

_INSTALLED = re.compile(r"py_spy-(\d+\.\d+[\w.]*)\.dist-info$")
OLDEST = (0, 4, 1)
"""Before it, py-spy used SIGSTOP and could leave a target stopped."""
_MISSING = (
    "py-spy is not installed: no native frames, and no stacks where hangdoctor's own reader cannot read them"
)
RETRIES_S = (0.01, 0.02, 0.04, 0.08)
BLOCKING_S = 2.0
NATIVE_S = 20.0


class Mode(str, Enum):
    """How a dump treats its target."""

    NONBLOCKING = "--nonblocking"
    BLOCKING = "blocking"
    """Stops it for about 12 us a frame; blocked system calls return EINTR."""
    NATIVE = "--native"
    """Stops it for 0.3 to 2 s."""


class Failure(str, Enum):
    """What went wrong, as far as py-spy's words tell."""

    MOVING = "moving"
    NOT_PYTHON = "not python"
    DENIED = "denied"
    NO_FILE = "no file"
    FREE_THREADED = "free-threaded"
    TIMEOUT = "timeout"
    OTHER = "other"


_WORDS = (
    # py-spy 0.4.3; the first that occurs anywhere on stderr decides. Both "moving" texts mean that a structure
    # changed while it was read; the first also means a thread deeper than 4096 frames.
    (Failure.MOVING, "Failed to find a python interpreter in the .data section"),
    (Failure.MOVING, "os error 14"),
    (Failure.FREE_THREADED, "failed to get gil_thread_id"),
    (Failure.NOT_PYTHON, "Failed to find python version from target process"),
    (Failure.NO_FILE, "os error 2)"),
    (Failure.NO_FILE, "os error 3)"),
    (Failure.DENIED, "Permission Denied"),
    (Failure.DENIED, "os error 13"),
    (Failure.DENIED, "EPERM"),
    (Failure.DENIED, "os error 1)"),
)


@dataclass(frozen=True, slots=True)
class PySpy:
    """The program that will be run."""

    path: str
    version: str

    @property
    def is_old(self) -> bool:
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:3]) < OLDEST


def find_py_spy() -> PySpy | Gap:
    """py-spy beside our own interpreter, else on the PATH, and its version.

    That of the package, where it was installed as one; else the program is asked, for which a look has to wait.
    """
    folders = (sysconfig.get_path("scripts"), str(Path(sys.executable).parent))
    places = [str(Path(folder, "py-spy")) for folder in folders] + [shutil.which("py-spy") or ""]
    path = next((place for place in places if place and Path(place).is_file()), None)
    remedy = f"{sys.executable} -m pip install 'py-spy>=0.4.1'"
    if path is None:
        return Gap("py-spy", "this machine", _MISSING, remedy)
    installed = _installed_version() if path in places[:1] else None
    if installed is not None:
        return PySpy(path, installed)
    answer = run((path, "--version"), 3.0)
    found = re.search(rb"\d+\.\d+[\w.]*", answer.stdout)
    if found is None:
        said = (answer.stderr or answer.stdout.decode("utf-8", "backslashreplace")).strip()[:80]
        return Gap("py-spy", "this machine", f"{path} --version says {said or 'nothing'}", remedy)
    return PySpy(path, found[0].decode())


def _installed_version() -> str | None:
    """From the name of ``py_spy-0.4.3.dist-info``: importlib.metadata would cost 46 ms, a listing 0.3."""
    try:
        names = os.listdir(sysconfig.get_path("purelib"))
    except OSError:
        return None
    versions = [found[1] for name in names if (found := _INSTALLED.match(name))]
    return versions[0] if len(versions) == 1 else None


def command(program: PySpy, pid: int, mode: Mode) -> tuple[str, ...]:
    """The command line of one dump. Full file names spare a ``stat`` of every package folder, which may hang."""
    options = ("--json", "--full-filenames", *(() if mode is Mode.BLOCKING else (mode.value,)))
    return (program.path, "dump", "--pid", str(pid), *options)


def is_python(process: Process) -> bool:
    """Whether to ask for stacks: an interpreter is loaded, or nothing could be seen that speaks against it."""
    if "python" in process.versions:
        return True
    if process.exe is None:
        return bool(process.command) and process.thread_count is not None
    return "python" in process.exe.rpartition("/")[2]


def classify(result: Result[Key]) -> Failure | None:
    """``None`` for a good run."""
    if result.returncode is None:
        return Failure.TIMEOUT
    if result.returncode == 0:
        return None
    return next((failure for failure, words in _WORDS if words in result.stderr), Failure.OTHER)


def explain(process: Process, failure: Failure, result: Result[int], *, is_resting: bool) -> Gap | None:
    """What a final failure means for the reader; ``None`` when the process is gone or simply not Python.

    A dying process makes py-spy say almost anything, permission errors included, so it is looked at first.
    ``is_resting``: none of its threads ran while it was tried.
    """
    stat = procfs.read_stat(process.pid)
    if (
        stat is None
        or stat.start_ticks != process.start_ticks
        or (stat.state in "ZX" and stat.thread_count <= 1)
    ):
        return None
    if failure is Failure.NOT_PYTHON and not is_python(process):
        return None
    reason, remedy = _words(process.pid, failure, result, is_resting=is_resting)
    return Gap("py-spy", f"pid {process.pid}", reason, remedy)


def _words(pid: int, failure: Failure, result: Result[int], *, is_resting: bool) -> tuple[str, str | None]:
    pystack = f"pystack remote --no-block {pid}"
    tries = result.job.attempt
    if failure is Failure.MOVING and is_resting:
        deep = "a thread is deeper than 4,096 calls (runaway recursion?), or it has more than 4,096 threads"
        return f"no stacks: {deep}, which py-spy cannot read", pystack
    if failure is Failure.MOVING:
        reason = f"no stacks: they change too fast to be read ({tries} tries), so this process runs"
        return reason, "--allow-pause reads them while it is stopped for some milliseconds"
    if failure is Failure.TIMEOUT and not result.duration_s:
        return (
            f"no stacks: {result.stderr}",
            "Try again: `ulimit -u`, or the container's pids limit, may be full.",
        )
    if failure is Failure.TIMEOUT:
        return (
            f"no stacks: py-spy was killed after {result.duration_s:.1f} s",
            f"cat /proc/{pid}/task/*/stack",
        )
    if failure is Failure.DENIED:
        denial = explain_denial(pid, is_attach=True)
        return f"no stacks: its memory may not be read ({denial.cause})", denial.remedy
    if failure is Failure.FREE_THREADED:
        return (
            "no stacks: py-spy cannot read a free-threaded interpreter",
            "github.com/benfred/py-spy/issues/711",
        )
    if failure is Failure.NO_FILE and call(lambda: _is_library_deleted(pid), 1.0) is True:
        return "no stacks: its libpython was deleted or replaced on disk since it started", pystack
    first = next((line for line in result.stderr.splitlines() if line.strip()), "it said nothing")
    return (
        f"no stacks: py-spy ended with {result.returncode}: {first.removeprefix('Error: ').strip()}",
        pystack,
    )


def _is_library_deleted(pid: int) -> bool:
    maps = read_bytes(f"/proc/{pid}/maps", limit=8 << 20)
    return re.search(rb"libpython[^\n]*\(deleted\)", maps) is not None
