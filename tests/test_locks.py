"""Real lock-outs: who waits for what, who holds it, and where nobody may be named."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hangdoctor.collect import locks
from hangdoctor.collect.cpython import view
from hangdoctor.collect.cpython.frames import parse_exception_table
from hangdoctor.collect.locks import find_lock_waits, shared
from hangdoctor.collect.namespaces import list_children, map_threads, read_inner_id
from hangdoctor.model import LockWait, Syscall, Thread
from tests.b_support import build, eventually, list_pythons, read_threads, words_of
from tests.conftest import stuck

PYTHONS = list_pythons()


@dataclass(frozen=True)
class Scene:
    pid: int
    tids: dict[str, int]

    def look(self, *names: str, settled: str | None = None) -> dict[str, LockWait]:
        """The locks of the named threads, once all of them wait (for a ``settled`` kind of lock, if given).

        Also asserts, on every look, that no owner was named who is not one of the scene's threads.
        """
        name_of = {tid: name for name, tid in self.tids.items()}
        peers = [tid for name, tid in self.tids.items() if name in ("holder", "bystander")]

        def once() -> dict[str, LockWait] | None:
            seen = find_lock_waits(self.pid, read_threads(self.pid), peers=peers)
            assert all(lock.owner_tid in (*name_of, None) for lock in seen.values())
            named = {name_of[tid]: lock for tid, lock in seen.items() if tid in name_of}
            ready = all(name in named and settled in (None, named[name].kind) for name in names)
            return named if ready else None

        return eventually(once)

    def owners(self, *names: str, settled: str | None = None) -> dict[str, str | None]:
        """Waiter to the name of the thread that holds its lock."""
        name_of = {tid: name for name, tid in self.tids.items()}
        seen = self.look(*names, settled=settled)
        return {name: name_of.get(seen[name].owner_tid or 0) for name in names}


@contextmanager
def scene(program: str, *args: object, python: str | None = None, lines: int = 1) -> Iterator[Scene]:
    options = {"python": python} if python else {}
    with stuck(program, *args, lines=lines, **options) as running:
        pid, *_ = running.said[0].split()
        words = {name: value for line in running.said for name, value in words_of(line).items()}
        yield Scene(int(pid), {name: int(tid) for name, tid in words.items()})


@pytest.fixture(params=PYTHONS, ids=lambda path: "-".join(Path(path).parts[-3:]))
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- Python -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count", "kind", "how"),
    [
        ("abba", 2, "threading.Lock", "value-stack"),
        ("abba3", 3, "threading.Lock", "value-stack"),
        ("abba_rlock", 2, "threading.RLock", "recorded"),
    ],
)
def test_a_ring_of_python_locks_is_named_whole(
    python: str, name: str, count: int, kind: str, how: str
) -> None:
    names = [f"t{index}" for index in range(count)]
    with scene("b_locks.py", name, python=python) as seen:
        owners = seen.owners(*names, settled=kind)
        assert owners == {own: names[(index + 1) % count] for index, own in enumerate(names)}
        assert {seen.look(*names)[own].owner_how for own in names} == {how}


@pytest.mark.parametrize("name", ["held_with", "held_deep", "waits_inside", "held_condition"])
def test_the_thread_inside_the_block_is_the_holder(python: str, name: str) -> None:
    with scene("b_locks.py", name, python=python) as seen:
        assert seen.owners("waiter", settled="threading.Lock") == {"waiter": "holder"}
        assert seen.look("waiter")["waiter"].owner_how == "value-stack"


@pytest.mark.parametrize("name", ["held_acquire", "released_by_wait", "held_generator"])
def test_nobody_is_named_for_having_left_the_block_or_knowing_the_lock(python: str, name: str) -> None:
    with scene("b_locks.py", name, python=python) as seen:
        lock = seen.look("waiter", settled="threading.Lock")["waiter"]
        assert (lock.owner_tid, lock.owner_how, lock.is_orphaned) == (None, None, False)


def test_an_rlock_records_its_owner_however_it_was_taken(python: str) -> None:
    with scene("b_locks.py", "held_rlock", python=python) as seen:
        assert seen.owners("waiter", settled="threading.RLock") == {"waiter": "holder"}
        assert seen.look("waiter")["waiter"].owner_how == "recorded"


def test_waits_for_a_notify_have_no_owner(python: str) -> None:
    names = ("event", "queue", "semaphore", "timed")
    with scene("b_locks.py", "no_owner", python=python) as seen:
        assert seen.owners(*names, settled="condition") == dict.fromkeys(names)


def test_join_waits_for_the_thread_that_is_joined(python: str) -> None:
    with scene("b_locks.py", "join", python=python) as seen:
        assert seen.owners("waiter", settled="thread.join") == {"waiter": "other"}


def test_who_imports_a_module_holds_its_lock(python: str) -> None:
    with scene("b_locks.py", "import_lock", python=python) as seen:
        assert seen.owners("waiter", settled="import lock") == {"waiter": "holder"}
        assert set(seen.look("waiter")) == {"waiter"}


def test_a_lock_that_fork_copied_while_held_is_orphaned(python: str) -> None:
    with scene("b_locks.py", "fork_rlock", python=python) as seen:
        lock = seen.look("waiter", settled="threading.RLock")["waiter"]
        assert lock.is_orphaned and lock.owner_tid is None


def test_the_gil_and_a_mutex_in_a_ring(python: str, library: Path) -> None:
    with scene("b_native.py", library, "gil", python=python) as seen:
        found = seen.look("gil_holder", "mutex_holder")
        assert {found["gil_holder"].kind, found["mutex_holder"].kind} == {"mutex", "gil"}
        assert found["gil_holder"].owner_tid == seen.tids["mutex_holder"]
        assert found["mutex_holder"].owner_tid == seen.tids["gil_holder"]


def test_an_unknown_version_gets_no_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hangdoctor.collect.cpython.layouts._LAYOUTS", {})
    with scene("b_locks.py", "held_with") as seen:
        lock = seen.look("waiter")["waiter"]
        assert lock.kind in ("semaphore", "condition") and lock.owner_tid is None


def test_cost_of_200_threads() -> None:
    """A budget with room for a busy machine; measured 25 ms of CPU for locks and 6 ms for system calls."""
    with scene("b_locks.py", "many") as seen:
        waiting = [f"waiter{index}" for index in range(197)]
        found = seen.look(*waiting, settled="threading.Lock")
        assert {found[name].owner_tid for name in waiting} == {
            seen.tids[f"holder{index}"] for index in range(3)
        }
        threads = read_threads(seen.pid)
        costs = []
        for _ in range(3):
            start = time.process_time()
            find_lock_waits(seen.pid, threads)
            costs.append(time.process_time() - start)
        assert min(costs) < 0.1


# --- what happens between the stacks and the locks of a look ----------------------------------------------


def locks_after_a_view(
    what: str, python: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[LockWait | None, dict[str, str]]:
    """The waiter's lock, found with the view that was taken before the lock changed hands; and who is who."""
    with stuck("b_later.py", what, python=python) as running:
        monkeypatch.setattr(view, "_recent", {})
        kept = eventually(lambda: view.open_view(running.pid))
        running.release()
        words = words_of(running.hear()[0])

        def look() -> LockWait | None:
            kept.taken_at = time.monotonic()
            view._recent = {running.pid: kept}
            found = find_lock_waits(running.pid, read_threads(running.pid)).get(int(words["waiter"]))
            return found if found is not None and found.kind != "gil" else None

        return eventually(look), words


