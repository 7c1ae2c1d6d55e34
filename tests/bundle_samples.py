"""Captures for the tests of the bundle: small and full, of a realistic size, and random ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from hangdoctor import model as m

_TEXT = st.text(st.characters(), max_size=8)  # with lone surrogates: names need not be UTF-8
_INT = st.integers(-(2**63), 2**64)
_FLOAT = st.floats(allow_nan=False, allow_infinity=False)


def sample() -> m.Capture:
    """Two looks at one process in which every field of format 1.0 is set. The bundle in format-1.0/ holds it,
    so this never changes: later fields are tested by ``filled`` and ``captures``.
    """
    frames = (
        m.Frame("Event.wait", "/usr/lib/python3.12/threading.py", 655),
        m.Frame("poll", "poll.c", None, "libc.so.6", is_native=True),
    )
    stack = m.Stack(frames, m.Method.PY_SPY_NONBLOCKING, is_torn=True)
    thread = m.Thread(
        tid=4712,
        name="MainThread",
        comm="pt_main_thread",
        state="S",
        stack=stack,
        owns_gil=False,
        wchan="futex_do_wait",
        syscall=m.Syscall(
            "futex", (0x7F10AADFDB00, 0x189), 3, "pipe:[17]", 0.5, True, "futex wait, private, 0.5 s left"
        ),
        kernel_stack=("futex_do_wait+0x1/0x2", "do_syscall_64+0x3/0x4"),
        user_ticks=101,
        system_ticks=7,
        run_ns=1_080_000_000,
        voluntary_switches=11,
        involuntary_switches=13,
        last_ran_s=0.25,
        minor_faults=17,
        major_faults=19,
        lock=m.LockWait("mutex", 0xFFFF_F000_0000_1000, 4713, 4711, "recorded", is_shared=True),
        spin=m.SpinSample(50, 0.96),
        is_active_hint=True,
    )
    flight = m.FlightEntry(
        "0",
        "all_reduce",
        81,
        "started",
        3.5,
        "default_pg",
        2,
        "[[3]]",
        "[[3]]",
        "BFloat16",
        600.0,
        frames[:1],
    )
    process = m.Process(
        pid=4711,
        start_ticks=164483,
        host="node3",
        ppid=4700,
        session=4699,
        uid=1000,
        ns_pid=42,
        state="S",
        comm="VLLM::Worker_TP",
        command=("VLLM::Worker_TP1",),
        exe="/opt/venv/bin/python3.12",
        cwd="/srv/app",
        started_at=1764439000.0,
        exit_code=9,
        tracer_pid=5000,
        threads=(thread, dataclasses.replace(thread, tid=None, name="\udcff")),
        thread_count=48,
        taken_at=1764439421.5,
        rss_bytes=1_705_880 * 1024,
        minor_faults=444756,
        major_faults=6,
        user_ticks=1592,
        system_ticks=588,
        io=m.IoCounters(749309733, 5501213, 12038144, 5554176, 27401, 1565),
        files=(m.OpenFile(9, "/models/a.safetensors", "file", 4096, 8192, "r", 77, (4713,)),),
        mapped=(m.MappedFile("/models/a.safetensors", 8192, 4096, 8192),),
        sockets=(
            m.Socket(8, "tcp", "ESTAB", "127.0.0.1:1", "127.0.0.1:2", 3, 5, 148298, (4713,), 2**40, 2**41),
        ),
        environ={"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1"},
        environ_source="memory",
        versions={"python": "3.12.3"},
        flight=(flight,),
        rank_hint="TP1",
    )
    snapshot = m.Snapshot(
        taken_at=1764439421.0,
        processes=(process,),
        duration_s=0.75,
        gpus=(_sample_gpu(),),
        file_locks=(m.FileLock("flock", "/root/.cache/k.lock", 4713, (4711,), 65.0),),
        logs=(m.LogTail("/var/log/server.log", 39466, 1764439420.0, ("begin", "…"), (4711,)),),
        load=m.HostLoad(23.0, 80.5, 1.5, 0.5, 2**34),
        gaps=(m.Gap("py-spy", "pid 4713", "is stopped", "kill -CONT 4713"),),
        paused_s=0.125,
        messages=(m.LogMessage("watchdog", "timeout", "TP1", {"seq": "81"}, 17),),
    )
    later = dataclasses.replace(snapshot, taken_at=1764439425.0)
    return m.Capture(
        tool=m.Tool("0.1.0", "2025.11.29", "0.4.3"),
        target=m.Target("pid 4711", 4711, 164483, 4700),
        hosts=(m.Host("node3", "6.18.0", "b-1", "x86_64", 128, 100, 4096, "attach"),),
        snapshots=(snapshot, later),
        gaps=(m.Gap("nvml", "host node3", "did not answer in 5 s", "nvidia-smi -q"),),
        origin="pystack",
    )


def _sample_gpu() -> m.Gpu:
    return m.Gpu(
        index=1,
        name="NVIDIA H200",
        uuid="GPU-1",
        utilization_percent=100.0,
        memory_utilization_percent=1.0,
        memory_used_bytes=32 << 30,
        memory_total_bytes=141 << 30,
        power_w=125.5,
        power_limit_w=700.0,
        sm_clock_mhz=1980,
        sm_clock_max_mhz=1980,
        pcie_tx_bytes_s=1153_000,
        pcie_rx_bytes_s=484_000,
        nvlink_tx_bytes=1,
        nvlink_rx_bytes=2,
        throttle_reasons=("sw_power_cap",),
        uncorrected_ecc=1,
        processes=(m.GpuProcess(4711, 30 << 30, 2.0),),
        host="node3",
    )


def realistic(ranks: int = 8, threads: int = 200, looks: int = 3, *, distinct: bool = False) -> m.Capture:
    """A server's worth of threads, 21 frames each; ``distinct`` makes every frame different."""
    return m.Capture(
        tool=m.Tool("0.1.0"),
        target=m.Target("pid 10000", 10000),
        hosts=(m.Host("node3"),),
        snapshots=tuple(
            m.Snapshot(
                1764439421.0 + 3 * look,
                tuple(_realistic_rank(rank, threads, look, distinct) for rank in range(ranks)),
            )
            for look in range(looks)
        ),
    )


