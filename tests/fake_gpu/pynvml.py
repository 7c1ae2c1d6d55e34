# ruff: noqa: N802 (the names are the library's)
"""A stand-in for nvidia-ml-py in the probe's process. HD_FAKE_NVML holds JSON:

{"gpus": [{"power_mw": 118800, ...}], "hang": ["function", gpu], "raise": [["function", gpu, "Kind", "text"]]}
"""

import json
import os
import signal
from types import SimpleNamespace

SPEC = json.loads(os.environ["HD_FAKE_NVML"])
CALLS = os.environ.get("HD_FAKE_CALLS")

NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139
NVML_GPM_METRIC_SM_OCCUPANCY, NVML_GPM_METRIC_ANY_TENSOR_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL = 3, 5, 10
NVML_GPM_METRICS_GET_VERSION = 1


class NVMLError(Exception):
    pass


def kind_of_error(name):
    return type(f"NVMLError_{name}", (NVMLError,), {})


def reach(function, gpu=None):
    if CALLS:
        with open(CALLS, "a") as calls:
            calls.write(f"{function}\n")
    for name, number, kind, text in SPEC.get("raise", []):
        if name == function and number in (None, gpu):
            raise kind_of_error(kind)(text)
    if SPEC.get("hang") == [function, gpu]:
        signal.pause()
    if SPEC.get("crash") == [function, gpu]:
        raise SystemExit("driver/library version mismatch")


def nvmlInit():
    reach("nvmlInit")


def nvmlSystemGetDriverVersion():
    return "580.159.04"


def nvmlDeviceGetCount():
    return len(SPEC["gpus"])


def nvmlDeviceGetHandleByIndex(index):
    reach("nvmlDeviceGetHandleByIndex", index)
    return index


def reading(function, key, wrap=lambda value: value):
    def call(handle, *_):
        reach(function, handle)
        value = SPEC["gpus"][handle].get(key)
        if value is None:
            raise kind_of_error("NotSupported")("Not Supported")
        return wrap(value)

    globals()[function] = call


def fields(*names):
    return lambda values: SimpleNamespace(**dict(zip(names, values, strict=True)))


reading("nvmlDeviceGetUtilizationRates", "util", fields("gpu", "memory"))
reading("nvmlDeviceGetMemoryInfo", "memory", fields("used", "total"))
reading("nvmlDeviceGetPciInfo", "bus", lambda bus: SimpleNamespace(busId=bus))
reading("nvmlDeviceGetMigMode", "mig")
reading("nvmlDeviceGetName", "name", str.encode)  # old bindings give bytes
reading("nvmlDeviceGetUUID", "uuid")
reading("nvmlDeviceGetMinorNumber", "minor")
reading("nvmlDeviceGetPowerUsage", "power_mw")
reading("nvmlDeviceGetEnforcedPowerLimit", "limit_mw")
reading("nvmlDeviceGetClockInfo", "clock")
reading("nvmlDeviceGetMaxClockInfo", "max_clock")
reading("nvmlDeviceGetPcieThroughput", "pcie_kb_s")
reading("nvmlDeviceGetCurrentClocksEventReasons", "reasons")
reading("nvmlDeviceGetTotalEccErrors", "ecc")
reading(
    "nvmlDeviceGetComputeRunningProcesses",
    "processes",
    lambda rows: [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in rows],
)
reading(
    "nvmlDeviceGetProcessUtilization",
    "samples",
    lambda rows: [SimpleNamespace(pid=pid, timeStamp=stamp, smUtil=use) for pid, stamp, use in rows],
)
reading(
    "nvmlDeviceGetFieldValues",
    "nvlink_kib",
    lambda rows: [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=row)) for row in rows],
)


def nvmlGpmQueryDeviceSupport(handle):
    return SimpleNamespace(isSupportedDevice=int("gpm" in SPEC["gpus"][handle]))


def nvmlGpmSampleAlloc():
    return {}


def nvmlGpmSampleGet(handle, sample):
    sample["gpu"] = handle


def nvmlGpmSampleFree(sample):
    sample.clear()


def c_nvmlGpmMetricsGet_t():
    return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=0, value=0.0) for _ in range(3)])


def nvmlGpmMetricsGet(request):
    values = SPEC["gpus"][request.sample1["gpu"]]["gpm"]
    for slot, value in zip(request.metrics, values, strict=True):
        slot.value = value
    return request
