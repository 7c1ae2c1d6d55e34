"""The way along the waits, told as one sentence, on recordings of real servers."""

from __future__ import annotations

import pytest

from hangdoctor import bundle
from hangdoctor.analysis import diagnose
from tests.expectations import BUNDLES
from tests.knowledge_support import built_in


def chain_of(name: str) -> str | None:
    report = diagnose(bundle.read(BUNDLES / name / "capture.hang"), built_in())
    return next((entry.text for entry in report.evidence if entry.source == "wait-for graph"), None)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        (
            "h200-cold-start-compiling",
            (
                "TP0 waits for a lock file /",
                "/lock, which TP1 holds; ",
                "TP1 compiles in build_ninja (",
                "its cc1plus (pid ",
                " % of a core",
            ),
        ),
        (
            "f2a-wedge-lock-rank1",
            (
                "engine core (pid ",
                " waits for TP1 (",
                "TP0 waits in all_reduce for TP1; ",
                "TP1 waits for a lock in ",
            ),
        ),
        (
            "h200-lock-held-in-forward",
            (
                "TP0 waits in broadcast for TP1; ",
                "TP1 waits for a threading.RLock that TP1 thread metrics-flusher",
            ),
        ),
    ],
)
def test_each_step_names_what_is_waited_for_and_the_last_what_is_done(
    name: str, steps: tuple[str, ...]
) -> None:
    chain = chain_of(name)
    assert chain is not None
    places = [chain.find(step) for step in steps]
    assert -1 not in places and places == sorted(places), chain
    assert "\n" not in chain


@pytest.mark.parametrize("name", ["h7-idle"])
def test_where_nobody_waits_there_is_no_chain(name: str) -> None:
    assert chain_of(name) is None
