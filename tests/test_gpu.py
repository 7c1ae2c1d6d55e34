"""Reading the accelerators through a real child process whose driver library is a stand-in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hangdoctor.analysis.gpu import GpuActivity, read_gpu
from hangdoctor.collect import gpu_owners
from hangdoctor.collect.gpu import read_gpus
from hangdoctor.collect.gpu_errors import bus_key, read_gpu_errors
from hangdoctor.model import GpuError, GpuProcess

FAKES = Path(__file__).parent / "fake_gpu"

# What NVML said on 2×H200 while rank 1's kernel never ended (SGLang 0.5.12, driver 580.159.04).
SPINNING = {
    "util": [100, 0],
    "memory": [32814923776, 150754820096],
    "power_mw": 120548,
    "limit_mw": 700000,
    "clock": 1980,
    "max_clock": 1980,
    "pcie_kb_s": 1643,
    "name": "NVIDIA H200",
    "uuid": "GPU-0",
    "bus": "00000000:1B:00.0",
    "minor": 0,
    "mig": [0, 0],
    "reasons": 0,
    "ecc": 0,
    "processes": [[3082, 32159825920]],
    "samples": [[3082, 5, 71], [3082, 9, 96], [3082, 7, 80]],
    "nvlink_kib": [3, 5],
    "gpm": [1.55, 0.0, 0.004],
}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts the stand-in libraries first on our path, which child processes are told."""

    def configure(*gpus: object, **spec: object) -> None:
        monkeypatch.syspath_prepend(FAKES)
        monkeypatch.setenv("HD_FAKE_NVML", json.dumps({"gpus": gpus, **spec}))

    return configure


def test_every_reading_arrives_in_its_unit(fake: Callable[..., None], tmp_path: Path) -> None:
    fake(SPINNING)
    gpus, gaps = read_gpus(20, vendors=["nvidia"], kernel_log=str(tmp_path / "none"))
    assert gaps == ()
    (gpu,) = gpus
    assert (gpu.index, gpu.vendor, gpu.name, gpu.driver_version) == (0, "nvidia", "NVIDIA H200", "580.159.04")
    assert (gpu.utilization_percent, gpu.memory_utilization_percent) == (100.0, 0.0)
    assert (gpu.power_w, gpu.power_limit_w) == (pytest.approx(120.548), 700.0)
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes) == (32814923776, 150754820096)
    assert (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz) == (1980, 1980)
    assert (gpu.pcie_tx_bytes_s, gpu.nvlink_tx_bytes, gpu.nvlink_rx_bytes) == (1643000, 3072, 5120)
    assert (gpu.sm_occupancy_percent, gpu.tensor_percent, gpu.dram_percent) == (1.55, 0.0, 0.0)
    assert (gpu.is_mig, gpu.throttle_reasons, gpu.uncorrected_ecc) == (False, (), 0)
    assert gpu.processes == (GpuProcess(3082, 32159825920, 96.0),)


def test_what_a_gpu_cannot_say_is_none_not_zero(fake: Callable[..., None]) -> None:
    fake({"name": "Tesla", "util": [0, 0]})
    gpus, gaps = read_gpus(20, vendors=["nvidia"], kernel_log="/nonexistent")
    (gpu,) = gpus
    assert gaps == ()
    assert gpu.utilization_percent == 0.0
    assert gpu.power_w is None and gpu.memory_used_bytes is None and gpu.uncorrected_ecc is None
    assert gpu.is_mig is None and gpu.dram_percent is None and gpu.nvlink_tx_bytes is None
    assert gpu.processes == ()


def test_a_gpu_cut_into_instances_is_never_called_stuck(fake: Callable[..., None]) -> None:
    """NVML does not say how busy such a GPU is: "On MIG-enabled GPUs, querying device utilization rates is not
    currently supported" (nvml.h). Its twin is the same GPU whole, which spins."""
    known = {key: value for key, value in SPINNING.items() if key not in ("util", "samples")}
    fake(SPINNING, {**known, "mig": [1, 1], "uuid": "GPU-1"}, {**SPINNING, "mig": [1, 1], "uuid": "GPU-2"})
    gpus, gaps = read_gpus(20, vendors=["nvidia"], kernel_log="/nonexistent")
    assert gaps == () and [gpu.is_mig for gpu in gpus] == [False, True, True]
    assert [gpu.utilization_percent for gpu in gpus] == [100.0, None, 100.0]
    told = [read_gpu([(100.0, gpu), (110.0, gpu)]) for gpu in gpus]
    assert [one.activity for one in told] == [
        GpuActivity.SPINNING,
        GpuActivity.UNKNOWN,
        GpuActivity.UNKNOWN,
    ]
    assert ["MIG" in one.text for one in told] == [False, True, True]


