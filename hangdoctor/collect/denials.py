"""Why the kernel said no, and the one line that changes it.

``ptrace_may_access`` (kernel/ptrace.c) has two classes. The reading class (maps, descriptors, counters, wchan) asks for
the same user and no more capabilities; the attaching class (system calls, memory, py-spy) must pass Yama as well, and
a seccomp profile may forbid its system calls. Both give the same EPERM, so the cause is looked up, not guessed from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hangdoctor.collect.procfs import read_bytes

_CAP_SYS_PTRACE = 19
_FILTER = 2
"""Of the line ``Seccomp:``: a filter is installed."""
_DOCKER = "docker run --cap-add SYS_PTRACE …   (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])"
_SECCOMP = (
    "docker run --security-opt seccomp=unconfined …   (Kubernetes: seccompProfile: {type: Unconfined}), or look from "
    "the host"
)
_MODULE = "docker run --cap-add SYS_PTRACE --security-opt apparmor=unconfined …, or run hangdoctor on the host itself"
_REBOOT = "reboot with kernel.yama.ptrace_scope below 3: it cannot be lowered while the machine runs"


@dataclass(frozen=True, slots=True)
class Denial:
    """``cause`` is a noun phrase; ``remedy`` is what to type."""

    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Credentials:
    uid: int | None
    capabilities: int | None
    seccomp: int | None


def explain_denial(pid: int, *, is_attach: bool, proc: str = "/proc") -> Denial:
    """What keeps us from ``pid``. ``is_attach``: from its memory and system calls, not only its files. Never raises."""
    own, target = _read_credentials(f"{proc}/self/status"), _read_credentials(f"{proc}/{pid}/status")
    sudo = f'sudo env "PATH=$PATH" hangdoctor attach {pid}'
    has_ptrace = bool((own.capabilities or 0) >> _CAP_SYS_PTRACE & 1)
    scope = _read_number(f"{proc}/sys/kernel/yama/ptrace_scope") if is_attach else None
    if scope == 3:
        return Denial("Yama: kernel.yama.ptrace_scope is 3, so nobody may", _REBOOT)
    if not has_ptrace:
        found = _explain_without_ptrace(own, target, scope, sudo)
        if found is not None:
            return found
        if own.uid != 0 and _owner(f"{proc}/{pid}") == 0:
            return Denial("it is marked as not dumpable (it changed its user, or asked for that)", sudo)
    if is_attach and own.seccomp == _FILTER:
        return Denial("a seccomp filter on hangdoctor itself", _SECCOMP)
    if own.uid == 0:
        return Denial("even root: a security module (AppArmor, SELinux), or another user namespace", _MODULE)
    return Denial("the kernel refuses this user", sudo)


def _explain_without_ptrace(
    own: _Credentials, target: _Credentials, scope: int | None, sudo: str
) -> Denial | None:
    if scope == 2:
        return Denial("Yama: kernel.yama.ptrace_scope is 2, so only root with CAP_SYS_PTRACE may", sudo)
    if own.uid != 0 and None not in (own.uid, target.uid) and own.uid != target.uid:
        return Denial(f"it belongs to another user (uid {target.uid})", sudo)
    more = (target.capabilities or 0) & ~(own.capabilities or 0)
    if own.uid == 0:
        return Denial("root without CAP_SYS_PTRACE: a container's default", _DOCKER)
    if more:
        return Denial("it has capabilities that we lack", sudo)
    if scope == 1:
        return Denial(
            "Yama: kernel.yama.ptrace_scope is 1, so only a parent may",
            f"sudo sysctl kernel.yama.ptrace_scope=0, or {sudo}",
        )
    return None


def _read_credentials(status: str) -> _Credentials:
    try:
        lines = dict(line.partition(b":")[::2] for line in read_bytes(status).splitlines())
    except OSError:
        lines = {}
    try:
        uid = lines.get(b"Uid", b"").split()
        capabilities, seccomp = lines.get(b"CapEff"), lines.get(b"Seccomp")
        return _Credentials(
            int(uid[1]) if len(uid) > 1 else None,
            int(capabilities, 16) if capabilities else None,
            int(seccomp) if seccomp else None,
        )
    except ValueError:
        return _Credentials(None, None, None)


def _read_number(path: str) -> int | None:
    try:
        return int(read_bytes(path))
    except (OSError, ValueError):
        return None


def _owner(path: str) -> int | None:
    try:
        return Path(path).stat().st_uid
    except OSError:
        return None
