"""Files, locks, logs, mappings and threads of real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangdoctor.collect import denials, filelocks, logs, processes, procfs, schedclock
from hangdoctor.collect.deadline import call
from hangdoctor.collect.files import read_files
from hangdoctor.collect.memory import Memory
from hangdoctor.collect.processes import Step, Wanted, read_processes, read_step
from hangdoctor.collect.schedclock import ClockBoard, SchedulerClock
from hangdoctor.collect.syscalls import decode_syscall
from hangdoctor.collect.threads import read_threads
from hangdoctor.model import FileLock, Gap, Process, Syscall, Thread
from tests.b_support import blocked, eventually
from tests.conftest import Stuck, stuck

MIB = 1 << 20


def allow_path(name: str) -> bool:
    return name == "PATH"


def read(pid: int) -> tuple[Process, tuple[Gap, ...]]:
    stat = procfs.read_stat(pid)
    assert stat is not None
    (process,), gaps = read_processes([stat], allow_path, {})
    return process, gaps


def test_all_that_a_process_shows() -> None:
    with stuck("c_hold.py", "an argument", env={"SECRET": "x"}) as program:
        process, gaps = read(program.pid)
    assert not gaps
    assert process.command[1:] == (process.command[1], "an argument")
    assert process.exe == str(Path(sys.executable).resolve())
    assert process.cwd == str(Path.cwd())
    assert (process.ppid, process.session, process.uid) == (os.getpid(), program.pid, os.getuid())
    assert process.environ == {"PATH": os.environ["PATH"]}
    assert process.versions["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert process.io is not None and process.io.read_chars > 0
    assert process.rss_bytes is not None and process.rss_bytes > MIB
    assert process.tracer_pid == 0
    assert process.exit_code is None
    assert process.ns_pid is None


def test_versions_already_known_are_not_looked_up_again() -> None:
    with stuck("c_hold.py") as program:
        part = read_step(Wanted(program.pid, program.pid, Step.MAPPINGS, allow_path, {"torch": "2.13.0"}))
    assert part.process.versions == {"torch": "2.13.0"}


def test_hostile_file_name_is_shown_as_text() -> None:
    with stuck("c_hostile.py") as program:
        targets = [file.target for file in read_files(program.pid)]
    assert f"/tmp/hangdoctor-\\xff\n[x]-{program.pid} (deleted)" in targets


@contextmanager
def weights(folder: Path, size: int, step: int) -> Iterator[Stuck]:
    path = folder / "model-00001-of-00002.safetensors"
    with path.open("wb") as file:
        file.truncate(size)
    with stuck("c_weights.py", path, step) as program:
        yield program


def test_resident_share_of_mapped_weights_is_exact_and_grows(tmp_path: Path) -> None:
    with weights(tmp_path, 64 * MIB, 5 * MIB) as program:
        first, _ = read(program.pid)
        program.release(times=1)
        program.hear()
        second, _ = read(program.pid)
    for process, touched in ((first, 5 * MIB), (second, 10 * MIB)):
        (mapped,) = process.mapped
        assert mapped.path.endswith(".safetensors")
        assert (mapped.size_bytes, mapped.mapped_bytes) == (64 * MIB, 64 * MIB)
        assert mapped.resident_bytes == touched
        opened = next(file for file in process.files if file.target == mapped.path)
        assert (opened.position, opened.size_bytes, opened.access) == (touched, 64 * MIB, "r")


def test_libraries_and_small_files_are_no_weights() -> None:
    with stuck("c_hold.py") as program:
        assert read(program.pid)[0].mapped == ()


def test_flock_names_holder_waiter_and_path(tmp_path: Path) -> None:
    path = tmp_path / "build.lock"
    with stuck("c_flock.py", path, lines=2) as program:
        pids = dict(line.split() for line in program.said)
        holder, waiter = int(pids["holder"]), int(pids["waiter"])
        wait_for_flock(waiter)
        both = [read(pid)[0] for pid in (holder, waiter)]
        locks = filelocks.read_file_locks(both)
        existing = filelocks.find_existence_locks(both, locks)
    assert locks == (FileLock("flock", str(path), holder, (waiter,)),)
    (baton,) = existing
    assert (baton.kind, baton.path, baton.holder) == ("existence", str(tmp_path / "lock"), holder)
    assert baton.age_s is not None and baton.age_s < 120


def wait_for_flock(pid: int) -> None:
    """The waiter says that it is about to wait; only the kernel knows when it does."""
    for _ in range(100_000):
        if f" {pid} " in Path("/proc/locks").read_text().replace("->", ""):
            return
        os.sched_yield()
    raise AssertionError("never waited")


def test_locks_of_strangers_are_left_out() -> None:
    listing = (
        "1: FLOCK  ADVISORY  WRITE 900 08:01:131 0 EOF\n"
        "1: -> FLOCK  ADVISORY  WRITE 901 08:01:131 0 EOF\n"
        "2: POSIX  ADVISORY  READ 902 00:2f:77 128 128\n"
    )
    assert filelocks.parse_locks(listing, [Process(902)]) == (FileLock("posix", None, 902),)
    assert filelocks.parse_locks(listing, [Process(901)]) == (FileLock("flock", None, 900, (901,)),)
    assert filelocks.parse_locks(listing, [Process(7)]) == ()


def test_log_behind_standard_output(tmp_path: Path) -> None:
    with redirected(tmp_path / "server.log", 77) as pid:
        process, _ = read(pid)
        (source,) = logs.find_logs([process], ())
        tail = logs.read_tail(source)
    assert tail.path == str(tmp_path / "server.log")
    assert tail.pids == (pid,)
    assert tail.lines == (*(f"line {number}" for number in range(48, 77)), "loading 2/3")
    assert tail.size_bytes == (tmp_path / "server.log").stat().st_size


@contextmanager
def redirected(log: Path, count: int) -> Iterator[int]:
    with stuck("c_log.py", count, output=log) as program:
        yield program.pid


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.log"
    with path.open("wb") as file:
        file.truncate(1 << 34)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe last line\n")
    assert logs.read_tail(logs.LogSource(str(path), "large")).lines[-1] == "the last line"


def test_a_fifo_given_as_log_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match="not a regular file"):
        logs.read_tail(logs.LogSource(str(tmp_path / "fifo"), "fifo"))


def test_bytes_of_a_log_are_only_text() -> None:
    assert logs.split_lines(b"cut\n\xff\x1b[31m[/red]\n\n", is_cut=True) == ("\\xff\x1b[31m[/red]",)


def test_threads_of_a_zombie_leader() -> None:
    with stuck("c_zombie_leader.py") as program:
        survivor = int(program.said[0].split()[1])
        table = read_threads(program.pid, lambda line, wchan: None, is_namespaced=False)
    states = {thread.tid: thread.state for thread in table.threads}
    assert states.pop(program.pid) == "Z"
    assert list(states) == [survivor] and states[survivor] != "Z"


def test_all_threads_are_read_before_any_call_is_decoded() -> None:
    """So the word of a futex is never older than the wait. Here the process is gone by then."""
    lines: list[str] = []
    with stuck("c_threads.py", 9, 1) as program:

        def decode(line: str, wchan: str | None) -> Syscall:
            if not lines:
                program.popen.kill()
                os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
            lines.append(line)
            return Syscall(line)

        table = read_threads(program.pid, decode, is_namespaced=False)
    assert len(table.threads) == 10
    assert all(thread.syscall and thread.run_ns for thread in table.threads)
    assert lines and all(line == "running" or len(line.split()) == 7 for line in lines)


def test_equal_calls_are_decoded_once() -> None:
    """Nine threads wait for one lock."""
    calls = []
    with stuck("c_threads.py", 9, 1) as program:

        def decode(line: str, wchan: str | None) -> Syscall | None:
            calls.append((line, wchan))
            return decode_syscall(program.pid, line, wchan=wchan)

        def look() -> tuple[Thread, ...]:
            calls.clear()
            rest = read_threads(program.pid, decode, is_namespaced=False).threads[1:]
            return rest if all(thread.wchan for thread in rest) else ()  # one may be on its way in

        rest = eventually(look)
    assert len(rest) == 9 and len(calls) == 2
    assert all(thread.syscall is rest[0].syscall for thread in rest)
    assert rest[0].syscall is not None and rest[0].syscall.name == "futex"


def test_words_of_futexes_are_read_at_once(tmp_path: Path) -> None:
    with blocked(tmp_path) as (program, words):
        tids = [int(words[name]) for name in ("futex", "futex_shared", "futex_timed", "futex_until")]
        read_before: list[set[int]] = []

        def look() -> list[Syscall | None]:
            pages = Memory(program.pid)

            def decode(line: str, wchan: str | None) -> Syscall | None:
                read_before.append(set(pages.pages))
                return decode_syscall(program.pid, line, wchan=wchan, pages=pages)

            read_before.clear()
            table = read_threads(program.pid, decode, is_namespaced=False, pages=pages)
            calls = [thread.syscall for thread in table.threads if thread.tid in tids]
            return calls if all(call and call.name == "futex" for call in calls) else []

        calls = eventually(look)
    for found in calls:
        assert found is not None and found.detail is not None and "word 0x7" in found.detail
        assert (found.timeout_s is not None) is found.is_timed
        wanted = {found.args[0], found.args[3]} - {0}
        assert {address & -4096 for address in wanted} <= read_before[0]


def test_switches_and_inner_tids_are_the_same_from_status() -> None:
    with stuck("c_hold.py") as program:
        tables = [
            read_threads(program.pid, lambda line, wchan: None, is_namespaced=is_namespaced)
            for is_namespaced in (False, True)
        ]
    (plain,), (inner,) = (table.threads for table in tables)
    assert plain.voluntary_switches == inner.voluntary_switches is not None
    assert plain.involuntary_switches == inner.involuntary_switches is not None
    assert tables[0].inner_tids == {} and tables[1].inner_tids == {program.pid: program.pid}


def test_when_a_thread_last_ran() -> None:
    clock = SchedulerClock()
    with stuck("c_hold.py") as resting:
        os.waitid(os.P_PID, _pause().pid, os.WEXITED)
        clock._welcoming = frozenset(os.sched_getaffinity(0))  # however busy this machine is
        table = read_threads(resting.pid, lambda line, wchan: None, is_namespaced=False, clock=clock)
    rest = table.threads[0]
    assert rest.last_ran_s is not None and 0.15 <= rest.last_ran_s < 60
    assert rest.state == "S" and rest.wchan is not None
    assert rest.run_ns is not None and rest.voluntary_switches is not None


def _pause() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "0.2"])


def test_stopped_process_is_in_state_t_and_stays_so() -> None:
    with stuck("c_threads.py", 3, 1) as program:
        os.kill(program.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, program.pid, os.WSTOPPED | os.WNOWAIT)
        process, gaps = read(program.pid)
        table = read_threads(program.pid, lambda line, wchan: None, is_namespaced=False)
        stat = procfs.read_stat(program.pid)
    assert process.state == "T" and not gaps
    assert {thread.state for thread in table.threads} == {"T"}
    assert stat is not None and stat.state == "T"


def test_zombie_has_its_exit_code_and_costs_no_gap() -> None:
    with stuck("c_zombie.py", 7) as program:
        process, gaps = read(int(program.said[0].split()[1]))
    assert (process.state, process.exit_code, process.command) == ("Z", 7, ())
    assert not gaps


def test_step_that_blocks_costs_itself_and_what_needs_the_same_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")

    def block(want: Wanted) -> processes.Part:
        os.close(os.open(tmp_path / "fifo", os.O_RDONLY))
        return processes.Part(Process(want.pid))

    monkeypatch.setattr(processes, "_READERS", {**processes._READERS, Step.COMMAND: block})
    monkeypatch.setattr(processes, "STEP_S", 0.2)
    with stuck("c_hold.py") as program:
        process, gaps = read(program.pid)
    assert process.command == () and process.environ is None and process.versions == {}
    assert process.files and process.exe is not None and process.io is not None
    assert [gap.subject for gap in gaps] == [f"pid {program.pid}"] * 3
    assert all(gap.remedy for gap in gaps)


def test_gap_of_a_refusal_is_one_a_process_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(want: Wanted) -> processes.Part:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(processes, "_READERS", dict.fromkeys(Step, refuse))
    with stuck("c_hold.py") as program:
        for uid, words in (
            (1000, f'sudo env "PATH=$PATH" hangdoctor attach {program.pid}'),
            (0, "SYS_PTRACE"),
        ):
            own = denials._Credentials(uid, 0, 0)
            monkeypatch.setattr(denials, "_read_credentials", lambda path, own=own: own)
            process, (gap,) = read(program.pid)
            assert process.comm == Path(sys.executable).name
            assert gap.remedy is not None and words in gap.remedy
            assert ("sudo" in gap.remedy) is (uid != 0)


def clock_after(
    seconds: float, idle_ticks: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> SchedulerClock:
    """A clock that was made ``seconds`` ago, on CPUs that were idle for so many ticks since; we are on none of them."""
    monkeypatch.setattr(schedclock, "_current_cpu", lambda: 4095)
    readings = [dict.fromkeys(idle_ticks, 0), idle_ticks]
    monkeypatch.setattr(schedclock, "_idle_ticks", lambda: readings.pop(0))
    monkeypatch.setattr(schedclock.time, "monotonic", lambda: 2000.0 - seconds)
    monkeypatch.setattr(schedclock._last, "at", 0.0)
    clock = SchedulerClock()
    monkeypatch.setattr(schedclock.time, "monotonic", lambda: 2000.0)
    return clock


def test_clocks_of_cpus_differ_and_are_read_where_the_thread_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread rests on a CPU whose clock runs 1000 s behind, as hours of interrupts make it."""
    monkeypatch.setattr(schedclock, "_read_clock_of", lambda cpu: {0: 5_000.0, 1: 1_005_000.0}[cpu])
    clock = clock_after(0.1, {0: 9, 1: 2}, monkeypatch)
    assert clock.seconds_since(b"se.exec_start : 1985000.000000\n", cpu=0) == 10.0
    assert clock.seconds_since(b"se.exec_start : 985000.000000\n", cpu=1) == 10.0
    assert clock.seconds_since(b"se.exec_start : 985000.000000\n", cpu=1, at=1997.0) == 7.0
    assert clock.seconds_since(None, cpu=0) is None
    assert clock.seconds_since(b"nothing of the kind", cpu=0) is None


