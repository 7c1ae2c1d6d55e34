"""A child that blocks costs its deadline and nothing else."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangdoctor.collect import deadline
from hangdoctor.collect.deadline import Trouble, call, each, helper_pids

FOR_EVER = 3600.0


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """Opening it blocks in the kernel, as opening a file on a dead server does."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def test_answers_come_in_order() -> None:
    assert list(each(lambda number: number * number, (3, 5, 7), item_s=20, total_s=20)) == [
        (3, 9),
        (5, 25),
        (7, 49),
    ]


def test_several_children_answer_everything_once_and_one_that_blocks_costs_only_itself(fifo: Path) -> None:
    paths = [os.devnull] * 7
    paths[3] = str(fifo)
    answers = list(each(_open, paths, item_s=0.3, total_s=20, width=3))
    assert sorted(path for path, _ in answers) == sorted(paths)
    assert [path for path, answer in answers if isinstance(answer, Trouble)] == [str(fifo)]
    assert not helper_pids()


def test_more_children_than_items() -> None:
    assert dict(each(len, ("a", "bb"), item_s=20, total_s=20, width=8)) == {"a": 1, "bb": 2}
    assert list(each(len, (), item_s=20, total_s=20, width=8)) == []


def _open(path: str) -> bool:
    os.close(os.open(path, os.O_RDONLY))
    return True


def test_what_blocks_is_abandoned_and_the_rest_goes_on(fifo: Path) -> None:
    began = time.monotonic()
    paths = [os.devnull, str(fifo), os.devnull]
    answers = [answer for _, answer in each(_open, paths, item_s=0.3, total_s=20)]
    assert answers[0] is answers[2] is True
    assert isinstance(answers[1], Trouble) and answers[1].is_timeout
    assert time.monotonic() - began < 5
    assert not helper_pids()


def test_total_budget_bounds_many_that_block() -> None:
    began = time.monotonic()
    answers = list(each(time.sleep, [FOR_EVER] * 101, item_s=0.2, total_s=0.5))
    assert len(answers) == 101
    assert all(isinstance(answer, Trouble) and answer.is_timeout for _, answer in answers)
    assert time.monotonic() - began < 5


def test_whoever_is_not_our_child_is_not_killed() -> None:
    """The number of a child that somebody else has reaped may be anybody's."""
    starter = subprocess.run(
        ["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True, check=True
    )
    stranger = int(starter.stdout)
    try:
        deadline.adopt(stranger)
        assert deadline.kill(stranger) is None
        assert stranger not in helper_pids()
        time.sleep(0.2)  # a signal may arrive late
        assert Path(f"/proc/{stranger}/stat").read_text().split()[2] in "RS"
    finally:
        os.kill(stranger, signal.SIGKILL)


def test_a_child_holds_nothing_of_ours_open() -> None:
    """It may be stuck for ever, and a connection is only closed when the last who has it closes it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        links = call(lambda: [link for fd in range(3, 200) if (link := _link(fd)) is not None], 20)
    assert isinstance(links, list) and len(links) == 1 and links[0].startswith("pipe:")


def _link(fd: int) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


def test_an_error_in_the_child_is_an_answer_and_ends_nothing() -> None:
    answers = [answer for _, answer in each(os.stat, ("/no/such/file", "/"), item_s=20, total_s=20)]
    assert answers[0] == Trouble("No such file or directory")
    assert isinstance(answers[1], os.stat_result)


def test_a_child_that_dies_is_an_answer() -> None:
    answer = call(lambda: os.kill(os.getpid(), signal.SIGKILL), 20)
    assert answer == Trouble("the reading process died")
    assert not helper_pids()


def test_large_answers_come_whole() -> None:
    assert call(lambda: bytes(3_000_000), 20) == bytes(3_000_000)


def test_reader_of_our_output_does_not_wait_for_an_abandoned_child(fifo: Path) -> None:
    """``hangdoctor attach … | less`` ends when hangdoctor ends, whatever became of its helpers."""
    code = f"""
import os
from hangdoctor.collect import deadline
deadline.kill = lambda pid, **_: None  # a child in D state survives SIGKILL
print(deadline.call(lambda: os.open({str(fifo)!r}, os.O_RDONLY), 0.2).is_timeout)
print(*deadline.helper_pids())
"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[0] == "True", done.stderr
    assert time.monotonic() - began < 20
    assert len(done.stdout.split()) == 2


def test_children_die_with_us(fifo: Path) -> None:
    code = f"""
import os
from hangdoctor.collect import deadline
pending = deadline.Pending(lambda: os.open({str(fifo)!r}, os.O_RDONLY), 3600)
print(*deadline.helper_pids(), flush=True)
os.read(0, 1)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as us:
        assert us.stdout is not None
        helper = int(us.stdout.readline())
        watch = os.pidfd_open(helper)
        us.kill()
    # A pidfd becomes readable when its process ends.
    assert select.select([watch], [], [], 20)[0]
    os.close(watch)


def test_interruption_kills_the_child() -> None:
    answers = each(time.sleep, (0.0, FOR_EVER), item_s=FOR_EVER, total_s=FOR_EVER)
    next(answers)
    with pytest.raises(KeyboardInterrupt):
        answers.throw(KeyboardInterrupt)
    assert not helper_pids()


def test_there_is_a_reader_for_each_cpu_that_we_may_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    for allowed, readers in (({3}, 1), ({3, 90}, 2), (set(range(64)), 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, allowed=allowed: allowed)
        assert deadline.reader_count() == readers


def test_patience_grows_with_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for load, expected in ((0.1, 1.0), (12.0, 3.0), (4000.0, 4.0)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert deadline.patience() == expected


def test_without_room_for_a_child_every_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container at its pids limit: often the very host on which something hangs."""

    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    before = set(os.listdir("/proc/self/fd"))
    answers = list(each(len, ("a", "bb", "ccc"), item_s=20, total_s=20, width=2))
    assert all(isinstance(answer, Trouble) and "limit on processes" in answer.reason for _, answer in answers)
    assert len(answers) == 3
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1


def test_children_leave_the_cores_to_the_job_but_not_more_than_needed() -> None:
    """A child of a watch, which is at low priority itself, would starve at the lowest."""

    def own_priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    expected = max(deadline.LOW_PRIORITY, own_priority())
    assert call(own_priority, 20) == expected
    assert call(lambda: call(own_priority, 20), 20) == expected


def forked(after_hold: bool) -> tuple[int, int]:
    """A child that ends with 7 when the descriptor is closed, or never."""
    held, hold = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(hold)
        os.read(held, 1)
        if after_hold:
            os._exit(7)
        signal.pause()
    os.close(held)
    return pid, hold


@pytest.mark.parametrize("has_pidfd", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_a_child_has_its_time_to_end_by_itself(
    ends: bool, has_pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    pid, hold = forked(ends)
    os.close(hold)
    began = time.monotonic()
    status = deadline.kill(pid, after_s=30.0 if ends else 0.1)
    assert status is not None and time.monotonic() - began < 20
    assert os.waitstatus_to_exitcode(status) == (7 if ends else -signal.SIGKILL)
