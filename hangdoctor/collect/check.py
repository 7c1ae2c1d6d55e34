"""Can I look? Each permission and tool, tried rather than guessed, with what to do about it."""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hangdoctor.collect import memory, procfs
from hangdoctor.collect.deadline import Trouble, call
from hangdoctor.collect.denials import explain_denial
from hangdoctor.collect.own_stacks import read_stacks
from hangdoctor.collect.processes import read_processes
from hangdoctor.collect.procfs import read_bytes
from hangdoctor.collect.pyspy import Failure, Mode, PySpy, classify, command, find_py_spy
from hangdoctor.collect.ras import DEADLINE_S
from hangdoctor.collect.ras_asking import ask_ras
from hangdoctor.collect.spawn import run
from hangdoctor.collect.stacks import Dump

TRY_S = 3.0
_CAP_SYS_PTRACE = 19
_CAP_PERFMON = 38
_DOCKER = "docker run --cap-add SYS_PTRACE …; Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]"
_YAMA = {
    0: "any process of the same user may be read",
    1: "only descendants may be read, except by root",
    2: "only root (CAP_SYS_PTRACE) may read other processes",
    3: "nobody may read other processes, not even root",
}
_YAMA_REMEDY = {
    1: "sudo sysctl kernel.yama.ptrace_scope=0, or run hangdoctor with sudo",
    2: "run hangdoctor with sudo",
    3: "reboot with kernel.yama.ptrace_scope below 3: it cannot be lowered while the machine runs",
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One question. ``ok`` is ``None`` when it does not matter here or could not be tried."""

    name: str
    ok: bool | None
    detail: str
    remedy: str | None = None


def check(pid: int | None = None, *, use_ras: bool = False) -> tuple[CheckResult, ...]:
    """Everything that decides how much can be seen, of ``pid`` or of an own child when none is given. Never raises.

    Non-blocking throughout: the target is read, not stopped. ``use_ras`` also asks NCCL's service about ``pid``.
    """
    results = [_check_user(), _check_yama(), _check_py_spy(), _check_perf(), _check_gpu(), _check_container()]
    if pid is None:
        return tuple(results)
    stat = procfs.read_stat(pid) if _is_visible(pid) else None
    if stat is None:
        remedy = f'sudo env "PATH=$PATH" hangdoctor check {pid}'
        return (
            *results,
            CheckResult(f"process {pid}", False, "it does not exist, or /proc hides it", remedy),
        )
    ras = (_check_ras(stat),) if use_ras and stat.state not in "ZX" else ()
    return (*results, *_check_target(pid, stat), *ras)


def _is_visible(pid: int) -> bool:
    try:
        return procfs.read_stat(pid) is not None
    except OSError:
        return False


def _check_user() -> CheckResult:
    capabilities = _own_capabilities()
    has_ptrace = bool(capabilities >> _CAP_SYS_PTRACE & 1)
    uid = os.geteuid()
    who = "root" if uid == 0 else f"uid {uid}"
    if has_ptrace:
        return CheckResult("permission", True, f"{who} with CAP_SYS_PTRACE: every process can be read")
    detail = f"{who} without CAP_SYS_PTRACE: only processes of the same user, with no more capabilities, can be read"
    return CheckResult("permission", None, detail, f'sudo env "PATH=$PATH" hangdoctor …; {_DOCKER}')


def _own_capabilities() -> int:
    try:
        for line in read_bytes("/proc/self/status").splitlines():
            if line.startswith(b"CapEff:"):
                return int(line.split()[1], 16)
    except (OSError, ValueError):
        pass
    return 0


def _check_yama() -> CheckResult:
    try:
        scope = int(read_bytes("/proc/sys/kernel/yama/ptrace_scope"))
    except (OSError, ValueError):
        return CheckResult("yama", True, "not in this kernel")
    may_pass = bool(_own_capabilities() >> _CAP_SYS_PTRACE & 1) and scope < 3
    detail = f"kernel.yama.ptrace_scope is {scope}: {_YAMA.get(scope, 'unknown')}"
    return CheckResult("yama", scope == 0 or may_pass, detail, _YAMA_REMEDY.get(scope))


def _check_py_spy() -> CheckResult:
    found = find_py_spy()
    if not isinstance(found, PySpy):
        return CheckResult("py-spy", False, found.reason, found.remedy)
    detail = f"{found.version} at {found.path}"
    if found.is_old:
        return CheckResult("py-spy", False, f"{detail} is too old", "pip install -U 'py-spy>=0.4.1'")
    return CheckResult("py-spy", True, detail)


def _check_perf() -> CheckResult:
    """Only sharpens one answer (spins or computes), so a no is no failure."""
    try:
        level = int(read_bytes("/proc/sys/kernel/perf_event_paranoid"))
    except (OSError, ValueError):
        return CheckResult(
            "perf", None, "perf events are not in this kernel: spinning is not told from computing"
        )
    if level <= 2 or _own_capabilities() >> _CAP_PERFMON & 1:
        return CheckResult(
            "perf", True, f"kernel.perf_event_paranoid is {level}: spinning can be told from computing"
        )
    detail = f"kernel.perf_event_paranoid is {level}: spinning is not told from computing"
    return CheckResult("perf", None, detail, "sudo sysctl kernel.perf_event_paranoid=2, or --cap-add PERFMON")


def _check_gpu() -> CheckResult:
    drivers = {"NVIDIA": "/proc/driver/nvidia/version", "AMD": "/sys/module/amdgpu"}
    present = [name for name, path in drivers.items() if Path(path).exists()]
    if not present:
        return CheckResult(
            "gpu", None, "no GPU driver is visible here", "in a container: docker run --gpus all …"
        )
    from hangdoctor.collect.gpu import read_gpus

    answer = call(lambda: read_gpus(TRY_S), 2 * TRY_S)
    if isinstance(answer, Trouble):
        return CheckResult(
            "gpu", False, f"{', '.join(present)}: reading the GPUs {answer.reason}", "nvidia-smi; dmesg"
        )
    gpus, gaps = answer
    if gpus:
        return CheckResult("gpu", True, f"{len(gpus)} GPUs answer, the first is {gpus[0].name or 'unnamed'}")
    reason, remedy = (gaps[0].reason, gaps[0].remedy) if gaps else ("no GPU answers", "nvidia-smi")
    return CheckResult("gpu", False, f"{', '.join(present)}: {reason}", remedy)


def _check_container() -> CheckResult:
    hints = []
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        hints.append("a container")
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        hints.append("a Kubernetes pod")
    if "gvisor" in platform.version().lower() or not Path("/proc/self/wchan").exists():
        hints.append("a sandboxed kernel with reduced evidence")
    if not hints:
        return CheckResult("container", True, "none was noticed")
    remedy = f"To see processes of other containers: kubectl debug --target=…, or docker run --pid=host …; {_DOCKER}"
    return CheckResult("container", None, f"this is {' and '.join(hints)}", remedy)


def _check_target(pid: int, stat: procfs.Stat) -> tuple[CheckResult, ...]:
    name = f"process {pid}"
    if stat.is_kernel_thread or stat.state in "ZX":
        what = "a kernel thread" if stat.is_kernel_thread else "a zombie"
        return (CheckResult(name, False, f"{stat.comm} is {what}", "choose a living program"),)
    found = [CheckResult(name, True, f"{stat.comm}, state {stat.state}, {stat.thread_count} threads")]
    status = procfs.read_status(pid)
    if status is not None and status.tracer_pid:
        detail = f"pid {status.tracer_pid} traces it: a debugger may be what holds it"
        found.append(CheckResult("tracer", False, detail, f"end it: kill {status.tracer_pid}"))
    elif stat.state in "Tt":
        found.append(CheckResult("stopped", False, "it is stopped (SIGSTOP, Ctrl-Z)", f"kill -CONT {pid}"))
    remedy = explain_denial(pid, is_attach=False).remedy
    attach_remedy = explain_denial(pid, is_attach=True).remedy
    task = f"/proc/{pid}/task/{pid}"
    found += [
        _try("open files", lambda: len(os.listdir(f"/proc/{pid}/fd")), "{} descriptors", remedy),
        _try(
            "system calls",
            lambda: read_bytes(f"{task}/syscall").split()[0].decode(),
            "the main thread: {}",
            attach_remedy,
        ),
        _try("memory", lambda: _read_a_word(pid), "process_vm_readv read {} bytes", attach_remedy),
        _try(
            "kernel stacks",
            lambda: len(read_bytes(f"{task}/stack").splitlines()),
            "{} frames",
            "run as root",
            soft=True,
        ),
        _check_stacks(pid),
    ]
    return tuple(found)


def _check_ras(stat: procfs.Stat) -> CheckResult:
    """One question to the service that this rank is said to have."""
    processes, _ = read_processes((stat,), lambda name: name == "NCCL_RAS_ADDR", {})
    answers, gaps = ask_ras(processes, None, force=False, limit_s=DEADLINE_S)
    if not answers:
        gap = gaps[0]
        return CheckResult("NCCL RAS", False, f"{gap.subject}: {gap.reason}", gap.remedy)
    answer = answers[0]
    took = f" in {answer.took_s:.1f} s" if answer.took_s is not None else ""
    detail = f"NCCL {answer.nccl_version or '?'} at {answer.address} answered{took}"
    return CheckResult("NCCL RAS", True, detail)


def _try(
    name: str, read: Callable[[], object], words: str, remedy: str, *, soft: bool = False
) -> CheckResult:
    """``soft``: a refusal costs little and is no failure."""
    answer = call(read, TRY_S)
    if not isinstance(answer, Trouble):
        return CheckResult(name, True, words.format(answer))
    return CheckResult(name, None if soft else False, answer.reason, remedy)


def _read_a_word(pid: int) -> int:
    """Reads eight bytes of the first readable mapping, as the readers of stacks and locks will."""
    region = next((region for region in memory.read_regions(pid) if region.permissions.startswith("r")), None)
    if region is None:
        raise OSError(errno.EFAULT, "no readable mapping")
    return len(memory.read(pid, region.start, 8))


def _check_stacks(pid: int) -> CheckResult:
    """By the reader that a look asks first, then by py-spy."""
    answer = call(lambda: read_stacks(pid), TRY_S)
    if isinstance(answer, Dump) and not answer.torn:
        took = f"{answer.duration_s * 1000:.0f} ms without a stop"
        return CheckResult("stacks", True, f"those of {len(answer.threads)} threads were read in {took}")
    found = find_py_spy()
    if isinstance(found, PySpy):
        return _check_py_spys_stacks(pid, found)
    if answer is None:
        return CheckResult("stacks", None, "no CPython 3.10 to 3.14 in it, and no py-spy here", found.remedy)
    why = (
        answer.reason
        if isinstance(answer, Trouble)
        else f"{len(answer.torn)} threads run too fast to be read"
    )
    return CheckResult("stacks", False, f"{why}, and no py-spy here", found.remedy)


def _check_py_spys_stacks(pid: int, found: PySpy) -> CheckResult:
    result = run(command(found, pid, Mode.NONBLOCKING), TRY_S)
    if result.returncode == 0:
        return CheckResult(
            "stacks", True, f"py-spy read them in {result.duration_s * 1000:.0f} ms without a stop"
        )
    if classify(result) is Failure.NOT_PYTHON:
        return CheckResult("stacks", None, "it is not a Python program; its children may be")
    said = result.stderr.partition("\n")[0].removeprefix("Error: ") or "no answer"
    return CheckResult(
        "stacks", False, f"py-spy: {said}", f"hangdoctor attach {pid} shows the kernel's view alone"
    )
