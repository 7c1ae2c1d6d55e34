"""The importer of recordings: what other programs printed, as the model's nouns. (Samples are shortened copies.)"""

from __future__ import annotations

from hangdoctor.collect.procfs import parse_stat
from hangdoctor.model import Frame, Method, OpenFile, Process
from tests.import_captures import logs, procfs, pyspy, sockets
from tests.import_captures.assemble import KernelThread, threads_of
from tests.import_captures.procfs import Links

DUMP = """\
Process 13996: VLLM::Worker_TP0
Python v3.11.7 (/usr/local/bin/python3.11)

Thread 13996 (active+gil): "MainThread"
    Operator.__call__ (torch/_ops.py:1279)
    <module> (<string>:1)
Thread 14021 (idle): "tqdm_monitor"
    Condition.wait (threading.py:331)
Thread 0x7FA3 (idle)
"""
FAILED = """\
Process 16356: VLLM::Worker_TP1
Python v3.11.7 (/usr/local/bin/python3.11)

Error: Failed to get stack traces

Caused by:
    0: Failed to suspend process
    1: unexpected waitpid result PtraceEvent(Pid(16356), SIGSTOP, 128) to 16356

Stack backtrace:
   1: py_spy::dump::write_traces
"""
STAT = (
    "16356 (VLLM::Worker (x)) T 16108 15594 15594 0 -1 4194560 444756 77340 6 0 1592 588 121 42 20 0 48 0 164483 "
    "4324610048 426446 " + "0 " * 27 + "0"
)
TCP = """\
State     Recv-Q Send-Q      Local Address:Port        Peer Address:Port Process
LISTEN    0      4096            127.0.0.1:45481            0.0.0.0:*     users:(("VLLM",pid=11,fd=50))
ESTAB     3      5               127.0.0.1:45481          127.0.0.1:51000 users:(("VLLM",pid=11,fd=51))
ESTAB     0      0               127.0.0.1:51000          127.0.0.1:45481 users:(("a",pid=13,fd=7),("b",pid=17,fd=9))
"""
UNIX = """\
Netid State  Recv-Q Send-Q         Local Address:Port   Peer Address:Port  Process
u_str ESTAB  0      0                          * 148684            * 148685 users:(("VLLM",pid=11,fd=87))
u_str ESTAB  2      0                  /tmp/5f7b 148685            * 148684 users:(("vllm",pid=13,fd=3))
"""


def test_a_text_dump_of_py_spy():
    dump = pyspy.from_text(DUMP)
    assert (dump.version, dump.exe, dump.error) == ("3.11.7", "/usr/local/bin/python3.11", None)
    main, monitor, native = dump.threads
    assert (main.tid, main.name, main.owns_gil, main.is_active) == (13996, "MainThread", True, True)
    assert main.stack.frames == (
        Frame("Operator.__call__", "torch/_ops.py", 1279),
        Frame("<module>", "<string>", 1),
    )
    assert (monitor.owns_gil, monitor.is_active) == (False, False)
    assert (native.tid, native.name, native.stack.frames) == (None, None, ())


def test_a_dump_that_failed_gives_the_reason():
    dump = pyspy.from_text(FAILED)
    assert dump.threads == ()
    assert dump.error.startswith("Failed to get stack traces (unexpected waitpid result")


def test_threads_are_joined_and_the_main_one_is_first():
    kernel = [
        KernelThread(
            STAT.replace("16356", "16001", 1), "futex_do_wait", "202 0x1 0x189 0x0 0x0 0x0 0x0 0x1 0x2"
        ),
        KernelThread(
            STAT, "do_signal_stop", "running", schedstat="28004640339 77 7949", voluntary_switches=7
        ),
    ]
    python = pyspy.from_text(DUMP.replace("13996", "16356")).threads
    threads = threads_of(16356, kernel, python, Links(16356, {}), ())
    assert [thread.tid for thread in threads] == [16356, None, 14021, 16001]
    main = threads[0]
    assert (main.state, main.name, main.run_ns, main.voluntary_switches) == (
        "T",
        "MainThread",
        28004640339,
        7,
    )
    assert main.stack.method is Method.PY_SPY_BLOCKING
    assert threads[3].syscall.name == "futex"
    assert threads[3].stack is None


