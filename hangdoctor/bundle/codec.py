"""The model as JSON records and back, strictly typed.

Frames and stacks stand once in tables of their record; threads refer to them by index. Converters are built
once and cached: building one costs 40 ms, and resolving type hints for every object took 22 s for 115,000
frames in a prototype of this format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from cattrs import Converter, transform_error
from cattrs.errors import BaseValidationError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from hangdoctor.bundle.version import JsonObject
from hangdoctor.model import Capture, Frame, LockWait, Method, Snapshot, Stack, Syscall

_ADDRESSES = {LockWait: "address", Syscall: "args"}
"""64-bit values are hexadecimal strings: JavaScript and jq would round them (docs/bundle.md)."""


_MAX_HEX_CHARS = 40

_T = TypeVar("_T")


class Malformed(ValueError):
    """A record that does not have the shape of the model; the message says where."""


# ---- writing


def encode_head(capture: Capture) -> JsonObject:
    """Everything of a capture but its snapshots."""
    head: JsonObject = _converter(False).unstructure(replace(capture, snapshots=()))
    del head["snapshots"]
    return head


def encode_snapshot(snapshot: Snapshot) -> JsonObject:
    """``{frames, stacks, snapshot}``: the two tables and the snapshot that refers to them."""
    converter = _converter(False)
    frames: dict[Frame, int] = {}
    stacks: dict[Stack, int] = {}
    plain: JsonObject = converter.unstructure(snapshot)
    for process in _objects(plain.get("processes")):
        for thread in _objects(process.get("threads")):
            if "stack" in thread:
                stack = thread["stack"]
                thread["stack"] = stacks.setdefault(stack, len(stacks))
        for entry in _objects(process.get("flight")):
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
    frame_table: list[JsonObject] = [converter.unstructure(frame) for frame in frames]
    return {"frames": frame_table, "stacks": stack_table, "snapshot": plain}


# ---- reading


def decode_head(record: JsonObject) -> Capture:
    """The capture that :func:`encode_head` described, without snapshots. Raises Malformed."""
    return _structure({**record, "snapshots": []}, Capture)


def decode_snapshot(record: JsonObject) -> Snapshot:
    """The snapshot of a record made by :func:`encode_snapshot`. Raises Malformed."""
    frames, stacks = _decode_tables(record)
    plain = record.get("snapshot")
    if not isinstance(plain, dict):
        raise Malformed("holds no snapshot")
    for process in _objects(plain.get("processes")):
        for thread in _objects(process.get("threads")):
            if "stack" in thread:
                thread["stack"] = _pick(stacks, thread["stack"], "stack")
        for entry in _objects(process.get("flight")):
            if "frames" in entry:
                entry["frames"] = _pick_all(frames, entry["frames"])
    return _structure(plain, Snapshot)


def _decode_tables(record: JsonObject) -> tuple[tuple[Frame, ...], tuple[Stack, ...]]:
    frames = _structure(record.get("frames", []), tuple[Frame, ...])
    stacks = []
    raw = record.get("stacks", [])
    if not isinstance(raw, list):
        raise Malformed("stacks: expected a list")
    for entry in raw:
        if not isinstance(entry, dict):
            raise Malformed("stacks: expected objects")
        stack = {**entry, "frames": _pick_all(frames, entry.get("frames", []))}
        stacks.append(_structure(stack, Stack))
    return frames, tuple(stacks)


def _pick(table: tuple[Any, ...], index: object, what: str) -> Any:
    if type(index) is not int or not 0 <= index < len(table):
        raise Malformed(f"{what} {index!r:.40} is not in the table of {len(table)}")
    return table[index]


def _pick_all(frames: tuple[Frame, ...], indices: object) -> tuple[Frame, ...]:
    if not isinstance(indices, list):
        raise Malformed("frames: expected a list of indices")
    return tuple([_pick(frames, index, "frame") for index in indices])


def _objects(value: object) -> Iterator[dict[str, Any]]:
    """The objects in a list; anything else is left for the typed pass to complain about."""
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                yield item


# ---- converters


def _structure(value: object, kind: type[_T]) -> _T:
    try:
        return _converter(False).structure(value, kind)
    except (TypeError, ValueError, LookupError, AttributeError):
        pass
    try:  # Again, slowly, only to say where it is wrong.
        _converter(True).structure(value, kind)
    except (BaseValidationError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise Malformed("; ".join(transform_error(error, path=kind.__name__)[:3])) from None
    raise Malformed("is inconsistent")


@lru_cache(maxsize=2)
def _converter(detailed: bool) -> Converter:
    """With ``detailed`` errors carry their path; without, reading is about twice as fast."""
    converter = Converter(detailed_validation=detailed)
    for scalar, hook in ((int, _int), (float, _float), (str, _str), (bool, _bool)):
        converter.register_structure_hook(scalar, hook)
    converter.register_structure_hook(Method, _method)
    converter.register_unstructure_hook(float, _finite)
    converter.register_structure_hook_factory(_is_tuple, _tuple_hook(converter))
    converter.register_structure_hook_factory(_is_mapping, _mapping_hook(converter))
    converter.register_structure_hook_factory(_is_optional, _optional_hook(converter))
    converter.register_structure_hook_factory(is_dataclass, lambda kind: _object_hook(kind, converter))
    converter.register_unstructure_hook_factory(
        is_dataclass,
        lambda kind: make_dict_unstructure_fn(
            kind, converter, _cattrs_omit_if_default=True, **_overrides(kind)
        ),
    )
    # Stacks and frames of flight entries stay objects until the tables have taken them.
    converter.register_unstructure_hook(Stack, lambda stack: stack)
    converter.register_unstructure_hook_func(lambda kind: kind == tuple[Frame, ...], lambda frames: frames)
    return converter


def _object_hook(kind: type[_T], converter: Converter) -> Callable[[object, object], _T]:
    """Structures one dataclass; what may be None and is absent is None even if the model has no default."""
    hints = get_type_hints(kind)
    nullable = {
        field.name: None
        for field in fields(kind)  # type: ignore[arg-type]
        if field.default is MISSING and field.default_factory is MISSING and _is_optional(hints[field.name])
    }
    build = make_dict_structure_fn(kind, converter, **_overrides(kind))

    def hook(value: object, _: object) -> _T:
        if type(value) is kind:
            return value
        if type(value) is not dict:
            raise TypeError(f"expected an object, found {type(value).__name__}")
        return build({**nullable, **value} if nullable else value, kind)

    return hook


def _overrides(kind: type) -> dict[str, Any]:
    name = _ADDRESSES.get(kind)
    return {name: override(struct_hook=_from_hex, unstruct_hook=_to_hex)} if name else {}


def _tuple_hook(converter: Converter) -> Callable[[Any], Callable[[object, object], tuple[Any, ...]]]:
    def factory(kind: Any) -> Callable[[object, object], tuple[Any, ...]]:
        item = get_args(kind)[0]
        hook = converter.get_structure_hook(item)

        def structure(value: object, _: object) -> tuple[Any, ...]:
            if type(value) is tuple:  # Taken from a table; JSON has no tuples.
                return value
            if type(value) is not list:
                raise TypeError(f"expected a list, found {type(value).__name__}")
            return tuple([hook(element, item) for element in value])

        return structure

    return factory


def _optional_hook(converter: Converter) -> Callable[[Any], Callable[[object, object], object]]:
    """As cattrs' own, in one call less for each of the many values that may be absent."""

    def factory(kind: Any) -> Callable[[object, object], object]:
        (inner,) = (item for item in get_args(kind) if item is not type(None))
        hook = converter.get_structure_hook(inner)
        return lambda value, _: None if value is None else hook(value, inner)

    return factory