@pytest.mark.parametrize(("seconds", "ticks"), [(0.1, 0), (0.02, 0)], ids=["busy", "busy-for-30-ms"])
def test_a_cpu_that_may_have_no_time_is_not_visited(
    seconds: float, ticks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedclock, "_read_clock_of", lambda cpu: pytest.fail("went there"))
    clock = clock_after(seconds, {0: ticks}, monkeypatch)
    assert clock.seconds_since(b"se.exec_start : 1985000.000000\n", cpu=0) is None


def test_idle_time_counts_from_just_before_this_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look itself keeps the CPUs busy, which must not keep it from reading their clocks."""
    monkeypatch.setattr(schedclock, "_current_cpu", lambda: 4095)
    monkeypatch.setattr(schedclock, "_read_clock_of", lambda cpu: 5_000.0)
    monkeypatch.setattr(schedclock, "_idle_ticks", lambda: {0: 109})
    monkeypatch.setattr(schedclock.time, "monotonic", lambda: 2000.0)
    for age_s, is_visited in ((0.5, True), (600.0, False)):
        monkeypatch.setattr(schedclock._last, "at", 2000.0 - age_s)
        monkeypatch.setattr(schedclock._last, "idle", {0: 100})
        clock = SchedulerClock()
        answer = clock.seconds_since(b"se.exec_start : 1985000.000000\n", cpu=0)
        assert answer == (10.0 if is_visited else None)


def test_the_clock_of_the_cpu_that_we_are_on_is_read_without_a_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedclock, "_read_clock_of", lambda cpu: pytest.fail("went there"))
    here = max(os.sched_getaffinity(0))
    own = pin_to(here)
    clock = SchedulerClock()
    ran = clock.seconds_since(own, cpu=here)
    assert ran is not None and 0 <= ran < 20


def pin_to(cpu: int) -> bytes:
    """Until the fixture of this module lets go again. Returns our own ``sched`` there."""
    os.sched_setaffinity(0, {cpu})
    return Path("/proc/thread-self/sched").read_bytes()


@pytest.fixture(autouse=True)
def _unpinned() -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, allowed)


def test_what_one_of_us_has_read_serves_the_others_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two readers on two CPUs had to go to each other's, and each waited until the other had left its own."""
    if len(cpus := sorted(os.sched_getaffinity(0))) < 2:
        pytest.skip("one CPU")
    board = ClockBoard()

    def read_there() -> bool:
        pin_to(cpus[1])
        return SchedulerClock(board) is not None

    assert call(read_there, 20) is True
    monkeypatch.setattr(schedclock, "_read_clock_of", lambda cpu: pytest.fail("went there"))
    pin_to(cpus[0])
    ahead_ms = board.read(cpus[1])
    assert ahead_ms is not None
    clock, now = SchedulerClock(board), time.monotonic()
    sched = b"se.exec_start : %.6f\n" % (1000 * (now - 7) - ahead_ms)
    assert clock.seconds_since(sched, cpu=cpus[1], at=now) == pytest.approx(7.0, abs=1e-6)


