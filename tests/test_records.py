"""Changed copies are what ``dataclasses.replace`` makes."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace

import pytest

from hangdoctor import model
from hangdoctor.model.records import changed, values_of

KINDS = [
    kind for name in model.__all__ if isinstance(kind := getattr(model, name), type) and is_dataclass(kind)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_as_replace_does(kind: type) -> None:
    """With a value of its own in every field, so that none can be mistaken for another."""
    whole = kind(*[f"value of {item.name}" for item in fields(kind)])
    assert kind(*values_of(whole)) == whole
    for item in fields(kind):
        change = {item.name: "another"}
        assert changed(whole, **change) == replace(whole, **change) != whole
    assert changed(whole) == whole


def test_a_field_that_there_is_not() -> None:
    with pytest.raises(KeyError):
        changed(model.Gap("a", "b", "c"), nothing=1)


def test_one_field() -> None:
    @dataclass(frozen=True)
    class Single:
        value: object

    assert values_of(Single((1, 2))) == ((1, 2),)
    assert changed(Single(1), value=2) == Single(2)
