"""Readers stay for many questions; one that blocks or dies costs its question and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hangdoctor.collect.deadline import Trouble, helper_pids
from hangdoctor.collect.readers import Readers

Made = Callable[..., Readers]


@pytest.fixture
def make() -> Iterator[Made]:
    made: list[Readers] = []

    def make(
        *functions: Callable[..., object], width: int = 2, renew: Callable[[], None] = lambda: None
    ) -> Readers:
        made.append(Readers(functions, width, renew=renew))
        return made[-1]

    yield make
    for readers in made:
        readers.end()
    assert not helper_pids()


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """Opening it blocks in the kernel, as opening a file on a dead server does."""
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def ask(readers: Readers, function: Callable[..., object], items: list[object], **more: Any) -> Any:
    options = {"item_s": 20.0, "total_s": 60.0, "belongs_to": lambda item: item, **more}
    return readers.ask(function, items, **options)


def open_it(path: str) -> bool:
    os.close(os.open(path, os.O_RDONLY))
    return True


def who(item: object) -> int:
    return os.getpid()


def test_same_children_answer_all_questions_and_what_belongs_together_goes_to_one(make: Made) -> None:
    readers = make(len, who)
    words = ["a", "bb", "ccc", "dddd", "eeeee"]
    lengths = ask(readers, len, words)
    first = dict(ask(readers, who, words))
    second = dict(ask(readers, who, words[::-1]))
    assert list(lengths) == [(word, len(word)) for word in words]
    assert first == second and len(set(first.values())) == 2
    assert os.getpid() not in first.values()


def test_a_child_keeps_what_it_learned(make: Made) -> None:
    seen: dict[object, int] = {}

    def learn(item: object) -> None:
        seen[item] = os.getpid()

    def recall(item: object) -> bool:
        return seen.get(item) == os.getpid()

    readers = make(learn, recall)
    learning, recalling = ask(readers, learn, [1, 2, 3]), ask(readers, recall, [1, 2, 3])
    assert [known for _, known in recalling] == [True] * 3
    assert [answer for _, answer in learning] == [None] * 3
    assert seen == {}


def test_what_blocks_costs_itself_and_the_rest_is_asked_of_another(make: Made, fifo: Path) -> None:
    readers = make(open_it, len, width=1)
    began = time.monotonic()
    paths: list[object] = [os.devnull, str(fifo), "/dev/zero"]
    opened = ask(readers, open_it, paths, item_s=0.3)
    lengths = ask(readers, len, ["a", "bb"])
    assert [answer for _, answer in lengths] == [1, 2]
    answers = [answer for _, answer in opened]
    assert answers[0] is answers[2] is True
    assert isinstance(answers[1], Trouble) and answers[1].is_timeout
    assert time.monotonic() - began < 10


def test_what_is_pointless_after_it_is_not_tried_whoever_asks(make: Made, fifo: Path) -> None:
    readers = make(open_it, len, width=1)
    opened = ask(readers, open_it, [str(fifo)], item_s=0.2)
    lengths = ask(
        readers, len, ["same lock", "other"], is_pointless=lambda stuck, later: later == "same lock"
    )
    answers = dict(lengths)
    assert "not tried" in answers["same lock"].reason and answers["other"] == 5
    assert isinstance(dict(opened)[str(fifo)], Trouble)


def test_time_is_bounded_however_many_block(make: Made) -> None:
    began = time.monotonic()
    readers = make(time.sleep, len)
    sleeping = ask(readers, time.sleep, [3600.0 + n for n in range(101)], item_s=0.2, total_s=0.5)
    assert all(isinstance(answer, Trouble) and answer.is_timeout for _, answer in sleeping)
    assert dict(ask(readers, len, ["abc"])) == {"abc": 3}
    assert time.monotonic() - began < 10


def test_answers_that_wait_for_us_are_not_late(make: Made) -> None:
    """Their time counts from when they are asked for, also where the pipe is full meanwhile."""
    readers = make(bytes, width=1)
    asked = ask(readers, bytes, [3_000_000, 3_000_001, 5], item_s=1.0, total_s=1.0)
    time.sleep(1.2)
    assert [len(answer) for _, answer in asked] == [3_000_000, 3_000_001, 5]


def test_questions_larger_than_a_pipe_do_not_wait_for_a_busy_child(make: Made, fifo: Path) -> None:
    readers = make(open_it, len, width=1)
    began = time.monotonic()
    opened = ask(readers, open_it, [str(fifo)], item_s=2.0)
    large: list[object] = [bytes(2_000_000), bytes(3_000_000)]
    lengths = ask(readers, len, large)
    assert time.monotonic() - began < 1.8, "asking waited"
    assert [answer for _, answer in lengths] == [2_000_000, 3_000_000]
    assert isinstance(dict(opened)[str(fifo)], Trouble)


def test_a_child_that_dies_is_replaced(make: Made) -> None:
    readers = make(lambda item: os.kill(os.getpid(), signal.SIGKILL) if item == "deadly" else item, width=1)
    (function,) = readers._functions
    answers = dict(ask(readers, function, ["one", "deadly", "two"]))
    assert answers["one"] == "one" and answers["two"] == "two"
    assert answers["deadly"] == Trouble("the reading process died")


def test_an_error_is_an_answer(make: Made) -> None:
    answers = dict(ask(make(open_it), open_it, ["/no/such/file", os.devnull]))
    assert answers == {"/no/such/file": Trouble("No such file or directory"), os.devnull: True}


def test_every_child_begins_anew_also_one_that_takes_over(make: Made, fifo: Path) -> None:
    renewals: list[int] = []
    readers = make(open_it, lambda item: len(renewals), width=1, renew=lambda: renewals.append(1))
    count = readers._functions[1]
    ask(readers, open_it, [str(fifo)], item_s=0.2)
    assert dict(ask(readers, count, ["x"])) == {"x": 1}
    assert dict(ask(readers, count, ["y"])) == {"y": 1}, "within a look it keeps what it knows"
    assert not renewals


def test_a_child_that_rested_forgets_what_it_kept_and_is_the_same(make: Made) -> None:
    kept: list[object] = []

    def keep(item: object) -> tuple[int, int]:
        kept.append(item)
        return len(kept), os.getpid()

    readers = make(keep, width=1, renew=kept.clear)
    (before,) = dict(ask(readers, keep, ["a"])).values()
    readers.rest()
    (after,) = dict(ask(readers, keep, ["b"])).values()
    assert before == after
    readers.rest()
    readers.rest()
    assert dict(ask(readers, keep, ["c"])) == {"c": before}


def test_a_child_that_owes_an_answer_does_not_rest(make: Made, fifo: Path) -> None:
    readers = make(open_it, who, width=1)
    ask(readers, open_it, [str(fifo)])
    (stuck,) = helper_pids()
    readers.rest()
    assert not helper_pids()
    (now,) = dict(ask(readers, who, ["x"])).values()
    assert now != stuck


def test_a_child_that_was_killed_while_it_rested_costs_nothing(make: Made) -> None:
    readers = make(who, width=1)
    (before,) = dict(ask(readers, who, ["a"])).values()
    readers.rest()
    os.kill(before, signal.SIGKILL)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    (after,) = dict(ask(readers, who, ["a"])).values()
    assert isinstance(after, int) and after != before


def test_a_child_holds_nothing_of_ours_open(make: Made) -> None:
    """It may stay for hours, and a connection is only closed when the last who has it closes it."""
    ours, theirs = socket.socketpair()
    readers = make(list_descriptors, width=2)
    with theirs:
        with ours:
            seen = [found for _, found in ask(readers, list_descriptors, ["a", "b"])]
        theirs.settimeout(20)
        assert theirs.recv(1) == b"", "the other side does not see that we closed it"
    for links in seen:
        assert sorted(link.split(":")[0] for link in links) == [*["/dev/null"] * 3, "pipe", "pipe"]


def list_descriptors(item: object) -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return found


def test_a_child_does_not_grow_however_often_it_rests(make: Made) -> None:
    """Cycles are nobody's to free while no collection runs."""
    readers = make(leave_cycles, resident_pages, width=1)

    def look() -> int:
        assert len(list(ask(readers, leave_cycles, ["a"]))) == 1
        readers.rest()
        (pages,) = dict(ask(readers, resident_pages, ["a"])).values()
        return int(pages)

    first = [look() for _ in range(5)][-1]
    last = [look() for _ in range(40)][-1]
    assert last - first < 256, f"{last - first} pages more"