def test_who_let_go_within_its_block_since_is_not_the_only_one_to_hold_it(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are inside a block over it now, and which of them has it is recorded nowhere."""
    lock, _ = locks_after_a_view("let-go", python, monkeypatch)
    assert lock is not None and (lock.kind, lock.owner_tid) == ("threading.Lock", None)


def test_threads_that_began_since_are_seen(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, words = locks_after_a_view("new-threads", python, monkeypatch)
    assert lock is not None and lock.kind == "threading.Lock"
    # Who holds it was not there in the first of the two looks that it takes.
    assert lock.owner_tid in (None, int(words["holder"]))


def test_an_owner_under_the_ident_of_a_thread_that_has_ended_is_the_one_that_lives(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, words = locks_after_a_view("new-owner", python, monkeypatch)
    assert lock is not None
    assert (lock.kind, lock.owner_tid, lock.is_orphaned) == ("threading.RLock", int(words["holder"]), False)


# --- C and C++ ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("b_native.cpp", tmp_path_factory.mktemp("native") / "libnative.so", "-shared", "-fPIC")


@pytest.mark.parametrize("count", [2, 3])
def test_a_ring_of_mutexes_without_any_python(count: int, tmp_path: Path) -> None:
    program = build("b_native.cpp", tmp_path / "ring")
    names = [f"t{index}" for index in range(count)]
    with scene("b_native.cpp", count, python=str(program)) as seen:
        owners = seen.owners(*names, settled="mutex")
        assert owners == {own: names[(index + 1) % count] for index, own in enumerate(names)}


@pytest.mark.parametrize("kind", ["ring", "standard"])
@pytest.mark.parametrize("count", [2, 3])
def test_a_ring_of_mutexes_below_python(library: Path, count: int, kind: str) -> None:
    names = [f"t{index}" for index in range(count)]
    with scene("b_native.py", library, f"{kind}{count}") as seen:
        owners = seen.owners(*names, settled="mutex")
        assert owners == {own: names[(index + 1) % count] for index, own in enumerate(names)}
        assert {lock.owner_how for lock in seen.look(*names).values()} == {"recorded"}


def test_mutexes_taken_in_one_order_are_a_queue_and_no_ring(library: Path) -> None:
    with scene("b_native.py", library, "ordered3") as seen:
        assert seen.owners("t1", "t2", settled="mutex") == {"t1": "t0", "t2": "t0"}
        assert "t0" not in seen.look("t1", "t2")


def test_every_kind_of_mutex_records_its_owner(library: Path) -> None:
    kinds = ("plain", "inheriting", "robust", "recursive", "standard", "shared_write")
    with scene("b_native.py", library, "kinds") as seen:
        names = [f"waiter_{kind}" for kind in (*kinds, "shared_read")]
        found = seen.look(*names)
        owners = seen.owners(*names)
        assert owners == {
            **{f"waiter_{kind}": f"holder_{kind}" for kind in kinds},
            "waiter_shared_read": "holder_shared_write",
        }
        assert {name: found[name].kind for name in names} == {
            **{f"waiter_{kind}": "mutex" for kind in kinds},
            "waiter_shared_write": "rwlock",
            "waiter_shared_read": "rwlock",
        }


def test_what_records_no_owner_names_none(library: Path) -> None:
    names = ("waiter_condition", "waiter_condition_timed", "waiter_semaphore", "waiter_rw_write")
    with scene("b_native.py", library, "unowned") as seen:
        found = seen.look(*names)
        assert {name: found[name].kind for name in names} == {
            "waiter_condition": "condition",
            "waiter_condition_timed": "condition",
            "waiter_semaphore": "semaphore",
            "waiter_rw_write": "rwlock",
        }
        assert [found[name].readers for name in names] == [None, None, None, 2]
        assert all(lock.owner_tid is None and not lock.is_orphaned for lock in found.values())


def test_a_joined_thread_of_cpp_is_named(library: Path) -> None:
    with scene("b_native.py", library, "join") as seen:
        assert seen.owners("waiter", settled="thread.join") == {"waiter": "other"}


def test_a_mutex_that_fork_copied_while_held_is_orphaned(library: Path) -> None:
    with scene("b_native.py", library, "fork") as seen:
        lock = seen.look("waiter", settled="mutex")["waiter"]
        assert lock.is_orphaned and lock.owner_tid is None
    with scene("b_native.py", library, "kinds") as seen:
        assert not seen.look("waiter_plain")["waiter_plain"].is_orphaned


# --- between processes --------------------------------------------------------------------------------


def test_the_process_that_took_a_shared_lock_is_found(python: str, library: Path) -> None:
    with scene("b_native.py", library, "shared", python=python) as seen:
        found = seen.look("waiter", "waiter_semaphore")
        assert (found["waiter"].kind, found["waiter"].is_shared) == ("mp.Lock", True)
        assert found["waiter_semaphore"].kind == "mp.Semaphore"
        assert found["waiter_semaphore"].owner_pid is None

        def holder() -> LockWait | None:
            lock = seen.look("waiter")["waiter"]
            return lock if lock.owner_pid is not None else None

        lock = eventually(holder)  # the search is bounded in time, which a busy machine may exceed
        assert (lock.owner_pid, lock.owner_tid) == (seen.tids["holder"], seen.tids["holder"])


@pytest.mark.parametrize(("remembers", "searches"), [(True, 1), (False, 2)])
def test_in_one_look_the_holder_of_a_shared_lock_is_looked_for_once(
    remembers: bool, searches: int, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []
    find_holder = shared._find_holder

    def counting(*args: Any) -> Any:
        searched.append(args)
        return find_holder(*args)

    monkeypatch.setattr(shared, "_find_holder", counting)
    monkeypatch.setattr(shared, "_known", {} if remembers else None)
    with scene("b_native.py", library, "shared") as seen:
        threads = read_threads(seen.pid)
        waiter = seen.look("waiter")["waiter"]
        searched.clear()
        if remembers:
            shared.remember_holders()
        peers = (seen.pid, seen.tids["holder"])
        found = [find_lock_waits(seen.pid, threads, peers=peers)[seen.tids["waiter"]] for _ in range(2)]
    assert len(searched) == searches
    assert found[0] == found[1] and found[0].address == waiter.address


def test_without_peers_a_shared_lock_has_no_holder(library: Path) -> None:
    with scene("b_native.py", library, "shared") as seen:
        seen.look("waiter")
        found = find_lock_waits(seen.pid, read_threads(seen.pid))
        assert found[seen.tids["waiter"]].owner_pid is None


@pytest.mark.parametrize("scenario", ["ring2", "fork"])
def test_owners_in_a_container_are_named_by_their_host_tids(
    scenario: str, library: Path, tmp_path: Path
) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare(1)")
    inside = tmp_path / "python-in-container"
    inside.write_text(f'#!/bin/sh\nexec unshare --pid --fork --mount-proc {sys.executable} "$@"\n')
    inside.chmod(0o755)
    with stuck("b_native.py", library, scenario, python=str(inside)) as running:
        inner = int(running.said[0].split()[0])
        words = {name: int(tid) for name, tid in words_of(running.said[0]).items()}
        first = next(list_children(running.pid))
        pid = first if scenario == "ring2" else next(list_children(first))
        assert read_inner_id(f"/proc/{pid}/status") == inner != pid
        host = map_threads(pid)
        names = {host[tid]: name for name, tid in words.items() if tid in host}
        waiters = [tid for tid, name in names.items() if name in ("t0", "t1", "waiter")]

        def settled() -> dict[int, LockWait] | None:
            seen = find_lock_waits(pid, read_threads(pid))
            return seen if all(tid in seen and seen[tid].kind == "mutex" for tid in waiters) else None

        seen = eventually(settled)
        if scenario == "ring2":
            owners = {names[tid]: names.get(seen[tid].owner_tid or 0) for tid in waiters}
            assert owners == {"t0": "t1", "t1": "t0"}
        else:
            assert [seen[tid].is_orphaned for tid in waiters] == [True]


# --- what never raises --------------------------------------------------------------------------------


def test_nothing_to_say_about_threads_that_wait_for_no_lock() -> None:
    sleeping = Thread(1, syscall=Syscall("clock_nanosleep", (0,) * 6))
    assert find_lock_waits(os.getpid(), [sleeping, Thread(None), Thread(2)]) == {}


def test_a_process_that_may_not_be_read_has_no_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Thread(os.getpid(), syscall=Syscall("futex", (4096 * 16, 128, 2, 0, 0, 0)))
    assert find_lock_waits(2**22 - 1, [waiting]) == {}

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(locks, "find_native_waits", refuse)
    assert find_lock_waits(os.getpid(), [waiting]) == {}


def test_an_owner_is_withdrawn_when_the_waiter_has_moved_on(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scene("b_native.py", library, "ring2") as seen:
        seen.look("t0", "t1", settled="mutex")
        threads = read_threads(seen.pid)
        assert find_lock_waits(seen.pid, threads)[seen.tids["t0"]].owner_tid == seen.tids["t1"]
        monkeypatch.setattr(locks, "still_waits", lambda pid, wait: False)
        moved = find_lock_waits(seen.pid, threads)[seen.tids["t0"]]
        assert (moved.owner_tid, moved.owner_how) == (None, None)


def test_exception_tables_are_read_as_the_interpreter_does() -> None:
    """Compared with dis, for a function with nested blocks."""
    dis = pytest.importorskip("dis")
    parse = getattr(dis, "_parse_exception_table", None)
    if parse is None:
        pytest.skip("3.11 and later")

    def nested(a: list[int], b: Path) -> int:  # pragma: no cover
        with b.open() as one:
            for item in a:
                try:
                    with b.open():
                        return item
                except ValueError:
                    print(one)
        return 0

    code = nested.__code__
    wanted = [(entry.start // 2, entry.end // 2, entry.depth) for entry in parse(code)]
    assert list(parse_exception_table(code.co_exceptiontable)) == wanted
    assert list(parse_exception_table(b"\x80\x01")) == []