def test_a_call_that_never_returns_is_named_and_earlier_gpus_are_kept(fake: Callable[..., None]) -> None:
    fake(SPINNING, SPINNING, SPINNING, hang=["nvmlDeviceGetPowerUsage", 1])
    started = time.monotonic()
    gpus, gaps = read_gpus(1.5, vendors=["nvidia"], kernel_log="/nonexistent")
    assert time.monotonic() - started < 6
    assert [gpu.index for gpu in gpus] == [0]
    (gap,) = gaps
    assert gap.reason == "NVML does not answer: GPU 1: nvmlDeviceGetPowerUsage has not returned in 1.5 s"
    assert gap.remedy and "nvidia-smi" in gap.remedy


def test_a_child_that_cannot_be_killed_is_left_behind_and_is_the_finding(
    fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(SPINNING, hang=["nvmlDeviceGetPowerUsage", 0])
    left: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda child: left.append(child))
    gpus, gaps = read_gpus(1.5, vendors=["nvidia"], kernel_log="/nonexistent")
    assert gpus == () and len(left) == 1 and left[0].poll() is None
    assert "cannot be interrupted in " in gaps[0].reason and gaps[0].reason.endswith("the driver is wedged")
    monkeypatch.undo()
    left[0].kill()
    left[0].wait(20)


def test_a_lost_gpu_is_said_and_does_not_hide_the_others(fake: Callable[..., None]) -> None:
    fake(
        SPINNING,
        SPINNING,
        SPINNING,
        **{"raise": [["nvmlDeviceGetHandleByIndex", 1, "GpuIsLost", "GPU is lost"]]},
    )
    gpus, gaps = read_gpus(20, vendors=["nvidia"], kernel_log="/nonexistent")
    assert [gpu.index for gpu in gpus] == [0, 2]
    assert [gap.reason for gap in gaps] == ["GPU 1: nvmlDeviceGetHandleByIndex: GPU is lost"]


def test_no_library_and_no_driver(fake: Callable[..., None]) -> None:
    fake(**{"raise": [["nvmlInit", None, "LibraryNotFound", "NVML Shared Library Not Found"]]})
    gpus, gaps = read_gpus(20, vendors=["nvidia"])
    assert gpus == ()
    assert [gap.reason for gap in gaps] == ["GPUs cannot be read: NVML Shared Library Not Found"]


def test_a_library_that_ends_the_child_is_a_gap_with_its_last_words(fake: Callable[..., None]) -> None:
    fake(SPINNING, crash=["nvmlInit", None])
    _, gaps = read_gpus(20, vendors=["nvidia"])
    assert gaps[0].reason == (
        "NVML could not be read: nvmlInit ended the reader (exit code 1): driver/library version mismatch"
    )


def test_a_host_without_gpus_costs_nothing_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hangdoctor.collect.gpu.DRIVER_FILES", {"nvidia": ("/nonexistent",)})
    monkeypatch.setattr(subprocess, "Popen", None)
    assert read_gpus(pids=[os.getpid()]) == ((), ())