def leave_cycles(item: object) -> int:
    """A megabyte that refers to itself."""
    for _ in range(16):
        cycle: list[object] = [bytearray(1 << 16)]
        cycle.append(cycle)
    return 0


def resident_pages(item: object) -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def test_without_room_for_a_child_every_answer_says_so(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    before = set(os.listdir("/proc/self/fd"))
    readers = make(len)
    answers = [answer for _, answer in ask(readers, len, ["a", "bb", "ccc"])]
    readers.end()
    assert all(isinstance(answer, Trouble) and "limit on processes" in answer.reason for answer in answers)
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1


def test_leaving_early_leaves_nobody_behind(make: Made, fifo: Path) -> None:
    readers = make(open_it)
    ask(readers, open_it, [str(fifo), os.devnull])
    assert len(helper_pids()) == 2
    readers.end()
    assert not helper_pids()


def test_dismissed_children_answer_what_they_were_asked_and_end_by_themselves(make: Made) -> None:
    readers = make(len, who)
    first, second = (child for _, child in ask(readers, who, ["a", "bb"]))
    lengths = ask(readers, len, ["a", "bb"])
    os.kill(second, signal.SIGSTOP)  # the first is not to need the end of another
    readers.dismiss()
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    os.kill(second, signal.SIGCONT)
    os.waitid(os.P_PID, second, os.WEXITED | os.WNOWAIT)
    assert list(lengths) == [("a", 1), ("bb", 2)]


def test_a_child_that_has_not_been_told_everything_is_not_dismissed(make: Made) -> None:
    """More is asked than a pipe holds."""
    readers = make(len, width=1)
    words = ["a" * size for size in (300_000, 400_000)]
    lengths = ask(readers, len, words)
    readers.dismiss()
    assert [length for _, length in lengths] == [300_000, 400_000]


@dataclass(frozen=True)
class Interrupting:
    """A Ctrl-C lands where it is made anew: answers are unpickled most of the time that one waits for them."""

    text: str
    pid: int

    def __post_init__(self) -> None:
        if self.text == "a" and os.getpid() != self.pid and not interrupted:
            interrupted.append(self.text)
            raise KeyboardInterrupt


interrupted: list[str] = []


def make_interrupting(text: str) -> Interrupting:
    return Interrupting(text, os.getpid())


def test_after_an_interruption_each_still_gets_its_own_answer(make: Made) -> None:
    interrupted.clear()
    readers = make(make_interrupting, width=1)
    answers = ask(readers, make_interrupting, ["a", "b", "c"]).by(lambda item: item)
    with pytest.raises(KeyboardInterrupt):
        answers["a"]()
    assert [answers[text]().text for text in "abc"] == ["a", "b", "c"]


def test_a_reader_that_was_dismissed_may_be_asked_again(make: Made) -> None:
    readers = make(len, width=1)
    assert list(ask(readers, len, ["a"])) == [("a", 1)]
    readers.dismiss()
    assert list(ask(readers, len, ["bb"])) == [("bb", 2)]


def test_by_owner_asks_all_about_one_before_the_next(make: Made) -> None:
    order: list[str] = []

    def first(item: object) -> int:
        order.append(f"first {item}")
        return len(order)

    def second(item: object) -> int:
        order.append(f"second {item}")
        return len(order)

    readers = make(first, second, width=1)
    with readers.by_owner():
        one, two = ask(readers, first, ["a", "b"]), ask(readers, second, ["a", "b"])
    assert [answer for _, answer in one] == [1, 3] and [answer for _, answer in two] == [2, 4]
