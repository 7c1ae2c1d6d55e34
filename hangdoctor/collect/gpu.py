"""One look at the accelerators, through a child process that may be left behind.

    gpus, gaps = read_gpus(3.0, pids=tree_pids)

A driver call that never returns is a finding, not a failure: the gap names the call and the state the child is in.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hangdoctor.collect.gpu_errors import KERNEL_LOG, bus_key, read_gpu_errors
from hangdoctor.collect.gpu_owners import open_devices, with_owners
from hangdoctor.model import Gap, Gpu, GpuProcess

PROBE = Path(__file__).with_name("gpu_probe.py")

# Started without `site`, which takes four times as long as the rest of the start where many packages are installed
# (50 of 62 ms, measured); where packages are it is told. The folder of the probe is not on its path (its siblings would
# shadow the standard library), nor is the working directory of whoever is called out of bed.
START = (
    "import sys; del sys.argv[0]; sys.path += sys.argv.pop(0).split(chr(10)); "
    "import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
)

DRIVER_FILES = {
    "nvidia": ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg"),
    "amd": ("/dev/kfd",),
}
"""Where there is none of these, no child is started: most hosts that run a CPU server have no driver."""

SOURCES = {"nvidia": "nvml", "amd": "amdsmi"}


@dataclass(slots=True)
class _Answer:
    """What one probe printed before it ended, or before we stopped waiting."""

    vendor: str
    gpus: dict[int, Mapping[str, object]] = field(default_factory=dict)
    absent: str | None = None
    errors: list[str] = field(default_factory=list)
    asked: str | None = None
    is_done: bool = False
    ending: str | None = None
    """Why nothing more came, when the probe did not finish by itself."""
    is_wedged: bool = False
    """The child survived SIGKILL: it is stuck in the kernel."""
    is_crash: bool = False


def read_gpus(
    deadline_s: float = 3.0,
    *,
    pids: Sequence[int] = (),
    vendors: Iterable[str] | None = None,
    kernel_log: str = KERNEL_LOG,
) -> tuple[tuple[Gpu, ...], tuple[Gap, ...]]:
    """Every GPU of this host as its driver sees it now.

    ``pids`` are the target's processes in our numbering; they decide whether the driver's pids can be matched.
    ``vendors`` (``nvidia``, ``amd``) overrides the look for a driver. Takes at most ``deadline_s`` a vendor plus
    0.5 s to end a child that does not answer. Never raises for what the machine does.
    """
    found = tuple(vendors) if vendors is not None else _drivers()
    if not found:
        return (), _hidden_driver(pids)
    gpus: list[Gpu] = []
    gaps: list[Gap] = []
    for vendor in found:
        answer = _run_probe(vendor, deadline_s)
        own = [_gpu(record) for _, record in sorted(answer.gpus.items())]
        gaps += _gaps_of(answer)
        if vendor == "nvidia" and own:
            own, more = _with_errors(own, kernel_log)
            gaps += more
            own, more = with_owners(own, pids)
            gaps += more
        gpus += own
    return tuple(gpus), tuple(gaps)


def has_driver() -> bool:
    """Whether a driver will be asked, which takes its time; only looks for its files."""
    return bool(_drivers())


def _drivers() -> tuple[str, ...]:
    return tuple(vendor for vendor, paths in DRIVER_FILES.items() if any(map(os.path.exists, paths)))


def _hidden_driver(pids: Sequence[int]) -> tuple[Gap, ...]:
    """No driver here, yet the target uses one: we are in another container than the target."""
    users = [pid for pid in pids if open_devices(pid)]
    if not users:
        return ()
    reason = f"pid {users[0]} has GPU device files open, but no GPU driver is visible from here"
    remedy = "Run hangdoctor in the target's own container, or give this one the GPUs (docker --gpus all)."
    return (Gap("nvml", "driver", reason, remedy),)


def _run_probe(vendor: str, deadline_s: float) -> _Answer:
    answer = _Answer(vendor)
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", START, _package_folders(), str(PROBE), vendor, str(deadline_s)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is ours; the child ends at its own deadline
    )
    assert child.stdout is not None and child.stderr is not None
    with child.stdout, child.stderr:
        for line in _lines(child.stdout.fileno(), time.monotonic() + deadline_s):
            _take(answer, line)
        if not answer.is_done:
            answer.ending = _end(child, answer, deadline_s)
    _reap(child, 0.2)
    return answer


def _package_folders() -> str:
    """Where a child finds what we find, a line each."""
    return "\n".join(folder for folder in sys.path if Path(folder).is_absolute() and "\n" not in folder)


def _lines(fd: int, deadline: float) -> Iterator[bytes]:
    """Whole lines from a pipe until it closes or ``deadline`` (monotonic seconds) passes."""
    rest = b""
    os.set_blocking(fd, False)
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                return
            block = os.read(fd, 65536)
            if not block:
                return
            *lines, rest = (rest + block).split(b"\n")
            yield from lines


def _take(answer: _Answer, line: bytes) -> None:
    try:
        said = json.loads(line)
    except ValueError:  # a library that prints to standard output
        return
    match said:
        case {"at": str(call)}:
            answer.asked = call
        case {"gpu": {"index": int(index)}}:
            answer.gpus[index] = said["gpu"]
        case {"more": {"index": int(index)}} if index in answer.gpus:
            answer.gpus[index] = {**answer.gpus[index], **said["more"]}
        case {"absent": str(why)}:
            answer.absent = why
        case {"error": str(what)}:
            answer.errors.append(what)
        case {"done": True}:
            answer.is_done = True


def _end(child: subprocess.Popen[bytes], answer: _Answer, deadline_s: float) -> str:
    """Ends a probe that did not finish and says what it was doing; leaves it behind when it cannot die."""
    if _reap(child, 0.1):
        answer.is_crash = True
        return _last_words(child)
    where = _kernel_function(child.pid)
    child.kill()
    if _reap(child, 0.4):
        return f"has not returned in {deadline_s:g} s"
    answer.is_wedged = True
    inside = f" in {where}" if where else ""
    return f"has not returned in {deadline_s:g} s and cannot be interrupted{inside}"


def _last_words(child: subprocess.Popen[bytes]) -> str:
    assert child.stderr is not None
    os.set_blocking(child.stderr.fileno(), False)
    try:
        words = os.read(child.stderr.fileno(), 65536).decode("utf-8", "replace").strip()
    except BlockingIOError:
        words = ""
    ending = f"ended the reader (exit code {child.returncode})"
    return f"{ending}: {words.splitlines()[-1]}" if words else ending


def _reap(child: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kernel_function(pid: int) -> str | None:
    try:
        name = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return name if name not in ("", "0") else None


def _gaps_of(answer: _Answer) -> list[Gap]:
    source = SOURCES[answer.vendor]
    gaps = [Gap(source, "GPU", text, "See dmesg for the driver's own errors.") for text in answer.errors]
    if answer.absent is not None:
        remedy = "Install the driver's library in this container, or run hangdoctor on the host."
        gaps.append(Gap(source, "driver", f"GPUs cannot be read: {answer.absent}", remedy))
    if answer.ending is not None:
        gaps.append(_silence(answer, source))
    return gaps


def _silence(answer: _Answer, source: str) -> Gap:
    call = answer.asked or "the library's start"
    name, by_hand = ("NVML", "nvidia-smi") if source == "nvml" else (source, "amd-smi")
    if answer.is_crash:
        return Gap(
            source, "driver", f"{name} could not be read: {call} {answer.ending}", f"Run {by_hand} by hand."
        )
    reason = f"{name} does not answer: {call} {answer.ending}"
    if answer.is_wedged:
        remedy = (
            "See dmesg | grep -i -e xid -e nvrm. A GPU reset or a reboot helps, restarting the job does not."
        )
        return Gap(source, "driver", f"{reason}: the driver is wedged", remedy)
    return Gap(
        source, "driver", reason, f"Run {by_hand} by hand; if it hangs too, see dmesg for driver errors."
    )


def _gpu(record: Mapping[str, object]) -> Gpu:
    return Gpu(
        index=_whole(record, "index") or 0,
        name=_text(record, "name"),
        uuid=_text(record, "uuid"),
        utilization_percent=_number(record, "utilization_percent"),
        memory_utilization_percent=_number(record, "memory_utilization_percent"),
        memory_used_bytes=_whole(record, "memory_used_bytes"),
        memory_total_bytes=_whole(record, "memory_total_bytes"),
        power_w=_number(record, "power_w"),
        power_limit_w=_number(record, "power_limit_w"),
        sm_clock_mhz=_whole(record, "sm_clock_mhz"),
        sm_clock_max_mhz=_whole(record, "sm_clock_max_mhz"),
        pcie_tx_bytes_s=_whole(record, "pcie_tx_bytes_s"),
        pcie_rx_bytes_s=_whole(record, "pcie_rx_bytes_s"),
        nvlink_tx_bytes=_whole(record, "nvlink_tx_bytes"),
        nvlink_rx_bytes=_whole(record, "nvlink_rx_bytes"),
        throttle_reasons=tuple(str(word) for word in _list(record, "throttle_reasons")),
        uncorrected_ecc=_whole(record, "uncorrected_ecc"),
        processes=tuple(_processes(record)),
        vendor=_text(record, "vendor"),
        driver_version=_text(record, "driver_version"),
        pci_bus_id=_text(record, "pci_bus_id"),
        minor=_whole(record, "minor"),
        memory_clock_mhz=_whole(record, "memory_clock_mhz"),
        is_mig=_flag(record, "is_mig"),
        sm_occupancy_percent=_number(record, "sm_occupancy_percent"),
        tensor_percent=_number(record, "tensor_percent"),
        dram_percent=_number(record, "dram_percent"),
    )


def _processes(record: Mapping[str, object]) -> Iterator[GpuProcess]:
    for process in _list(record, "processes"):
        if isinstance(process, dict) and (pid := _whole(process, "pid")) is not None:
            yield GpuProcess(pid, _whole(process, "memory_bytes"), _number(process, "sm_percent"))


def _list(record: Mapping[str, object], key: str) -> list[object]:
    value = record.get(key)
    return value if isinstance(value, list) else []


def _text(record: Mapping[str, object], key: str) -> str | None:
    value = record.get(key)
    return value if isinstance(value, str) and value else None


def _number(record: Mapping[str, object], key: str) -> float | None:
    value = record.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _flag(record: Mapping[str, object], key: str) -> bool | None:
    value = record.get(key)
    return value if isinstance(value, bool) else None


def _whole(record: Mapping[str, object], key: str) -> int | None:
    value = record.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _with_errors(gpus: list[Gpu], kernel_log: str) -> tuple[list[Gpu], list[Gap]]:
    logged, gap = read_gpu_errors(kernel_log)
    by_bus = {bus_key(gpu.pci_bus_id or ""): gpu for gpu in gpus}
    own = [
        replace(gpu, errors=tuple(item.error for item in logged if by_bus.get(item.bus) is gpu))
        for gpu in gpus
    ]
    return own, [gap] if gap else []
