"""The model as plain JSON values with cattrs: how records are written, and what is wrong with one that cannot be read.

Records are read by :mod:`hangdoctor.bundle.builders`, several times as fast. What those refuse is read here once more,
only to say where it is wrong. Imported when needed: cattrs and a converter cost 100 ms, which a reader need not pay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from cattrs import Converter, transform_error
from cattrs.errors import BaseValidationError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from hangdoctor.bundle.builders import ADDRESSES, read_address, read_method, read_number
from hangdoctor.bundle.version import JsonObject
from hangdoctor.model import Capture, Frame, Method, Snapshot, Stack

_T = TypeVar("_T")


def plain(value: object) -> JsonObject:
    """A dataclass of the model as JSON values without its defaults; stacks and their frames are left as they are."""
    record: JsonObject = _converter().unstructure(value)
    return record


def objects(value: object) -> Iterator[dict[str, Any]]:
    """The objects in a list; anything else is left for the typed pass to complain about."""
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                yield item


def complaint_of_head(record: JsonObject) -> str:
    """Where a manifest does not have the shape of a capture."""
    return _complaint(record, Capture)


def complaint_of_snapshot(record: JsonObject) -> str:
    """Where the record of a snapshot does not have its shape. Changes the record."""
    try:
        frames, stacks = _tables(record)
        snapshot = record.get("snapshot")
        if not isinstance(snapshot, dict):
            return "holds no snapshot"
        for process in objects(snapshot.get("processes")):
            for thread in objects(process.get("threads")):
                if "stack" in thread:
                    thread["stack"] = _pick(stacks, thread["stack"], "stack")
            for entry in objects(process.get("flight")):
                if "frames" in entry:
                    entry["frames"] = _pick_all(frames, entry["frames"])
    except ValueError as error:
        return str(error)
    return _complaint(snapshot, Snapshot)


def _tables(record: JsonObject) -> tuple[tuple[Frame, ...], tuple[Stack, ...]]:
    frames = _structured(record.get("frames", []), tuple[Frame, ...])
    stacks = []
    raw = record.get("stacks", [])
    if not isinstance(raw, list):
        raise ValueError("stacks: expected a list")
    for entry in raw:
        if not isinstance(entry, dict):
            raise ValueError("stacks: expected objects")
        stack = {**entry, "frames": _pick_all(frames, entry.get("frames", []))}
        stacks.append(_structured(stack, Stack))
    return frames, tuple(stacks)


def _pick(table: tuple[Any, ...], index: object, what: str) -> Any:
    if type(index) is not int or not 0 <= index < len(table):
        raise ValueError(f"{what} {index!r:.40} is not in the table of {len(table)}")
    return table[index]


def _pick_all(frames: tuple[Frame, ...], indices: object) -> tuple[Frame, ...]:
    if not isinstance(indices, list):
        raise ValueError("frames: expected a list of indices")
    return tuple([_pick(frames, index, "frame") for index in indices])


def _structured(value: object, kind: type[_T]) -> _T:
    try:
        return _converter().structure(value, kind)
    except (BaseValidationError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise ValueError("; ".join(transform_error(error, path=kind.__name__)[:3])) from None


def _complaint(value: object, kind: type) -> str:
    try:
        _structured(value, kind)
    except ValueError as error:
        return str(error)
    return "is inconsistent"


# ---- the converter


@lru_cache(maxsize=1)
def _converter() -> Converter:
    """Errors of it carry their path."""
    converter = Converter(detailed_validation=True)
    for scalar, hook in (
        (int, _int),
        (float, read_number),
        (str, _str),
        (bool, _bool),
        (Method, read_method),
    ):
        converter.register_structure_hook(scalar, lambda value, _, hook=hook: hook(value))
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
    name = ADDRESSES.get(kind)
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


def _int(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"expected an integer, found {type(value).__name__}")
    return value


def _str(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"expected a string, found {type(value).__name__}")
    return value


def _bool(value: object) -> bool:
    if type(value) is not bool:
        raise TypeError(f"expected true or false, found {type(value).__name__}")
    return value


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinity; neither is a measurement."""
    return value if math.isfinite(value) else None


def _to_hex(value: int | tuple[int, ...]) -> str | list[str]:
    return [hex(item) for item in value] if isinstance(value, tuple) else hex(value)


def _from_hex(value: object, kind: object) -> int | tuple[int, ...]:
    if _is_tuple(kind):
        if type(value) is not list:
            raise TypeError(f"expected a list, found {type(value).__name__}")
        return tuple([read_address(item) for item in value])
    return read_address(value)
