"""The model as JSON records and back, strictly typed.

Frames and stacks stand once in tables of their record; threads refer to them by index.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from hangdoctor.bundle.builders import Tables, builder
from hangdoctor.bundle.version import JsonObject
from hangdoctor.model import Capture, Frame, Snapshot, Stack

_T = TypeVar("_T")


class Malformed(ValueError):
    """A record that does not have the shape of the model; the message says where."""


# ---- writing


def encode_head(capture: Capture) -> JsonObject:
    """Everything of a capture but its snapshots."""
    from hangdoctor.bundle.converters import plain

    head = plain(replace(capture, snapshots=()))
    del head["snapshots"]
    return head


def encode_snapshot(snapshot: Snapshot) -> JsonObject:
    """``{frames, stacks, snapshot}``: the two tables and the snapshot that refers to them."""
    from hangdoctor.bundle.converters import objects, plain

    frames: dict[Frame, int] = {}
    stacks: dict[Stack, int] = {}
    record = plain(snapshot)
    for process in objects(record.get("processes")):
        for thread in objects(process.get("threads")):
            if "stack" in thread:
                stack = thread["stack"]
                thread["stack"] = stacks.setdefault(stack, len(stacks))
        for entry in objects(process.get("flight")):
            if "frames" in entry:
                entry["frames"] = [frames.setdefault(frame, len(frames)) for frame in entry["frames"]]
    stack_table: list[JsonObject] = [
        {
            "method": stack.method.value,
            "frames": [frames.setdefault(frame, len(frames)) for frame in stack.frames],
            **({"is_torn": True} if stack.is_torn else {}),
        }
        for stack in stacks
    ]
    return {"frames": [plain(frame) for frame in frames], "stacks": stack_table, "snapshot": record}


# ---- reading

_REFUSALS = (TypeError, ValueError, LookupError)


def decode_head(record: JsonObject) -> Capture:
    """The capture that :func:`encode_head` described, without snapshots. Raises Malformed."""
    record = {**record, "snapshots": []}
    try:
        return builder(Capture)(record, Tables())
    except _REFUSALS:
        from hangdoctor.bundle.converters import complaint_of_head

        raise Malformed(complaint_of_head(record)) from None


def decode_snapshot(record: JsonObject, known: Tables | None = None) -> Snapshot:
    """The snapshot of a record made by :func:`encode_snapshot`. Raises Malformed.

    ``known``: what earlier records of the same bundle held; two looks at one job have much in common.
    """
    tables = known or Tables()
    try:
        frames = _table(record.get("frames", []), Frame, tables)
        tables.frames = tuple(map(tables.shared.frame, frames))
        stacks = _table(_with_frames(record.get("stacks", [])), Stack, tables)
        tables.stacks = tuple(map(tables.shared.stack, stacks))
        return builder(Snapshot)(record["snapshot"], tables)
    except _REFUSALS:
        from hangdoctor.bundle.converters import complaint_of_snapshot

        raise Malformed(complaint_of_snapshot(record)) from None


def _table(entries: object, kind: type[_T], tables: Tables) -> tuple[_T, ...]:
    if type(entries) is not list:
        raise TypeError("expected a list")
    build = builder(kind)
    return tuple([build(entry, tables) for entry in entries])


def _with_frames(stacks: object) -> object:
    """An absent list is an empty one, also where the model wants it said."""
    if type(stacks) is not list:
        return stacks
    return [
        {"frames": [], **stack} if type(stack) is dict and "frames" not in stack else stack
        for stack in stacks
    ]
