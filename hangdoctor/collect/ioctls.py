"""Names of the requests that CUDA and ROCm make of the kernel: in which of them a thread hangs is evidence.

Numbers from NVIDIA/open-gpu-kernel-modules: kernel-open/common/inc/nv-ioctl-numbers.h,
src/nvidia/arch/nvalloc/unix/include/nv_escape.h and kernel-open/nvidia-uvm/uvm_ioctl.h, and of Linux:
include/uapi/linux/kfd_ioctl.h, include/uapi/drm/drm.h and amdgpu_drm.h. All are ABI.
"""

from __future__ import annotations

_NV_MAGIC = ord("F")
_RESOURCE_MANAGER = {
    0x27: "RM_ALLOC_MEMORY",
    0x29: "RM_FREE",
    0x2A: "RM_CONTROL",
    0x2B: "RM_ALLOC",
    0x32: "RM_CONFIG_GET",
    0x34: "RM_DUP_OBJECT",
    0x35: "RM_SHARE",
    0x4A: "RM_VID_HEAP_CONTROL",
    0x4E: "RM_MAP_MEMORY",
    0x4F: "RM_UNMAP_MEMORY",
    0x57: "RM_MAP_MEMORY_DMA",
    0x58: "RM_UNMAP_MEMORY_DMA",
    200: "CARD_INFO",
    201: "REGISTER_FD",
    206: "ALLOC_OS_EVENT",
    207: "FREE_OS_EVENT",
    209: "STATUS_CODE",
    210: "CHECK_VERSION_STR",
    214: "SYS_PARAMS",
    218: "WAIT_OPEN_COMPLETE",
}
_UVM = {
    0x30000001: "UVM_INITIALIZE",
    0x30000002: "UVM_DEINITIALIZE",
    23: "UVM_CREATE_RANGE_GROUP",
    25: "UVM_REGISTER_GPU_VASPACE",
    27: "UVM_REGISTER_CHANNEL",
    28: "UVM_UNREGISTER_CHANNEL",
    29: "UVM_ENABLE_PEER_ACCESS",
    33: "UVM_MAP_EXTERNAL_ALLOCATION",
    34: "UVM_FREE",
    37: "UVM_REGISTER_GPU",
    38: "UVM_UNREGISTER_GPU",
    51: "UVM_MIGRATE",
}


_KFD_MAGIC, _DRM_MAGIC = ord("K"), ord("d")
_KFD = {
    0x02: "KFD_CREATE_QUEUE",
    0x03: "KFD_DESTROY_QUEUE",
    0x08: "KFD_CREATE_EVENT",
    0x0C: "KFD_WAIT_EVENTS",
    0x16: "KFD_ALLOC_MEMORY_OF_GPU",
    0x17: "KFD_FREE_MEMORY_OF_GPU",
    0x18: "KFD_MAP_MEMORY_TO_GPU",
    0x19: "KFD_UNMAP_MEMORY_FROM_GPU",
    0x20: "KFD_SVM",
}
_DRM = {
    0x44: "AMDGPU_CS",
    0x47: "AMDGPU_GEM_WAIT_IDLE",
    0x48: "AMDGPU_GEM_VA",
    0x49: "AMDGPU_WAIT_CS",
    0x52: "AMDGPU_WAIT_FENCES",
    0xC3: "SYNCOBJ_WAIT",
    0xCA: "SYNCOBJ_TIMELINE_WAIT",
}
"""From 0x40 on the numbers are a driver's own; the ones here are amdgpu's."""


def describe_ioctl(target: str | None, request: int) -> str:
    """The request's name on a device of NVIDIA or AMD, else its number."""
    if target is not None and target.startswith("/dev/nvidia-uvm"):
        name = _UVM.get(request)
    elif target is not None and target.startswith("/dev/nvidia") and request >> 8 & 0xFF == _NV_MAGIC:
        name = _RESOURCE_MANAGER.get(request & 0xFF)
    elif target == "/dev/kfd" and request >> 8 & 0xFF == _KFD_MAGIC:
        name = _KFD.get(request & 0xFF)
    elif target is not None and target.startswith("/dev/dri/") and request >> 8 & 0xFF == _DRM_MAGIC:
        name = _DRM.get(request & 0xFF)
    else:
        name = None
    return f"{name} ({request:#x})" if name else f"request {request:#x}"
