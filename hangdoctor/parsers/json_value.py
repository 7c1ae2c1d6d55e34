"""Values of foreign JSON and pickles, taken at their word or not at all."""

from __future__ import annotations

from collections.abc import Iterable


def as_mapping(value: object) -> dict[str, object]:
    """The object with its text keys; empty when it is no object."""
    if not isinstance(value, dict):
        return {}
    return {key: item for key, item in value.items() if isinstance(key, str)}


def as_list(value: object) -> list[object]:
    """The items of a list or tuple; empty for anything else."""
    return list(value) if isinstance(value, (list, tuple)) else []


def as_text(value: object) -> str | None:
    """The text, at most 4,096 characters of it; ``None`` when it is none."""
    return value[:4096] if isinstance(value, str) else None


def as_int(value: object) -> int | None:
    """The whole number; ``None`` for anything else, also for truth values and for absurdly large ones."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**64:
        return None
    return value


def as_number(value: object) -> float | None:
    """The number; ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if number == number and abs(number) < 1e300 else None


def as_bool(value: object) -> bool | None:
    """The truth value; ``None`` for anything else."""
    return value if isinstance(value, bool) else None


def texts(values: Iterable[object]) -> list[str]:
    """The texts among the values."""
    return [value for value in values if isinstance(value, str)]
