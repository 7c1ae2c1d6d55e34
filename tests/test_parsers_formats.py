"""Each format on what the real tool printed of one small program: MainThread waits, a holder sleeps, a wanter waits."""

from __future__ import annotations

import pytest

from hangdoctor.model import Capture, Method, Process
from tests.parsers_support import functions, messages, only_process, read_dump, thread

HOLDER, WANTER, MAIN = 27164, 27165, 27162


@pytest.mark.parametrize("name", ["py-spy.txt", "py-spy-native.txt", "py-spy-locals.txt", "py-spy.json"])
def test_py_spy_gives_pid_names_and_python_frames(name: str) -> None:
    process = only_process(read_dump(name))
    assert process.pid == MAIN
    assert {t.tid: t.name for t in process.threads} == {
        MAIN: "MainThread",
        HOLDER: "holder",
        WANTER: "wanter",
    }
    python = [f.function for f in thread(process, HOLDER).stack.frames if not f.is_native]  # type: ignore[union-attr]
    assert python == ["hold", "Thread.run", "Thread._bootstrap_inner", "Thread._bootstrap"]
    innermost = next(f for f in thread(process, WANTER).stack.frames if not f.is_native)  # type: ignore[union-attr]
    assert (innermost.function, innermost.file, innermost.line) == ("want", "tgt.py", 9)


def test_py_spy_header_gives_command_and_version() -> None:
    process = only_process(read_dump("py-spy.txt"))
    assert process.command == ("/srv/venv/bin/python", "tgt.py")
    assert process.versions == {"python": "3.11.7"}
    assert [t.is_active_hint for t in process.threads] == [False] * 3
    assert all(
        t.owns_gil is None for t in process.threads
    )  # the text marks only a holder, and nobody holds it


def test_native_frames_are_told_from_python_frames() -> None:
    waits = thread(only_process(read_dump("py-spy-native.txt")), MAIN)
    assert waits.stack is not None and waits.stack.method is Method.PY_SPY_NATIVE
    kinds = [(f.function, f.is_native) for f in waits.stack.frames]
    assert ("PyThread_acquire_lock_timed", True) in kinds and ("Condition.wait", False) in kinds
    assert thread(only_process(read_dump("py-spy.txt")), MAIN).stack.method is Method.PY_SPY_BLOCKING  # type: ignore[union-attr]


def test_locals_are_never_kept() -> None:
    capture = read_dump("py-spy-locals.txt")
    assert "prompt" not in repr(capture)
    assert functions(thread(only_process(capture), WANTER))[0] == "want"


@pytest.mark.parametrize("name", ["pystack.txt", "pystack-native.txt"])
def test_pystack_is_turned_round_and_finds_the_main_thread(name: str) -> None:
    capture = read_dump(name)
    process = only_process(capture)
    assert process.pid == MAIN and process.threads[0].name == "MainThread"
    stack = thread(process, HOLDER).stack
    assert stack is not None and stack.method is Method.PYSTACK
    assert [f.function for f in stack.frames if not f.is_native] == [
        "hold",
        "run",
        "_bootstrap_inner",
        "_bootstrap",
    ]
    assert "prompt" not in repr(capture)


def test_pystack_puts_c_frames_above_the_python_frame_that_called_them() -> None:
    names = functions(thread(only_process(read_dump("pystack-native.txt")), HOLDER))
    assert names.index("time_sleep") < names.index("hold") < names.index("thread_run")


def test_gdb_reads_wrapped_signatures_places_and_threads() -> None:
    process = only_process(read_dump("gdb.txt"))
    assert process.pid == MAIN
    assert {t.tid for t in process.threads} == {MAIN, HOLDER, WANTER}
    frame = thread(process, WANTER).stack.frames[6]  # type: ignore[union-attr]
    assert (frame.function, frame.file, frame.line, frame.is_native) == (
        "PyThread_acquire_lock_timed",
        "Python/thread_pthread.h",
        497,
        True,
    )
    assert thread(process, MAIN).name == "MainThread"


def test_gdb_with_py_bt_joins_c_and_python() -> None:
    process = only_process(read_dump("gdb-py-bt.txt"))
    names = functions(thread(process, 27240))
    assert names[0].startswith("__futex_abstimed_wait") and names[-4:] == [
        "want",
        "run",
        "_bootstrap_inner",
        "_bootstrap",
    ]
    assert not any(name.startswith("_PyEval") for name in names)


def test_faulthandler_twice_is_two_looks_at_one_process() -> None:
    capture = read_dump("faulthandler-twice.txt")
    assert len(capture.snapshots) == 2
    first, second = (s.processes[0] for s in capture.snapshots)
    assert first.pid == second.pid and first.known_pid is None
    assert functions(thread(first, "MainThread")) == ["wait", "wait", "main", "<module>"]
    assert [t.name for t in first.threads] == [t.name for t in second.threads]
    assert len(first.threads) == 3


def test_ps_of_threads_gives_states_and_kernel_functions() -> None:
    process = only_process(read_dump("ps-threads.txt"))
    assert {(t.tid, t.state, t.wchan) for t in process.threads} == {
        (MAIN, "S", "futex_do_wait"),
        (HOLDER, "S", "hrtimer_nanosleep"),
        (WANTER, "S", "futex_do_wait"),
    }


