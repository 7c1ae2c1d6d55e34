"""The disposable child that talks to a GPU driver, one JSON object a line on standard output.

It runs on its own because any driver call can block for ever in the kernel when the driver is wedged
(NVIDIA/open-gpu-kernel-modules #968 and #1333): the parent keeps what was printed and abandons the rest. So every
call is announced before it is made, each GPU is printed as soon as it is read, and nothing of hangdoctor is imported.

Only getters are called; nothing here sets, resets, clears or creates a CUDA context. Lines:

    {"at": "GPU 3: nvmlDeviceGetPowerUsage"}     the call that comes next
    {"gpu": {...}}                               one GPU; absent values are null
    {"more": {"index": 3, ...}}                  what took longer to measure on the same GPU
    {"absent": "..."}                            no such driver or library here
    {"error": "..."}                             a call failed in a way that means something
    {"done": true}                               nothing more will come
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

Record = dict[str, object]

# Failures that say "this GPU or driver version has no such reading". Anything else is worth a line.
NO_READING = (
    "NVMLError_NotSupported",
    "NVMLError_NoPermission",
    "NVMLError_NotFound",
    "NVMLError_NoData",
    "NVMLError_FunctionNotFound",
    "NVMLError_InvalidArgument",
    "NVMLError_ArgumentVersionMismatch",
)

ALL_NVLINKS = 0xFFFFFFFF
"""scopeId that asks for the sum over all links (nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_*)."""

GPM_WINDOW_S = 0.1
"""nvmlGpmMetricsGet wants two samples at least 100 ms apart (NVML API reference, GPM functions)."""


def say(**line: object) -> None:
    """One line to the parent, at once: what is still in a buffer when a call blocks is lost."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Asker:
    """Calls one library's functions by name, announcing each; a missing reading is ``None``."""

    def __init__(self, library: Any, subject: str, quiet: tuple[str, ...]) -> None:
        self.library = library
        self.subject = subject
        self.quiet = quiet

    def __call__(self, name: str, *args: object) -> Any:
        call: Callable[..., Any] | None = getattr(self.library, name, None)
        if call is None:
            return None
        say(at=f"{self.subject}: {name}")
        try:
            return call(*args)
        # The library's own base class differs between vendors and fakes; the type's name decides.
        except Exception as problem:
            if type(problem).__name__ not in self.quiet:
                say(error=f"{self.subject}: {name}: {problem}")
            return None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _scaled(value: object, factor: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value * factor


def _whole(value: object, factor: int = 1) -> int | None:
    return value * factor if isinstance(value, int) and not isinstance(value, bool) else None


def probe_nvidia() -> None:
    """Reads every GPU that NVML shows."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return say(absent="the Python package nvidia-ml-py is not installed")
    say(at="nvmlInit")
    try:
        nvml.nvmlInit()
    except Exception as problem:
        kind = type(problem).__name__
        if kind in ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"):
            return say(absent=str(problem))
        return say(error=f"nvmlInit: {problem}")
    driver = Asker(nvml, "driver", NO_READING)
    version = _text(driver("nvmlSystemGetDriverVersion"))
    gpus = []
    for index in range(driver("nvmlDeviceGetCount") or 0):
        ask = Asker(nvml, f"GPU {index}", NO_READING)
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            continue
        gpus.append((index, ask, handle, _gpm_sample(ask, handle), time.monotonic()))
        say(gpu=_nvidia_gpu(ask, handle, index, version))
    # Two measurements of 20 ms each, which fit into the time that a second sample of GPM has to wait anyway.
    for index, ask, handle, _, _ in gpus:
        say(more={"index": index, **_pcie(ask, handle)})
    for index, ask, handle, first, taken in gpus:
        if first is not None:
            time.sleep(max(0.0, taken + GPM_WINDOW_S - time.monotonic()))
            say(more={"index": index, **_gpm_metrics(ask, handle, first)})
    return None


def _nvidia_gpu(ask: Asker, handle: object, index: int, version: str | None) -> Record:
    nvml = ask.library
    use = ask("nvmlDeviceGetUtilizationRates", handle)
    memory = ask("nvmlDeviceGetMemoryInfo", handle)
    pci = ask("nvmlDeviceGetPciInfo", handle)
    mig = ask("nvmlDeviceGetMigMode", handle)
    return {
        "vendor": "nvidia",
        "driver_version": version,
        "index": index,
        "name": _text(ask("nvmlDeviceGetName", handle)),
        "uuid": _text(ask("nvmlDeviceGetUUID", handle)),
        "minor": _whole(ask("nvmlDeviceGetMinorNumber", handle)),
        "pci_bus_id": _text(getattr(pci, "busId", None)),
        "is_mig": bool(mig[0]) if isinstance(mig, (list, tuple)) else None,
        "utilization_percent": _scaled(getattr(use, "gpu", None), 1.0),
        "memory_utilization_percent": _scaled(getattr(use, "memory", None), 1.0),
        "memory_used_bytes": _whole(getattr(memory, "used", None)),
        "memory_total_bytes": _whole(getattr(memory, "total", None)),
        "power_w": _scaled(ask("nvmlDeviceGetPowerUsage", handle), 0.001),
        "power_limit_w": _scaled(ask("nvmlDeviceGetEnforcedPowerLimit", handle), 0.001),
        "sm_clock_mhz": _whole(ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM)),
        "sm_clock_max_mhz": _whole(ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM)),
        "memory_clock_mhz": _whole(ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM)),
        **_nvlink(ask, handle),
        "throttle_reasons": _throttling(ask, handle),
        "uncorrected_ecc": _whole(ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0)),
        "processes": _nvidia_processes(ask, handle),
    }


def _pcie(ask: Asker, handle: object) -> Record:
    """NVML gives KB/s, and measures for 20 ms."""
    return {
        "pcie_tx_bytes_s": _whole(ask("nvmlDeviceGetPcieThroughput", handle, 0), 1000),
        "pcie_rx_bytes_s": _whole(ask("nvmlDeviceGetPcieThroughput", handle, 1), 1000),
    }


def _nvlink(ask: Asker, handle: object) -> Record:
    """Payload bytes over all links since the driver started (fields 138 and 139, in KiB)."""
    nvml = ask.library
    names = ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")
    wanted = [(getattr(nvml, name, None), ALL_NVLINKS) for name in names]
    if any(field is None for field, _ in wanted):
        return {}
    values = ask("nvmlDeviceGetFieldValues", handle, wanted) or ()
    counts = [int(v.value.ullVal) * 1024 if v.nvmlReturn == 0 else None for v in values]
    return dict(zip(("nvlink_tx_bytes", "nvlink_rx_bytes"), counts, strict=False))


THROTTLING = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
"""nvmlClocksEventReason* in nvml.h."""


def _throttling(ask: Asker, handle: object) -> list[str]:
    mask = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if mask is None:  # the name before driver 535
        mask = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return [word for bit, word in THROTTLING.items() if (mask or 0) & bit]


def _nvidia_processes(ask: Asker, handle: object) -> list[Record]:
    running = ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
    since = int((time.time() - 2.0) * 1e6)
    newest: dict[int, tuple[int, float]] = {}
    for sample in ask("nvmlDeviceGetProcessUtilization", handle, since) or ():
        if sample.timeStamp >= newest.get(sample.pid, (0, 0.0))[0]:
            newest[sample.pid] = (sample.timeStamp, float(sample.smUtil))
    return [
        {
            "pid": int(process.pid),
            "memory_bytes": _whole(process.usedGpuMemory),
            "sm_percent": newest[process.pid][1] if process.pid in newest else None,
        }
        for process in running
    ]


def _gpm_sample(ask: Asker, handle: object) -> Any:
    support = ask("nvmlGpmQueryDeviceSupport", handle)
    if support is None or not getattr(support, "isSupportedDevice", 0):
        return None
    sample = ask("nvmlGpmSampleAlloc")
    if sample is not None:
        ask("nvmlGpmSampleGet", handle, sample)
    return sample


def _gpm_metrics(ask: Asker, handle: object, first: object) -> Record:
    second = _gpm_sample(ask, handle)
    if second is None:
        return {}
    nvml = ask.library
    wanted = {
        "sm_occupancy_percent": nvml.NVML_GPM_METRIC_SM_OCCUPANCY,
        "tensor_percent": nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        "dram_percent": nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    }
    request = nvml.c_nvmlGpmMetricsGet_t()
    request.version = nvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(wanted)
    request.sample1, request.sample2 = first, second
    for slot, metric in enumerate(wanted.values()):
        request.metrics[slot].metricId = metric
    if ask("nvmlGpmMetricsGet", request) is None:
        return {}
    results = [request.metrics[slot] for slot in range(len(wanted))]
    ask("nvmlGpmSampleFree", first)
    ask("nvmlGpmSampleFree", second)
    return {
        name: round(result.value, 2) if result.nvmlReturn == 0 else None
        for name, result in zip(wanted, results, strict=True)
    }


AMD_NO_READING = ("AmdSmiLibraryException", "AmdSmiParameterException")


def probe_amd() -> None:
    """Reads every GPU that amdsmi shows (API of amdsmi 6.x and 7.x)."""
    try:
        smi = importlib.import_module("amdsmi")
    # amdsmi loads its C library on import and raises whatever ctypes or its own code raises.
    except Exception as problem:
        return say(absent=f"amdsmi cannot be used: {problem}")
    say(at="amdsmi_init")
    try:
        smi.amdsmi_init()
    except Exception as problem:
        return say(error=f"amdsmi_init: {problem}")
    for index, handle in enumerate(Asker(smi, "driver", ())("amdsmi_get_processor_handles") or ()):
        say(gpu=_amd_gpu(Asker(smi, f"GPU {index}", AMD_NO_READING), handle, index))
    return None


def _amd_gpu(ask: Asker, handle: object, index: int) -> Record:
    activity = ask("amdsmi_get_gpu_activity", handle) or {}
    power = ask("amdsmi_get_power_info", handle) or {}
    memory = ask("amdsmi_get_gpu_vram_usage", handle) or {}
    clock_types = getattr(ask.library, "AmdSmiClkType", None)
    clock = ask("amdsmi_get_clock_info", handle, clock_types.GFX) if clock_types else None
    errors = ask("amdsmi_get_gpu_total_ecc_count", handle) or {}
    watts = [power.get(key) for key in ("current_socket_power", "average_socket_power", "socket_power")]
    return {
        "vendor": "amd",
        "index": index,
        "name": _text((ask("amdsmi_get_gpu_asic_info", handle) or {}).get("market_name")),
        "uuid": _text(ask("amdsmi_get_gpu_device_uuid", handle)),
        "pci_bus_id": _text(ask("amdsmi_get_gpu_device_bdf", handle)),
        "utilization_percent": _scaled(activity.get("gfx_activity"), 1.0),
        "memory_utilization_percent": _scaled(activity.get("umc_activity"), 1.0),
        # MiB in both libraries' generations
        "memory_used_bytes": _whole(memory.get("vram_used"), 1 << 20),
        "memory_total_bytes": _whole(memory.get("vram_total"), 1 << 20),
        "power_w": next((w for w in map(_watts, watts) if w is not None), None),
        "power_limit_w": _watts(power.get("power_limit")),
        "sm_clock_mhz": _whole((clock or {}).get("clk")),
        "sm_clock_max_mhz": _whole((clock or {}).get("max_clk")),
        "uncorrected_ecc": _whole(errors.get("uncorrectable_count")),
        "processes": _amd_processes(ask, handle),
    }


def _watts(value: object) -> float | None:
    """0 and 65535 stand for "not measured on this part"; the cap came in microwatts before amdsmi 6.3."""
    watts = _scaled(value, 1.0)
    if watts is None or watts in (0.0, 65535.0):
        return None
    return watts / 1e6 if watts > 1e5 else watts


def _amd_processes(ask: Asker, handle: object) -> list[Record]:
    return [
        {"pid": int(process["pid"]), "memory_bytes": _whole(process.get("mem")), "sm_percent": None}
        for process in ask("amdsmi_get_gpu_process_list", handle) or ()
        if isinstance(process, dict) and process.get("pid")
    ]


def main() -> None:
    """``gpu_probe.py nvidia|amd SECONDS``; ends by itself should the parent be gone."""
    signal.alarm(int(float(sys.argv[2])) + 2)
    {"nvidia": probe_nvidia, "amd": probe_amd}[sys.argv[1]]()
    say(done=True)


if __name__ == "__main__":
    main()