def test_nothing_but_getters_is_ever_called(
    fake: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    fake(SPINNING)
    monkeypatch.setenv("HD_FAKE_CALLS", str(calls))
    read_gpus(20, vendors=["nvidia"], kernel_log="/nonexistent")
    called = set(calls.read_text().split())
    assert len(called) > 10
    assert {name for name in called if "Get" not in name} == {"nvmlInit"}


def test_amd_in_the_same_form(fake: Callable[..., None]) -> None:
    fake()
    gpus, gaps = read_gpus(20, vendors=["amd"])
    assert gaps == ()
    (gpu,) = gpus
    assert (gpu.vendor, gpu.name, gpu.pci_bus_id) == ("amd", "AMD Instinct MI300X", "0000:0c:00.0")
    assert (gpu.utilization_percent, gpu.memory_utilization_percent) == (100.0, 0.0)
    assert (gpu.power_w, gpu.power_limit_w, gpu.sm_clock_mhz) == (141.0, 750.0, 2100)
    assert gpu.memory_used_bytes == 1 << 30
    assert gpu.uncorrected_ecc is None
    assert gpu.processes == (GpuProcess(4711, 5 << 30),)


# Which process uses which GPU, from another PID namespace.


@pytest.fixture
def holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Starts real processes that hold given files open so often; the files stand for /dev/nvidiaN."""
    folder = re.escape(str(tmp_path))
    monkeypatch.setattr(gpu_owners, "_DEVICE", re.compile(rf"{folder}/nvidia(?P<minor>\d+)$"))
    monkeypatch.setattr(gpu_owners, "INITIAL_PID_NAMESPACE", 1)
    started: list[subprocess.Popen[bytes]] = []

    def start(**counts: int) -> int:
        fds = [
            os.open(tmp_path / name, os.O_CREAT | os.O_RDONLY) for name, n in counts.items() for _ in range(n)
        ]
        started.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=fds))
        for fd in fds:
            os.close(fd)
        return started[-1].pid

    yield start
    for process in started:
        process.communicate()


def test_pids_of_another_namespace_are_replaced_by_device_files(
    fake: Callable[..., None], holder: Callable[..., int]
) -> None:
    fake(*({**SPINNING, "minor": minor, "processes": [[9_000_000 + minor, 7]]} for minor in range(3)))
    first, second = holder(nvidia0=7, nvidia1=23, nvidia2=7), holder(nvidia0=7, nvidia1=7, nvidia2=23)
    launcher = holder(nvidia0=7, nvidia1=7, nvidia2=7)
    gpus, gaps = read_gpus(20, pids=[first, second, launcher], vendors=["nvidia"], kernel_log="/nonexistent")
    assert [gpu.processes for gpu in gpus] == [
        (),
        (GpuProcess(first, how="device files"),),
        (GpuProcess(second, how="device files"),),
    ]
    assert len(gaps) == 1 and "another PID namespace" in gaps[0].reason


def test_pids_that_agree_with_the_device_files_are_kept(
    fake: Callable[..., None], holder: Callable[..., int]
) -> None:
    rank = holder(nvidia0=7, nvidia1=23)
    fake(*({**SPINNING, "minor": n, "processes": [[rank, 7]] if n else []} for n in range(2)))
    gpus, gaps = read_gpus(20, pids=[rank], vendors=["nvidia"], kernel_log="/nonexistent")
    assert gaps == ()
    assert [gpu.processes for gpu in gpus] == [(), (GpuProcess(rank, 7, None),)]


def test_a_target_on_gpus_that_we_cannot_see(holder: Callable[..., int]) -> None:
    rank = holder(nvidia0=1)
    _, gaps = read_gpus(pids=[os.getpid(), rank], vendors=[])
    assert gaps[0].reason == f"pid {rank} has GPU device files open, but no GPU driver is visible from here"


# The kernel's log.

LOG = """\
6,1201,5000000,-;usb 1-1: new device
3,1202,6000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault
3,1203,7000000,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
"""


def test_xid_errors_reach_the_gpu_they_belong_to(fake: Callable[..., None], tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(LOG)
    fake({**SPINNING, "bus": "00000000:1B:00.0"}, {**SPINNING, "bus": "00000000:5C:00.0"})
    gpus, gaps = read_gpus(20, vendors=["nvidia"], kernel_log=str(log))
    assert gaps == ()
    (error,) = gpus[0].errors
    assert (error.code, error.pid) == (79, None) and "fallen off the bus" in error.text
    assert error.age_s is not None and error.age_s == pytest.approx(time.monotonic() - 7, abs=5)
    assert gpus[1].errors == ()


def test_the_kernel_log_through_a_pipe_that_runs_dry(tmp_path: Path) -> None:
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    keeper = os.open(fifo, os.O_RDWR)
    os.write(keeper, LOG.splitlines()[1].encode())
    found, gap = read_gpu_errors(str(fifo))
    os.close(keeper)
    assert gap is None
    assert [item.bus for item in found] == [(0, 0x3B, 0)]
    assert isinstance(found[0].error, GpuError) and found[0].error.pid == 4711


def test_a_kernel_log_we_may_not_read_is_a_gap(tmp_path: Path) -> None:
    found, gap = read_gpu_errors(str(tmp_path))  # a folder: opens, but cannot be read
    assert found == () and gap is None
    (tmp_path / "loop").symlink_to("loop")
    found, gap = read_gpu_errors(str(tmp_path / "loop"))
    assert found == () and gap is not None and gap.remedy and "dmesg" in gap.remedy


@pytest.mark.parametrize(
    ("text", "key"), [("00000000:1B:00.0", (0, 27, 0)), ("0000:1b:00", (0, 27, 0)), ("", ()), ("n/a", ())]
)
def test_bus_addresses_compare_across_notations(text: str, key: tuple[int, ...]) -> None:
    assert bus_key(text) == key


def test_two_looks_at_once_do_not_disturb_each_other(fake: Callable[..., None]) -> None:
    fake(SPINNING)
    answers: list[int] = []
    looks = [
        threading.Thread(target=lambda: answers.append(len(read_gpus(20, vendors=["nvidia"])[0])))
        for _ in range(3)
    ]
    for look in looks:
        look.start()
    for look in looks:
        look.join()
    assert answers == [1, 1, 1]


def test_the_child_finds_packages_where_we_do_and_nothing_else(
    fake: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the working directory of whoever is called out of bed, nor in a folder that is relative to it."""
    fake(SPINNING)
    for folder in (tmp_path, tmp_path / "relative"):
        folder.mkdir(exist_ok=True)
        (folder / "pynvml.py").write_text("raise SystemExit('the wrong one')\n")
    monkeypatch.chdir(tmp_path)
    for entry in ("relative", ""):
        monkeypatch.syspath_prepend(entry)
    gpus, gaps = read_gpus(20, vendors=["nvidia"], kernel_log="/nonexistent")
    assert gaps == () and [gpu.name for gpu in gpus] == ["NVIDIA H200"]
