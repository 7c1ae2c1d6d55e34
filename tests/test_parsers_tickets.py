"""One pasted ticket: prefixes, headings, interleaved ranks, second looks, containers, prose in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoctor.errors import UnreadableInput
from hangdoctor.model import Capture
from hangdoctor.parsers import read_files, read_text
from tests.parsers_support import DUMPS, bugs, functions, knowledge, messages, name_of, processes, thread

DUMP = (DUMPS / "py-spy.txt").read_text()
RANKS = 7


def read(text: str) -> Capture:
    capture = read_text(text, "ticket", knowledge())
    assert not bugs(capture)
    return capture


def dump_of(
    rank: int, *, innermost: str = "all_reduce", pid: int | None = None, title: str | None = None
) -> str:
    """A short py-spy dump; every rank has its own pid and threads."""
    pid = 4000 + 10 * rank if pid is None else pid
    return (
        f"Process {pid}: {title or f'sglang::scheduler_TP{rank}'}\n"
        "Python v3.12.3 (/usr/bin/python3.12)\n"
        "\n"
        f'Thread {pid} (idle): "MainThread"\n'
        f"    {innermost} (torch/distributed/distributed_c10d.py:3075)\n"
        "    event_loop_overlap (scheduler.py:646)\n"
        f'Thread {pid + 3} (idle): "Thread-1 (_read_thread)"\n'
        "    read (libc.so.6)\n"
        "    _recv_msg (torch/_inductor/compile_worker/subproc_pool.py:61)\n"
    )


def innermost_of(capture: Capture) -> dict[str, str]:
    return {
        name_of(p): functions(thread(p, "MainThread"))[0] for p in capture.snapshots[0].processes if p.threads
    }


# -- prefixes -----------------------------------------------------------------------------------------------

PREFIXES = {
    "docker compose": ("worker-{rank}  | ", "worker-{rank}"),
    "kubectl logs --prefix": ("[pod/trainer-{rank}/main] ", "trainer-{rank}/main"),
    "journald": ("Nov 29 18:04:0{rank} node{rank} vllm[4711]: ", "node{rank}"),
    "clush": ("node{rank}: ", "node{rank}"),
    "time stamps and a pod": (
        "[pod/trainer-{rank}/main] 2026-11-29T18:04:00.123456789Z ",
        "trainer-{rank}/main",
    ),
}


@pytest.mark.parametrize("name", PREFIXES)
def test_lines_of_several_hosts_come_apart_though_interleaved(name: str) -> None:
    prefix, host = PREFIXES[name]
    columns = [dump_of(r, innermost="barrier" if r == 4 else "all_reduce").splitlines() for r in range(RANKS)]
    lines = [prefix.format(rank=r) + columns[r][i] for i in range(len(columns[0])) for r in range(RANKS)]
    capture = read("\n".join(lines))
    assert {p.host: p.pid for p in capture.snapshots[0].processes} == {
        host.format(rank=r): 4000 + 10 * r for r in range(RANKS)
    }
    odd = [p.host for p in capture.snapshots[0].processes if functions(p.threads[0])[0] == "barrier"]
    assert odd == [host.format(rank=4)]
    assert all(len(p.threads) == 2 for p in capture.snapshots[0].processes)


@pytest.mark.parametrize("prefix", ["[rank{rank}]: ", "[default{rank}]:", "[1,{rank}]<stderr>:", "{rank}: "])
def test_rank_prefixes_name_the_processes(prefix: str) -> None:
    columns = [dump_of(r, title="python train.py").splitlines() for r in range(RANKS)]
    lines = [prefix.format(rank=r) + columns[r][i] for i in range(len(columns[0])) for r in range(RANKS)]
    assert set(processes(read("\n".join(lines)))) == {f"rank {r}" for r in range(RANKS)}


def test_vllm_prefix_gives_name_and_pid() -> None:
    lines = [f"(Worker_TP{r} pid={4000 + 10 * r}) {line}" for r in (0, 1) for line in dump_of(r).splitlines()]
    found = processes(read("\n".join(lines)))
    assert {name: p.pid for name, p in found.items()} == {"Worker_TP0": 4000, "Worker_TP1": 4010}


@pytest.mark.parametrize("wrap", ["> {}", "\x1b[32m{}\x1b[0m", "{}\r", "2026-11-29 18:04:00 {}", "  {}"])
def test_what_mail_terminals_and_windows_add_is_taken_off(wrap: str) -> None:
    text = "\n".join(wrap.format(line) for line in DUMP.splitlines())
    (process,) = read(text).snapshots[0].processes
    assert (process.pid, len(process.threads)) == (27162, 3)
    assert functions(thread(process, "holder"))[0] == "hold"


# -- headings -----------------------------------------------------------------------------------------------

HEADINGS = {
    "=== rank 5 ===": "rank 5",
    "# TP5": "TP5",
    "**Rank 5:**": "rank 5",
    "### DP1 TP5": "DP1 TP5",
    "rank5.txt:": "rank 5",
    "Here is the dump of rank 5:": "rank 5",
    "==> logs/rank5.txt <==": "rank 5",
    "5卡:": "GPU 5",
}


@pytest.mark.parametrize("heading", HEADINGS)
def test_headings_name_the_block_below(heading: str) -> None:
    text = f"Some words.\n\n{heading}\n```\n{dump_of(5, title='python train.py')}```\nMore words.\n"
    assert list(processes(read(text))) == [HEADINGS[heading]]


@pytest.mark.parametrize(
    "prose",
    [
        "I think that rank 5 is the one which hangs because it always was the last one to print anything at all today",
        "we run with tp=8 on one node",
        "It happened again after 5 hours",
    ],
)
def test_a_sentence_is_no_heading(prose: str) -> None:
    assert list(processes(read(f"{prose}\n{dump_of(3, title='python train.py')}"))) == ["4030"]


def test_a_heading_does_not_reach_over_other_text() -> None:
    text = "# TP1\nLine one of prose here.\nLine two.\nLine three.\nLine four.\n" + dump_of(
        3, title="python a.py"
    )
    assert list(processes(read(text))) == ["4030"]


def test_a_heading_may_name_a_range_of_ranks() -> None:
    capture = read(
        "# TP0-TP2, TP4\n    broadcast (torch/distributed/distributed_c10d.py:2974)\n# TP3\n    forward (x.py:1)\n"
    )
    assert {name: functions(p.threads[0]) for name, p in processes(capture).items()} == {
        **{f"TP{r}": ["broadcast"] for r in (0, 1, 2, 4)},
        "TP3": ["forward"],
    }


def test_command_above_a_block_gives_pid_and_host() -> None:
    frames = "    all_reduce (torch/distributed/distributed_c10d.py:3075)\n    main (train.py:3)\n"
    text = (
        f"$ kubectl exec trainer-3 -- py-spy dump --pid 77\n{frames}root@gpu-5:/# py-spy dump -p 78\n{frames}"
    )
    capture = read(text)
    assert {(p.host, p.pid) for p in capture.snapshots[0].processes} == {("trainer-3", 77), ("gpu-5", 78)}


def test_prose_between_the_threads_of_one_process_does_not_split_it() -> None:
    first, second = dump_of(3).split("Thread 4033 (idle)")
    (process,) = (
        read(f"{first}```\nand the other thread:\n```\nThread 4033 (idle){second}").snapshots[0].processes
    )
    assert [t.tid for t in process.threads] == [4030, 4033]


# -- looks --------------------------------------------------------------------------------------------------


def test_a_second_dump_of_every_rank_is_a_second_look() -> None:
    before = "".join(dump_of(r) for r in range(RANKS))
    after = "".join(dump_of(r, innermost="barrier" if r == 4 else "all_reduce") for r in range(RANKS))
    capture = read(before + "10 s later:\n" + after)
    assert [len(s.processes) for s in capture.snapshots] == [RANKS, RANKS]
    moved = [
        name
        for name, p in processes(capture, 1).items()
        if functions(p.threads[0]) != functions(processes(capture, 0)[name].threads[0])
    ]
    assert moved == ["sglang::scheduler_TP4"]


def test_times_of_looks_come_from_the_log() -> None:
    stamps = ["2025-03-10 16:29:01", "2025-03-10 16:34:01"]
    text = "".join(f"[{stamp} TP3] Pyspy dump for PID 4030:\n{dump_of(3)}\n" for stamp in stamps)
    capture = read(text)
    first, second = (s.taken_at for s in capture.snapshots)
    assert first is not None and second is not None and second - first == 300
    assert [p.rank_hint for s in capture.snapshots for p in s.processes] == ["TP3", "TP3"]


def test_a_rank_dumped_once_is_put_to_the_look_nearest_in_time() -> None:
    def dump(rank: int, minute: int) -> str:
        return f"[2025-03-10 16:{minute:02}:00 TP{rank}] Pyspy dump for PID {4000 + 10 * rank}:\n{dump_of(rank)}\n"

    capture = read(dump(0, 1) + dump(0, 11) + dump(0, 21) + dump(3, 20))
    assert [sorted(p.rank_hint or "" for p in s.processes) for s in capture.snapshots] == [
        ["TP0"],
        ["TP0"],
        ["TP0", "TP3"],
    ]


def test_same_pid_on_other_threads_is_another_container() -> None:
    twin = dump_of(0, pid=1, title="python serve.py").replace("Thread 4 ", "Thread 9 ")
    capture = read(dump_of(0, pid=1, title="python serve.py") + twin)
    assert [p.ns_pid for p in capture.snapshots[0].processes] == [1, 1]
    assert len(capture.snapshots) == 1


def test_same_pid_on_the_same_threads_is_the_same_process() -> None:
    capture = read(dump_of(0, pid=1, title="python serve.py") * 2)
    assert [[p.pid for p in s.processes] for s in capture.snapshots] == [[1], [1]]


def test_title_that_gains_its_rank_is_the_same_process() -> None:
    capture = read(dump_of(0, pid=44, title="VLLM::Worker") + dump_of(0, pid=44, title="VLLM::Worker_TP0"))
    assert [[p.pid for p in s.processes] for s in capture.snapshots] == [[44], [44]]


def test_recorder_file_and_dump_of_one_rank_are_one_process(tmp_path: Path) -> None:
    (tmp_path / "rank1.txt").write_text(dump_of(1, title="python train.py"))
    (tmp_path / "nccl_trace_rank_1").write_bytes((DUMPS / "nccl_trace_rank_1").read_bytes())
    capture = read_files([str(tmp_path)], knowledge())
    (process,) = capture.snapshots[0].processes
    assert (process.rank_hint, process.pid, bool(process.flight), len(process.threads)) == (
        "rank 1",
        4010,
        True,
        2,
    )


def test_file_name_names_nobody_when_the_file_holds_several(tmp_path: Path) -> None:
    path = tmp_path / "rank1.txt"
    path.write_text(dump_of(1, title="python train.py") + dump_of(2, title="python train.py"))
    assert {p.rank_hint for p in read_files([str(path)]).snapshots[0].processes} == {None}


# -- other blocks -------------------------------------------------------------------------------------------


def test_stack_of_the_failed_collective_has_no_prefix_but_the_first_line() -> None:
    text = (
        "[rank5]:[E822 16:31:16.1 ProcessGroupNCCL.cpp:670] [PG ID 0 PG GUID 0(default_pg) Rank 5] "
        "Stack trace of the failed collective: \n"
        "#0 all_reduce from /opt/torch/distributed/distributed_c10d.py:2806\n"
        "#1 step from /srv/train.py:41\n"
        "and more words\n"
    )
    capture = read(text.replace("[PG ID 0 PG GUID 0(default_pg) Rank 5] ", ""))
    (process,) = capture.snapshots[0].processes
    assert (process.rank_hint, functions(process.threads[0])) == ("rank 5", ["all_reduce", "step"])


def test_state_of_a_process_under_the_command_that_read_it() -> None:
    capture = read(
        "$ cat /proc/4711/status | head -3\nName:\tpython3\nUmask:\t0022\nState:\tD (disk sleep)\n"
    )
    (process,) = capture.snapshots[0].processes
    assert (process.pid, process.state) == (4711, "D")


def test_kernel_stack_goes_to_the_thread_in_the_path() -> None:
    text = (
        dump_of(3) + "\n# cat /proc/4030/task/4033/stack\n"
        "[<0>] uvm_va_block_wait+0x1/0x9 [nvidia_uvm]\n[<0>] do_syscall_64+0x5c/0xf0\n"
    )
    (process,) = read(text).snapshots[0].processes
    assert thread(process, 4033).kernel_stack == ("uvm_va_block_wait", "do_syscall_64")
    assert thread(process, 4030).kernel_stack == ()


def test_ps_row_adds_the_state_to_the_dumped_process() -> None:
    text = dump_of(3) + "\nUSER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND\n"
    text += "root        4030  117  1.0 279612 11044 ?        Dl   02:51   9:59 sglang::scheduler_TP3\n"
    text += "root           2  0.0  0.0      0     0 ?        S    02:00   0:00 [kthreadd]\n"
    capture = read(text)
    (process,) = capture.snapshots[0].processes
    assert (process.state, process.rss_bytes, process.user_ticks) == ("D", 11044 * 1024, 59900)


def test_hung_task_of_the_kernel_log_is_a_thread_in_uninterruptible_wait() -> None:
    text = (
        "[12345.678901] INFO: task python3:4033 blocked for more than 122 seconds.\n"
        "[12345.678903] task:python3         state:D stack:0     pid:4033  tgid:4030  ppid:4000   flags:0x00000002\n"
        "[12345.678904] Call Trace:\n[12345.678905]  <TASK>\n[12345.678906]  __schedule+0x27c/0x6b0\n"
        "[12345.678907]  uvm_va_block_wait+0x1/0x2 [nvidia_uvm]\n[12345.678908]  </TASK>\n"
        "[12346.000001] NVRM: Xid (PCI:0000:18:00): 79, pid=4030, name=python3, GPU has fallen off the bus.\n"
    )
    capture = read(text)
    (process,) = capture.snapshots[0].processes
    assert (process.pid, process.state, process.comm) == (4033, "D", "python3")
    assert (process.threads[0].wchan, process.threads[0].kernel_stack) == (
        "uvm_va_block_wait",
        ("__schedule", "uvm_va_block_wait"),
    )
    (xid,) = messages(capture, "gpu.xid")
    assert (xid.fields["code"], xid.fields["pid"]) == ("79", "4030")


def test_eu_stack() -> None:
    text = (
        "PID 123 - process\nTID 123:\n#0  0x00007f8a5c0f3e2e epoll_wait\n"
        "#1  0x00007f8a5c1  uv__io_poll - /usr/lib/libuv.so.1\n"
        "TID 130:\n#0  0x00007f8a5c0f3e2e pthread_cond_wait\n#1  0x00007f8a5c0f3e2f worker(void*)\n"
    )
    (process,) = read(text).snapshots[0].processes
    assert {t.tid: functions(t) for t in process.threads} == {
        123: ["epoll_wait", "uv__io_poll"],
        130: ["pthread_cond_wait", "worker"],
    }


def test_thread_of_another_tool_finds_its_process() -> None:
    text = (
        dump_of(3)
        + "\nThread 2 (LWP 4033):\n#0  0x00007f81 in read () from /lib64/libc.so.6\n#1  0x00007f82 in f () from /x.so\n"
    )
    (process,) = read(text).snapshots[0].processes
    assert functions(thread(process, 4033))[:2] == ["read", "_recv_msg"]


def test_nvidia_smi_table_and_csv() -> None:
    table = (
        "|   0  NVIDIA H200                    On  |   00000000:18:00.0 Off |                    0 |\n"
        "| N/A   35C    P0              117W / 700W |   40960MiB / 143771MiB |    100%      Default |\n"
    )
    csv = "index, utilization.gpu [%], power.draw [W], memory.used [MiB]\n1, 0 %, 68.10 W, 76000 MiB\n"
    gpus = {g.index: g for g in read(table + csv).snapshots[0].gpus}
    assert (gpus[0].utilization_percent, gpus[0].power_w, gpus[0].power_limit_w) == (100.0, 117.0, 700.0)
    assert (gpus[1].utilization_percent, gpus[1].power_w, gpus[1].memory_used_bytes) == (
        0.0,
        68.1,
        76000 << 20,
    )


def test_exception_of_a_request_is_a_message_and_no_process() -> None:
    text = (
        dump_of(3)
        + '\nTraceback (most recent call last):\n  File "/srv/app.py", line 9, in handle\n    x()\nValueError: bad\n'
    )
    capture = read(text)
    assert len(capture.snapshots[0].processes) == 1
    (message,) = messages(capture, "python.exception")
    assert (message.fields["type"], message.fields["function"], message.fields["line"]) == (
        "ValueError",
        "handle",
        "9",
    )


def test_interrupted_script_shows_where_it_was() -> None:
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 9, in <module>\n    main()\n'
        '  File "b.py", line 2, in wait\n    x()\nKeyboardInterrupt\n'
    )
    (process,) = read(text).snapshots[0].processes
    assert functions(thread(process, "MainThread")) == ["wait", "<module>"]


@pytest.mark.parametrize(
    ("line", "kind", "fields"),
    [
        (
            "[rank0]: [Rank 0]: Ranks 3, 5 failed to pass monitoredBarrier in 480000 ms",
            "torch.barrier-missing",
            {"missing": "3, 5", "timeout_ms": "480000"},
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 5/7 clients joined.",
            "store.joined",
            {"joined": "5", "expected": "7"},
        ),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, TensorShape=[1]), "
            "but Rank 3 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=5, OpType=BROADCAST, TensorShape=[1])",
            "torch.collective-mismatch",
            {"op": "ALLREDUCE", "other_rank": "3", "other_op": "BROADCAST"},
        ),
        (
            "[1] finished collective #1155873, but didn't join collective #1155874 (count from 1)",
            "torch.desync",
            {"missing": "1", "sequence": "1155874"},
        ),
        (
            "node1:4711:4999 [0] NCCL INFO ncclCommInitRank comm 0x5581 rank 3 nranks 7 cudaDev 0 - Init START",
            "nccl.init",
            {"rank": "3", "nranks": "7", "step": "START"},
        ),
        ("gloo: Timed out waiting 1800000ms for recv operation to complete", "gloo.timeout", {"op": "recv"}),
        ("Watchdog timeout (self.watchdog_timeout=300)", "watchdog", {"seconds": "300"}),
    ],
)
def test_lines_that_name_somebody(line: str, kind: str, fields: dict[str, str]) -> None:
    (message,) = messages(read(line), kind)
    assert fields.items() <= message.fields.items()


def test_old_watchdog_without_number_or_prefix() -> None:
    line = (
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, TensorShape=[2, 7], "
        "Timeout(ms)=1800000) ran for 1802710 milliseconds before timing out."
    )
    capture = read(line)
    (process,) = capture.snapshots[0].processes
    (entry,) = process.flight
    assert (process.rank_hint, entry.op, entry.sequence, entry.input_sizes) == (
        "rank 3",
        "ALLREDUCE",
        None,
        "2, 7",
    )


# -- what could not be read -------------------------------------------------------------------------------------


def test_unread_lines_are_named() -> None:
    capture = read(dump_of(3) + "\nprose one\nprose two\n\nThread 12 (Thread 0x7f (LWP\n")
    gaps = {gap.subject: gap.reason for gap in capture.gaps}
    assert gaps["ticket, lines 11-12"].startswith("prose")
    assert "could not be read" in gaps["ticket, lines 14"]


def test_gaps_are_silent_when_everything_was_read() -> None:
    assert read(DUMP).gaps == ()


def test_nothing_readable_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("It hangs. Please help.\n")
    with pytest.raises(UnreadableInput) as caught:
        read_files([str(path)], knowledge())
    assert "note.txt" in caught.value.message and "list formats" in (caught.value.hint or "")


@pytest.mark.parametrize("path", ["no/such/file", "/dev/null"])
def test_files_that_cannot_be_read_are_errors(path: str) -> None:
    with pytest.raises(UnreadableInput) as caught:
        read_files([path])
    assert path in caught.value.message


def test_one_unreadable_file_of_two_is_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "dump.txt"
    path.write_text(DUMP)
    capture = read_files([str(path), str(tmp_path / "gone.txt")])
    assert len(capture.snapshots[0].processes) == 1
    assert any("gone.txt" in gap.reason for gap in capture.gaps)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "dump.txt"
    path.write_bytes(DUMP.replace("holder", "hölder").encode(encoding))
    (process,) = read_files([str(path)]).snapshots[0].processes
    assert len(process.threads) == 3


def test_gzip_is_unpacked(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "dump.txt.gz"
    path.write_bytes(gzip.compress(DUMP.encode()))
    (process,) = read_files([str(path)]).snapshots[0].processes
    assert process.pid == 27162
