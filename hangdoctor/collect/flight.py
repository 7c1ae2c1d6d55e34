"""PyTorch's Flight Recorder, read from the memory of a rank: no pipe, no dump, no cooperation, no stop.

The recorder is a ring of the last collectives of the process (``TORCH_FR_BUFFER_SIZE``; 2000 by default from torch
2.11 on, off before). It hangs off a function-local static that is hidden from the dynamic symbols but stands in
``.symtab`` of the wheels' libraries. Which layout the ring has is found by structure, not by version: the first one
under which every entry makes sense.

What bypasses torch.distributed is not in it (vLLM's PyNccl and custom all-reduce).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

from hangdoctor.collect import elf
from hangdoctor.collect.denials import explain_denial
from hangdoctor.collect.flight_ring import BUDGET_BYTES, NotARing, Record, read_ring
from hangdoctor.collect.memory import Memory, Region, read_regions
from hangdoctor.model import FlightEntry, Gap

_TRIES = 3
_LIBRARY = re.compile(r"libtorch_(?:cpu|cuda|hip|xpu)\.so")
# c10d::FlightRecorder<c10::Event>::get()::instance and the like: the event type (CUDAEvent moved from at::cuda to
# c10::cuda in 2.14) and, before 2.6, the class (NCCLTraceBuffer) vary.
_INSTANCE = re.compile(rb"_ZZN4c10d\d\d(?:FlightRecorder|NCCLTraceBuffer)\w{0,80}3getEvE8instance")
_OFF = "the recorder is off"


def read_flight(pid: int) -> tuple[FlightEntry, ...] | Gap | None:
    """Each group's newest collectives (and point-to-point calls) and its oldest pending ones, oldest first.

    ``None``: no torch in the process. Empty: torch without a process group, or nothing recorded yet. A ``Gap``:
    the recorder is off, its symbol stripped, its layout unknown, or the memory may not be read. Never raises.

    The first look at a library searches its file (about 100 ms for libtorch_cpu.so; see :func:`elf.known_symtabs`);
    a ring of 2000 entries takes about 3 ms. Reads ``maps``: call it behind a deadline.
    """
    try:
        libraries = [
            region
            for region in elf.list_images(read_regions(pid))
            if _LIBRARY.fullmatch(os.path.basename(region.path))
        ]
        return _read_libraries(pid, libraries) if libraries else None
    except NotARing as error:
        remedy = "start the server with TORCH_FR_BUFFER_SIZE=2000" if str(error) == _OFF else None
        return Gap("flight-recorder", f"pid {pid}", str(error), remedy)
    except elf.NotAnImage as error:
        return Gap("flight-recorder", f"pid {pid}", f"torch's library cannot be searched: {error}")
    except (ProcessLookupError, FileNotFoundError):
        return Gap("flight-recorder", f"pid {pid}", "the process, or the library it had loaded, is gone")
    except PermissionError:
        denial = explain_denial(pid, is_attach=True)
        reason = f"not permitted to read its memory ({denial.cause})"
        return Gap("flight-recorder", f"pid {pid}", reason, denial.remedy)
    except OSError as error:
        return Gap("flight-recorder", f"pid {pid}", f"its memory could not be read ({error.strerror})")


def _read_libraries(pid: int, libraries: Sequence[Region]) -> tuple[FlightEntry, ...]:
    instances: list[tuple[str, int]] = []
    has_symbol = False
    memory = Memory(pid, BUDGET_BYTES)
    for library in libraries:
        for symbol in elf.find_hidden(pid, memory, library, _INSTANCE).values():
            has_symbol = True
            instance = memory.u64(symbol.address)
            if instance:
                instances.append((os.path.basename(library.path), instance))
    if not has_symbol:
        raise NotARing("torch's libraries were stripped of the symbol that leads to the recorder")
    records = [record for name, instance in instances for record in _read_twice(pid, name, instance)]
    now_ns = time.time_ns()
    return tuple(_as_entry(record, now_ns) for record in sorted(records, key=lambda one: one.created_ns))


def _read_twice(pid: int, name: str, instance: int) -> list[Record]:
    """Only entries that read the same twice: the program may be writing."""
    before = read_ring(pid, name, instance)
    same: list[Record] = []
    for _ in range(_TRIES):
        after = read_ring(pid, name, instance)
        known = set(before)
        same = [record for record in after if record in known]
        if len(same) == len(after):
            break
        before = after
    return same


def _as_entry(record: Record, now_ns: int) -> FlightEntry:
    return FlightEntry(
        group=record.group,
        op=record.op,
        sequence=None if record.is_p2p else record.sequence,
        state=record.state,
        age_s=max(0.0, (now_ns - record.created_ns) / 1e9),
        group_description=record.description or None,
        p2p_sequence=record.p2p_sequence if record.is_p2p else None,
        input_sizes=record.input_sizes,
        output_sizes=record.output_sizes,
        dtype=record.dtype,
        timeout_s=record.timeout_ms / 1e3,
    )
