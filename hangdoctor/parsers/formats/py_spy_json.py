"""``py-spy dump --json``: an array of threads, newest first (docs: the source of py-spy's ``stack_trace.rs``)."""

from __future__ import annotations

from collections import defaultdict

from hangdoctor.model import Frame, Method, Stack, Thread
from hangdoctor.parsers.findings import Finding, Sighting, Where
from hangdoctor.parsers.json_value import as_bool, as_int, as_list, as_mapping, as_text
from hangdoctor.parsers.registry import JsonFormat


def read(value: object, where: Where) -> tuple[Finding, ...]:
    """Sightings of the processes in one dump; several dumps joined into one array are several processes."""
    threads: dict[int | None, list[Thread]] = defaultdict(list)
    cache: dict[tuple[object, ...], Frame] = {}
    for row in as_list(value):
        fields = as_mapping(row)
        if "frames" in fields and ("thread_id" in fields or "os_thread_id" in fields):
            threads[as_int(fields.get("pid"))].append(_thread(fields, cache))
    return tuple(
        Sighting(
            source="py-spy JSON",
            where=where,
            pid=pid,
            threads=tuple(_main_first(found, pid)),
        )
        for pid, found in threads.items()
    )


def _thread(fields: dict[str, object], cache: dict[tuple[object, ...], Frame]) -> Thread:
    frames = tuple(_frame(as_mapping(row), cache) for row in as_list(fields.get("frames")))
    is_native = any(frame.is_native for frame in frames)
    method = Method.PY_SPY_NATIVE if is_native else Method.PY_SPY_BLOCKING
    return Thread(
        tid=as_int(fields.get("os_thread_id")),
        name=as_text(fields.get("thread_name")),
        stack=Stack(frames, method) if frames else None,
        owns_gil=as_bool(fields.get("owns_gil")),
        is_active_hint=as_bool(fields.get("active")),
    )


def _frame(row: dict[str, object], cache: dict[tuple[object, ...], Frame]) -> Frame:
    name = as_text(row.get("name")) or "?"
    short, full = as_text(row.get("short_filename")), as_text(row.get("filename"))
    line, module = as_int(row.get("line")), as_text(row.get("module"))
    key = (name, short, full, line, module)
    known = cache.get(key)
    if known is None:
        # The path from the package root is what names a place in every installation.
        file = short or full or ""
        known = cache[key] = Frame(name, file, line or None, module, is_native=module is not None)
    return known


def _main_first(threads: list[Thread], pid: int | None) -> list[Thread]:
    return sorted(threads, key=lambda t: not (t.name == "MainThread" or (pid is not None and t.tid == pid)))


FORMATS = (
    JsonFormat(
        name="py-spy JSON",
        summary="py-spy dump --json",
        keys=("thread_id", "os_thread_id", "thread_name", "frames"),
        read=read,
    ),
)