def test_proc_status_and_stack() -> None:
    process = only_process(read_dump("proc-status.txt"))
    assert (process.pid, process.state, process.comm, process.thread_count, process.rss_bytes) == (
        MAIN,
        "S",
        "python",
        3,
        9948 * 1024,
    )
    (alone,) = only_process(read_dump("proc-stack.txt")).threads
    assert alone.kernel_stack[:2] == ("futex_do_wait", "__futex_wait") and alone.wchan == "futex_do_wait"


def test_strace_gives_the_call_each_thread_sits_in() -> None:
    process = only_process(read_dump("strace.txt"))
    calls = {t.tid: t.syscall for t in process.threads}
    assert calls[27240] is not None and calls[27240].name == "futex" and calls[27240].is_timed is False
    assert calls[27232] is not None and calls[27232].name == "clock_nanosleep"


def test_several_tools_on_one_process_are_one_look() -> None:
    process = only_process(read_dump("py-spy.txt", "gdb.txt", "ps-threads.txt", "proc-status.txt"))
    wanter = thread(process, "wanter")
    assert (wanter.state, wanter.wchan, wanter.comm) == ("S", "futex_do_wait", "python")
    assert functions(wanter)[0].startswith("__futex_abstimed_wait") and "want" in functions(wanter)
    assert process.state == "S"


def test_the_same_tool_twice_is_two_looks() -> None:
    capture = read_dump("py-spy.txt", "py-spy-locals.txt")
    assert [len(s.processes) for s in capture.snapshots] == [1, 1]


# -- collectives ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [[f"nccl_trace_rank_{r}" for r in range(3)], [f"flight_rank_{r}.json" for r in range(3)]]
)
def test_flight_recorder_files_say_who_is_behind(names: list[str]) -> None:
    capture = read_dump(*names)
    newest = {}
    for process in capture.snapshots[0].processes:
        assert process.rank_hint is not None and process.known_pid is None
        own = [e for e in process.flight if e.group == "0"]
        newest[process.rank_hint] = [(e.op, e.sequence, e.state) for e in own]
    assert newest == {
        "rank 0": [("all_reduce", 3, "retired"), ("all_gather", 4, "scheduled")],
        "rank 1": [("all_reduce", 3, "retired")],
        "rank 2": [("all_reduce", 3, "retired"), ("all_gather", 4, "scheduled")],
    }


def test_flight_recorder_entries_carry_sizes_limits_and_frames() -> None:
    process = only_process(read_dump("nccl_trace_rank_2"))
    pending = process.flight[-1]
    assert (pending.input_sizes, pending.output_sizes, pending.dtype, pending.timeout_s) == (
        "2",
        "3x2",
        "Float",
        20.0,
    )
    assert [f.function for f in pending.frames[:3]] == ["all_gather", "wrapper", "w"]
    assert pending.group_description == "default_pg"
    counters = {m.fields["group"]: m.fields for m in messages(read_dump("nccl_trace_rank_2"), "nccl.status")}
    assert (counters["0"]["last_enqueued"], counters["0"]["last_completed"]) == ("4", "3")


def _ras(capture: Capture) -> Process | None:
    return next(iter(capture.snapshots[0].processes), None)


def test_ras_answers_become_the_same_shape_as_live_ones() -> None:
    capture = read_dump("ncclras-gpu_spin.txt")
    (answer,) = capture.snapshots[-1].ras
    assert answer.nccl_version == "2.28.9"
    assert {p.pid: p.rank_hint for p in capture.snapshots[0].processes} == {3082: "rank 0", 3083: "rank 1"}
    assert {h.name for h in capture.hosts} == {"192.0.2.2"}


def test_ras_names_the_missing_process_and_not_the_garbage() -> None:
    capture = read_dump("ncclras-sigstop.txt")
    assert [p.pid for p in capture.snapshots[0].processes] == [4902]


def test_ras_of_a_healthy_job_names_nobody() -> None:
    assert _ras(read_dump("ncclras-healthy_idle.txt")) is None


def test_server_log_gives_phases_of_each_rank_and_its_end() -> None:
    capture = read_dump("sglang-startup.log")
    begun = {m.process for m in messages(capture, "begin") if m.fields.get("phase") == "sglang.weights-load"}
    assert begun == {"TP0", "TP1"}
    (log,) = capture.snapshots[-1].logs
    assert log.lines and "TP" in log.lines[-1]


def test_a_folder_of_dumps_is_one_job_with_two_looks() -> None:
    capture = read_dump("vllm-lock")
    assert len(capture.snapshots) == 2
    for snapshot in capture.snapshots:
        assert {p.pid: p.command for p in snapshot.processes} == {
            4282: ("VLLM::EngineCore",),
            4417: ("VLLM::Worker_TP0",),
            4418: ("VLLM::Worker_TP1",),
        }
        wedged = next(p for p in snapshot.processes if p.pid == 4418)
        assert functions(thread(wedged, "MainThread"))[0] == "OffloadManager.reserve_slot"
