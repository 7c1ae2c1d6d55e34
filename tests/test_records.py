"""Changed copies are what ``dataclasses.replace`` makes."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass, replace
from typing import Generic, TypeVar

import pytest

from hangdoctor import model
from hangdoctor.model.records import _FEW, changed, make, values_of

T = TypeVar("T")
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


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_many_are_made_as_the_few(kind: type) -> None:
    """After some of a kind the faster way is taken: what it makes is the same in every respect."""
    values = tuple(f"value of {item.name}" for item in fields(kind))
    made = [make(kind, values) for _ in range(_FEW + 2)]
    first, last = made[0], made[-1]
    assert type(last) is kind and last == first and hash(last) == hash(first) and repr(last) == repr(first)
    assert pickle.loads(pickle.dumps(last)) == first
    with pytest.raises(FrozenInstanceError):
        setattr(last, fields(kind)[0].name, "another")


def test_values_that_are_too_few_or_too_many_are_refused_by_either_way() -> None:
    whole = values_of(model.Gap("a", "b", "c"))
    for _ in range(_FEW + 2):
        for values in (whole[:1], (*whole, "one more")):
            with pytest.raises((TypeError, ValueError)):
                make(model.Gap, values)
        assert make(model.Gap, whole) == model.Gap(*whole)


def test_a_class_that_checks_what_it_is_given_goes_on_doing_so() -> None:
    @dataclass(frozen=True, slots=True)
    class Positive:
        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError("negative")

    for _ in range(_FEW + 2):
        assert make(Positive, (1,)) == Positive(1)
        with pytest.raises(ValueError, match="negative"):
            make(Positive, (-1,))


def test_a_class_with_a_base() -> None:
    @dataclass(frozen=True, slots=True)
    class Box(Generic[T]):
        value: T

    @dataclass(frozen=True, slots=True)
    class Longer(model.Gap):
        more: str = "more"

    for _ in range(_FEW + 2):
        assert make(Box, (1,)) == Box(1)
        assert make(Longer, ("a", "b", "c", None, "d")) == Longer("a", "b", "c", None, "d")


def test_a_class_with_more_than_slots() -> None:
    @dataclass(frozen=True)
    class Loose:
        number: int

    for _ in range(_FEW + 2):
        assert make(Loose, (1,)) == Loose(1)


def test_a_field_that_there_is_not() -> None:
    with pytest.raises(KeyError):
        changed(model.Gap("a", "b", "c"), nothing=1)


def test_one_field() -> None:
    @dataclass(frozen=True)
    class Single:
        value: object

    assert values_of(Single((1, 2))) == ((1, 2),)
    assert changed(Single(1), value=2) == Single(2)
