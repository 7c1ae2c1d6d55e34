"""What moved between two looks."""

from __future__ import annotations

import pytest

from hangdoctor.analysis.differences import compare
from hangdoctor.case import Movement
from hangdoctor.errors import WrongUsage
from hangdoctor.knowledge import load_knowledge
from tests.captures import RUNNING, SLEEP, capture, frames, rank


def test_the_rank_that_moves_is_told_from_the_one_that_stands_still() -> None:
    busy = rank(
        0,
        2,
        [frames("load a.py:1"), frames("load a.py:2"), frames("copy a.py:9")],
        cpu_s=2.0,
        syscall=RUNNING,
        state="R",
        read_chars=[0, 10_000_000, 90_000_000],
    )
    still = rank(1, 2, [frames("wait_for_file b.py:7")], syscall=SLEEP)
    looks = capture([busy, still])
    difference = compare(looks, looks, load_knowledge())
    moving, resting = difference.processes
    assert difference.seconds == 10.0
    assert (moving.label, moving.threads[0].movement) == ("rank 0", Movement.MOVING)
    assert (moving.threads[0].before, moving.threads[0].after) == ("load (a.py:1)", "copy (a.py:9)")
    assert dict(moving.counters)["read_chars"] == 90_000_000
    assert (resting.threads, resting.still, resting.counters) == ((), 1, ())


def test_a_process_that_ended_and_one_that_began() -> None:
    ended = rank(0, 2, [frames("step a.py:1")], present=[True, False])
    began = rank(1, 2, [frames("step a.py:1")], present=[False, True])
    looks = capture([ended, began], offsets=(0.0, 5.0))
    changes = {p.label: p.change for p in compare(looks, looks, load_knowledge()).processes}
    assert changes == {"rank 0": "gone", "rank 1": "new"}


def test_two_captures_are_compared_in_the_order_of_their_clocks() -> None:
    first = capture([rank(0, 1, [frames("a a.py:1")])], offsets=(0.0,))
    later = capture([rank(0, 1, [frames("b a.py:2")])], offsets=(60.0,))
    for pair in ((first, later), (later, first)):
        difference = compare(*pair, load_knowledge())
        assert difference.seconds == 60.0
        assert difference.processes[0].threads[0].after == "b (a.py:2)"


def test_a_single_look_cannot_be_compared_with_itself() -> None:
    once = capture([rank(0, 1, [frames("a a.py:1")])], offsets=(0.0,))
    with pytest.raises(WrongUsage, match="single look"):
        compare(once, once, load_knowledge())