def test_descriptors_are_named_from_what_was_saved_and_not_from_this_machine():
    links = Links(1, {3: "pipe:[17]", 4: "socket:[19]", 5: "anon_inode:[eventfd]", 0: "/dev/null"})
    read = procfs.syscall_of("0 0x3 0x1 0x1000 0x0 0x0 0x0 0x1 0x2", None, links, ())
    assert (read.name, read.fd, read.target, read.is_timed) == ("read", 3, "pipe:[17]", False)
    waits = procfs.syscall_of("61 0x1 0x0 0x0 0x0 0x0 0x0 0x1 0x2", None, links, ())
    assert (waits.name, waits.target, waits.detail) == ("wait4", "pid 1", "waits for child pid 1")
    assert procfs.syscall_of("", None, links, ()) is None


def test_a_pipe_knows_who_else_holds_it():
    both = [Links(11, {3: "pipe:[17]"}), Links(13, {9: "pipe:[17]", 2: "pipe:[23]"})]
    holders = procfs.pipe_holders(both)
    assert procfs.open_files(both[0], holders) == (
        OpenFile(3, "pipe:[17]", "pipe", inode=17, other_end=(13,)),
    )
    assert [file.other_end for file in procfs.open_files(both[1], holders)] == [(), (11,)]


def test_a_lock_file_belongs_to_its_only_opener():
    def process(pid, *paths):
        return Process(pid, files=tuple(OpenFile(fd, path, "file") for fd, path in enumerate(paths)))

    held = procfs.file_locks([process(11, "/c/a.lock", "/c/b/lock"), process(13, "/c/a.lock", "/c/block")])
    assert [(lock.path, lock.holder) for lock in held] == [("/c/b/lock", 11)]


def test_exit_codes_are_those_of_subprocess():
    zombie = STAT.replace(") T ", ") Z ")
    assert procfs.exit_code_of(parse_stat(STAT.encode())) is None
    assert procfs.exit_code_of(parse_stat((zombie[:-1] + "9").encode())) == -9
    assert procfs.exit_code_of(parse_stat((zombie[:-1] + "256").encode())) == 1


def test_sockets_know_their_peers():
    found = sockets.read(TCP, UNIX)
    listener, server, pair = found[11]
    assert (listener.state, listener.remote, listener.send_queue_bytes) == ("LISTEN", None, None)
    assert (server.fd, server.peers, server.receive_queue_bytes, server.send_queue_bytes) == (
        51,
        (13, 17),
        3,
        5,
    )
    assert (pair.family, pair.local, pair.inode, pair.peers) == ("unix", None, 148684, (13,))
    assert [socket.peers for socket in found[13]] == [(11,), (11,)]
    assert found[13][0].local == "/tmp/5f7b"


def test_a_log_is_cut_at_the_moment_of_the_look():
    text = (
        "[2026-11-29 18:04:41 TP0] begin\n"
        "  0%|  | 0/36 [00:00<?, ?it/s]\n"
        "  3%|  | 1/36 [01:04<37:35, 64.43s/it]\n"
        "[2026-11-29 18:05:48 TP0] end\n"
    )
    begin = 1795975481.0  # 18:04:41 UTC
    assert logs.as_of(text, begin - 1) == ""
    assert logs.as_of(text, begin + 63).count("\n") == 2
    assert logs.as_of(text, begin + 64).count("\n") == 3
    assert logs.as_of(text, begin + 67) == text
    assert logs.as_of("INFO 11-29 18:04:41 [x.py:1] a\nINFO 11-29 18:04:43 [x.py:1] b\n", begin + 1).endswith(
        "a\n"
    )


def test_the_tail_shows_what_a_progress_bar_shows():
    assert logs.tail("a\n 1%\r 2%\r 3%\n\n") == ("a", " 3%")
    assert len(logs.tail("x\n" * 1000)) == logs.TAIL_LINES
