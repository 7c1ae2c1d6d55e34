"""Where ``c10d::FlightRecorder`` and its entries keep what we read: byte offsets, libstdc++.

Printed with ``offsetof`` against the headers (torch/csrc/distributed/c10d/FlightRecorder.hpp) of 2.6.0, 2.7.1, 2.8.0,
2.9.1, 2.10.0, 2.11.0, 2.12.1, 2.13.0 and 2.14.1. Read from a running job: 2.13.0 (gloo). The others, and all rings
of NCCL, are from the headers only; the event type is held by pointer, so it does not change the layout.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RingLayout:
    """The recorder: the same from 2.6 to 2.14."""

    enabled: int
    entries: int
    """std::vector: begin, end, capacity."""
    maximum: int
    following: int
    """Index of the entry that is written next, once the ring is full."""
    size: int


@dataclass(frozen=True, slots=True)
class EntryLayout:
    """One collective."""

    size: int
    pg_id: int
    group: int
    """std::tuple<std::string, std::string>: the description first, the name 32 bytes on."""
    sequence: int
    p2p_sequence: int
    name: int
    created: int
    """Nanoseconds since the epoch, then the time-out in milliseconds."""
    is_p2p: int
    started: int
    completed: int
    """std::optional<int64_t>: the flag is 8 bytes on."""
    input_dims: int
    """c10::SmallVector<int64_t, 4>: pointer, u32 size, u32 capacity, inline values."""
    input_dtypes: int
    """std::vector<c10::ScalarType>, a byte each."""
    output_dims: int
    sizes: int
    """c10::SmallVector<int64_t, 8>: the dimensions of all inputs, then of all outputs."""
    retired: int


# std::mutex before the entries is 40 bytes on x86-64 and 48 on aarch64.
_MUTEX = {"x86_64": 40, "aarch64": 48}.get(platform.machine(), 40)
RING = RingLayout(enabled=0, entries=8 + _MUTEX, maximum=32 + _MUTEX, following=40 + _MUTEX, size=56 + _MUTEX)

_2_10 = EntryLayout(
    size=512,
    pg_id=16,
    group=24,
    sequence=88,
    p2p_sequence=96,
    name=112,
    created=176,
    is_p2p=192,
    started=208,
    completed=224,
    input_dims=240,
    input_dtypes=288,
    output_dims=312,
    sizes=384,
    retired=504,
)
_2_8 = EntryLayout(
    size=504,
    pg_id=8,
    group=16,
    sequence=80,
    p2p_sequence=88,
    name=104,
    created=168,
    is_p2p=184,
    started=200,
    completed=216,
    input_dims=232,
    input_dtypes=280,
    output_dims=304,
    sizes=376,
    retired=496,
)
LAYOUTS = (_2_10, _2_8, replace(_2_8, size=464, retired=456))
"""2.10-2.14; 2.8 and 2.9, before reset epochs; 2.6 and 2.7, before thread names."""

_DTYPES = {
    0: "Byte",
    1: "Char",
    2: "Short",
    3: "Int",
    4: "Long",
    5: "Half",
    6: "Float",
    7: "Double",
    9: "ComplexFloat",
    10: "ComplexDouble",
    11: "Bool",
    15: "BFloat16",
    23: "Float8_e5m2",
    24: "Float8_e4m3fn",
    25: "Float8_e5m2fnuz",
    26: "Float8_e4m3fnuz",
    27: "UInt16",
    28: "UInt32",
    29: "UInt64",
}


def dtype_name(number: int) -> str | None:
    """As the recorder's own dump prints ``c10::ScalarType`` (torch/headeronly/core/ScalarType.h)."""
    return _DTYPES.get(number)