def test_twin_what_was_read_long_ago_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hypervisor that steals time, and interrupts, put the clocks further apart all the time."""
    board = ClockBoard()
    board.post(0, 5_000.0)
    assert board.read(0) == 5_000.0
    now = time.monotonic()
    for later in (now + 1.0, now - 1.0):
        monkeypatch.setattr(schedclock.time, "monotonic", lambda later=later: later)
        assert board.read(0) is None


def test_a_reader_that_lost_the_cpu_while_it_read_its_clock_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it was kept waiting for would be taken for a difference of the clocks."""
    assert any(schedclock._read_own_clock() is not None for _ in range(100))
    monkeypatch.setattr(schedclock.time, "thread_time", lambda: time.sleep(0.01))
    assert schedclock._read_own_clock() is None


def test_a_cpu_that_the_board_has_no_place_for_is_nobodys() -> None:
    board = ClockBoard()
    board.post(8191, 1.0)
    assert board.read(8191) == 1.0 and board.read(8190) is None
    for cpu in (-1, 10**6):
        board.post(cpu, 1.0)
        assert board.read(cpu) is None


def test_affinity_is_restored() -> None:
    allowed = os.sched_getaffinity(0)
    clock = SchedulerClock()
    sched, here = Path("/proc/thread-self/sched").read_bytes(), max(allowed)
    clock._welcoming = frozenset({here, 4095})
    assert clock.seconds_since(sched, cpu=here) is not None
    assert clock.seconds_since(sched, cpu=4095) is None
    assert os.sched_getaffinity(0) == allowed
