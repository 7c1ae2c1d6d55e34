"""A stand-in for AMD's amdsmi in the probe's process: one MI300X as amdsmi 7.0.2 describes it."""


class AmdSmiLibraryException(Exception):
    pass


class AmdSmiClkType:
    GFX = 0


def amdsmi_init():
    pass


def amdsmi_get_processor_handles():
    return ["handle"]


def amdsmi_get_gpu_activity(handle):
    return {"gfx_activity": 100, "umc_activity": 0, "mm_activity": "N/A"}


def amdsmi_get_power_info(handle):
    return {"current_socket_power": 65535, "average_socket_power": 141, "power_limit": 750000000}


def amdsmi_get_gpu_vram_usage(handle):
    return {"vram_total": 196592, "vram_used": 1024}


def amdsmi_get_clock_info(handle, kind):
    return {"clk": 2100, "min_clk": 132, "max_clk": 2100}


def amdsmi_get_gpu_total_ecc_count(handle):
    raise AmdSmiLibraryException("AMDSMI_STATUS_NOT_SUPPORTED")


def amdsmi_get_gpu_asic_info(handle):
    return {"market_name": "AMD Instinct MI300X"}


def amdsmi_get_gpu_device_uuid(handle):
    return "a5ff74a1-0000-1000-80ff-ffffffffffff"


def amdsmi_get_gpu_device_bdf(handle):
    return "0000:0c:00.0"


def amdsmi_get_gpu_process_list(handle):
    return [{"name": "python3", "pid": 4711, "mem": 5 << 30, "engine_usage": {"gfx": 0, "enc": 0}}]