def _realistic_rank(rank: int, threads: int, look: int, distinct: bool) -> m.Process:
    def thread(number: int) -> m.Thread:
        kind = (look * 1009 + rank) * threads + number if distinct else number % 61
        frames = tuple(
            m.Frame(f"Worker.step_{kind}_{depth}", f"/opt/venv/site-packages/server/part_{depth}.py", kind)
            for depth in range(21)
        )
        return m.Thread(
            tid=10_000 * (rank + 1) + number,
            comm="pt_gloo_runloop",
            state="S",
            stack=m.Stack(frames, m.Method.PY_SPY_NONBLOCKING),
            wchan="futex_do_wait",
            syscall=m.Syscall("futex", (0x558439441C10 + 64 * number, 0x189, 0, 0, 0, 0xFFFFFFFF)),
            user_ticks=number * (look + 1),
            system_ticks=number,
            run_ns=1_000_003 * number * (look + 1),
            voluntary_switches=number + look,
        )

    pid = 10_000 * (rank + 1)
    return m.Process(pid, 164483, "node3", threads=tuple(thread(number) for number in range(threads)))


def filled(kind: Any = m.Capture) -> Any:
    """An instance in which every field, also one that was added today, has a value that is not its default."""
    simple = {int: 7, float: 0.5, str: "x", bool: True}
    if kind in simple:
        return simple[kind]
    if get_origin(kind) in (Union, UnionType):
        return filled(get_args(kind)[0])
    if get_origin(kind) is tuple:
        return (filled(get_args(kind)[0]),)
    if get_origin(kind) is Mapping:
        return {"x": filled(get_args(kind)[1])}
    if issubclass(kind, Enum):
        return list(kind)[-1]
    hints = get_type_hints(kind)
    return kind(
        **{
            field.name: not field.default if hints[field.name] is bool else filled(hints[field.name])
            for field in dataclasses.fields(kind)
        }
    )


def captures() -> st.SearchStrategy[m.Capture]:
    """Random captures: every field of every class of the model, found by its annotation."""
    return _values(m.Capture)


def _values(kind: Any) -> st.SearchStrategy[Any]:
    simple = {int: _INT, float: _FLOAT, str: _TEXT, bool: st.booleans(), type(None): st.none()}
    if kind in simple:
        return simple[kind]
    if get_origin(kind) in (Union, UnionType):
        return st.one_of(*[_values(part) for part in get_args(kind)])
    if get_origin(kind) is tuple:
        return st.lists(_values(get_args(kind)[0]), max_size=2).map(tuple)
    if get_origin(kind) is Mapping:
        return st.dictionaries(_TEXT, _values(get_args(kind)[1]), max_size=2)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    hints = get_type_hints(kind)
    return st.deferred(
        lambda: st.builds(
            kind, **{field.name: _values(hints[field.name]) for field in dataclasses.fields(kind)}
        )
    )