def _mapping_hook(converter: Converter) -> Callable[[Any], Callable[[object, object], dict[str, Any]]]:
    def factory(kind: Any) -> Callable[[object, object], dict[str, Any]]:
        item = get_args(kind)[1]
        hook = converter.get_structure_hook(item)

        def structure(value: object, _: object) -> dict[str, Any]:
            if type(value) is not dict:
                raise TypeError(f"expected an object, found {type(value).__name__}")
            return {key: hook(element, item) for key, element in value.items()}

        return structure

    return factory


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) is Mapping


def _is_optional(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType) and type(None) in get_args(kind)


# ---- scalars: cattrs would turn "12" into 12 and any object into its repr


def _int(value: object, _: object) -> int:
    if type(value) is not int:
        raise TypeError(f"expected an integer, found {type(value).__name__}")
    return value


def _float(value: object, _: object) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int:
        return float(value)
    raise TypeError(f"expected a finite number, found {type(value).__name__}")


def _str(value: object, _: object) -> str:
    if type(value) is not str:
        raise TypeError(f"expected a string, found {type(value).__name__}")
    return value


def _bool(value: object, _: object) -> bool:
    if type(value) is not bool:
        raise TypeError(f"expected true or false, found {type(value).__name__}")
    return value


def _method(value: object, _: object) -> Method:
    """Enums grow in minor versions: what this release does not know is ``OTHER``, not an error."""
    text = _str(value, str)
    try:
        return Method(text)
    except ValueError:
        return Method.OTHER


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinity; neither is a measurement."""
    return value if math.isfinite(value) else None


def _to_hex(value: int | tuple[int, ...]) -> str | list[str]:
    return [hex(item) for item in value] if isinstance(value, tuple) else hex(value)


def _from_hex(value: object, kind: object) -> int | tuple[int, ...]:
    if _is_tuple(kind):
        if type(value) is not list:
            raise TypeError(f"expected a list, found {type(value).__name__}")
        return tuple([_one_from_hex(item) for item in value])
    return _one_from_hex(value)


def _one_from_hex(value: object) -> int:
    text = _str(value, str)
    if len(text) > _MAX_HEX_CHARS:
        raise ValueError("address of absurd length")
    return int(text, 16)
