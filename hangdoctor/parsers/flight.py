"""PyTorch's Flight Recorder: one dump (JSON or unpickled containers) → the process it is of.

Of the ring are kept, for each process group, the newest work, the newest completed one and everything pending.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hangdoctor.model import FlightEntry, Frame, Gap, LogMessage, Method, Stack, Thread
from hangdoctor.parsers.findings import Finding, Sighting, Where
from hangdoctor.parsers.json_value import as_int, as_list, as_mapping, as_number, as_text

_MOST_PENDING = 64
_MOST_GROUPS = 4096
_DONE = ("completed", "retired")


def read_flight(value: object, where: Where) -> tuple[Finding, ...]:
    """The process of one dump, its group counters as messages; empty when this is no such dump."""
    dump = as_mapping(value)
    rows = [as_mapping(row) for row in as_list(dump.get("entries"))]
    if "entries" not in dump or not (
        "pg_config" in dump or "pg_status" in dump or any("pg_id" in r for r in rows)
    ):
        return ()
    label = _rank(dump)
    entries = tuple(_entry(row) for row in rows if "collective_seq_id" in row or "op_id" in row)
    kept = _interesting(entries)
    newest = max((e for e in kept if e.state not in _DONE), key=lambda e: e.sequence or 0, default=None)
    threads: tuple[Thread, ...] = ()
    if newest is not None and newest.frames:
        threads = (Thread(tid=None, stack=Stack(newest.frames, Method.FLIGHT_RECORDER)),)
    found: list[Finding] = [
        Sighting(
            source="flight recorder",
            where=where,
            labels=(label,) if label else (),
            host=as_text(dump.get("hostname")) or as_text(dump.get("host_name")),
            threads=threads,
            flight=kept,
            versions=_versions(dump),
            is_incidental=bool(threads),
        )
    ]
    found.extend(_status_messages(dump, label, where))
    if not entries:
        found.append(Gap("flight recorder", str(where), "the ring is empty", "set TORCH_FR_BUFFER_SIZE=2000"))
    return tuple(found)


def _entry(row: dict[str, object]) -> FlightEntry:
    group = as_list(row.get("process_group"))
    name = as_text(group[0]) if group else None
    description = as_text(group[1]) if len(group) > 1 else None
    created, finished = as_int(row.get("time_created_ns")), as_int(row.get("time_discovered_completed_ns"))
    state = as_text(row.get("state"))
    if row.get("retired") is True and state != "completed":
        state = "completed" if finished else "retired"  # gloo works are never marked started or completed
    operation = as_text(row.get("profiling_name")) or "?"
    is_p2p = row.get("is_p2p") is True
    timeout = as_number(row.get("timeout_ms"))
    return FlightEntry(
        group=name or str(as_int(row.get("pg_id")) if as_int(row.get("pg_id")) is not None else "?"),
        op=operation.split(":", 1)[-1],
        sequence=None if is_p2p else as_int(row.get("collective_seq_id")),
        state=state,
        age_s=(finished - created) / 1e9 if created and finished and finished > created else None,
        group_description=description,
        p2p_sequence=as_int(row.get("p2p_seq_id")) if is_p2p else None,
        input_sizes=_sizes(row.get("input_sizes")),
        output_sizes=_sizes(row.get("output_sizes")),
        dtype=next(iter(_texts(row.get("input_dtypes"))), None),
        timeout_s=timeout / 1000 if timeout else None,
        frames=_frames(row.get("frames")),
    )


def _interesting(entries: Sequence[FlightEntry]) -> tuple[FlightEntry, ...]:
    """The newest of each group and kind, the newest completed one, and what is pending; in order of issue."""
    newest: dict[tuple[str, bool], FlightEntry] = {}
    completed: dict[tuple[str, bool], FlightEntry] = {}
    for entry in entries:
        key = (entry.group, entry.p2p_sequence is not None)
        if key not in newest and len(newest) >= _MOST_GROUPS:
            continue
        newest[key] = entry
        if entry.state in _DONE:
            completed[key] = entry
    pending = [e for e in entries if e.state not in _DONE][:_MOST_PENDING]
    wanted = {id(e) for e in (*newest.values(), *completed.values(), *pending)}
    return tuple(e for e in entries if id(e) in wanted)


def _status_messages(dump: dict[str, object], label: str | None, where: Where) -> list[LogMessage]:
    found = []
    for group, row in list(as_mapping(dump.get("pg_status")).items())[:_MOST_GROUPS]:
        status = as_mapping(row)
        fields = {"group": group}
        for key, name in (
            ("last_enqueued_collective", "last_enqueued"),
            ("last_started_collective", "last_started"),
            ("last_completed_collective", "last_completed"),
        ):
            number = _count(status.get(key))
            if number is not None:
                fields[name] = str(number)
        config = as_mapping(as_mapping(dump.get("pg_config")).get(group))
        if as_text(config.get("ranks")):
            fields["ranks"] = str(config["ranks"])
        if label:
            fields["rank"] = label.removeprefix("rank ")
        text = ", ".join(f"{k} {v}" for k, v in fields.items())
        found.append(LogMessage("nccl.status", text[:600], label, fields, where.line))
    return found


def _count(value: object) -> int | None:
    """The JSON form writes these numbers as text."""
    text = as_text(value)
    if text is not None:
        return int(text) if text.removeprefix("-").isdecimal() and len(text) < 19 else None
    return as_int(value)


def _rank(dump: dict[str, object]) -> str | None:
    rank = as_int(dump.get("rank"))
    return f"rank {rank}" if rank is not None else None


def _versions(dump: dict[str, object]) -> dict[str, str]:
    version = as_text(dump.get("nccl_version")) or as_text(dump.get("comm_lib_version"))
    return {"nccl": version} if version else {}


def _sizes(value: object) -> str | None:
    """``[[4, 7]]`` as ``4x7``."""
    shapes = []
    for shape in as_list(value)[:16]:
        numbers = [as_int(n) for n in as_list(shape)[:16]]
        shapes.append("x".join(str(n) for n in numbers if n is not None) or "scalar")
    return ", ".join(shapes) or None


def _texts(value: object) -> list[str]:
    return [item for item in as_list(value) if isinstance(item, str)]


_UNKNOWN = re.compile(r"\?+$")


def _frames(value: object) -> tuple[Frame, ...]:
    frames = []
    for row in as_list(value)[:200]:
        fields = as_mapping(row)
        name, file = as_text(fields.get("name")), as_text(fields.get("filename"))
        if name and file is not None and not _UNKNOWN.match(file):
            frames.append(
                Frame(
                    name, file, as_int(fields.get("line")) or None, is_native=file.endswith((".so", ".cpp"))
                )
            )
    return tuple(frames)
