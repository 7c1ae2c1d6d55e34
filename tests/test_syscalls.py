"""Real threads in real system calls, decoded; and lines of other kernels and machines."""

from __future__ import annotations

import os
import platform
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hangdoctor.collect import syscalls
from hangdoctor.collect.ioctls import describe_ioctl
from hangdoctor.collect.memory import Memory
from hangdoctor.collect.syscall_names import NAMES
from hangdoctor.collect.syscalls import decode_syscall, describe_wchan, list_futexes
from hangdoctor.model import Socket, Syscall
from tests import b_support
from tests.b_support import eventually, read_syscall, read_wchan


@dataclass(frozen=True)
class Blocked:
    pid: int
    said: dict[str, str]

    def decode(self, name: str, **options: bool) -> Syscall:
        """The thread's call, once it sits in one that is not the way to it (ctypes frees and takes the GIL)."""
        if name in YOUNG and name not in self.said:
            pytest.skip(f"this kernel has no {name}, or forbids it")
        tid, wanted = int(self.said[name]), KERNEL_NAMES[name]

        def look() -> Syscall | None:
            line = read_syscall(self.pid, tid)
            seen = decode_syscall(self.pid, line, wchan=read_wchan(self.pid, tid), **options)
            return seen if seen and seen.name in wanted else None

        return eventually(look)


KERNEL_NAMES = {
    "epoll_wait": {"epoll_wait", "epoll_pwait"},
    "epoll_timed": {"epoll_wait", "epoll_pwait"},
    "poll": {"poll", "ppoll"},
    "poll_timed": {"poll", "ppoll"},
    "select": {"select", "pselect6"},
    "recv": {"recvfrom"},
    "recv_timed": {"recvfrom"},
    "recv_tcp": {"recvfrom"},
    "accept": {"accept"},
    "read": {"read"},
    "read_event": {"read"},
    "semop": {"semop", "semtimedop"},
    "futex": {"futex"},
    "futex_shared": {"futex"},
    "futex_timed": {"futex"},
    "futex_until": {"futex"},
    "futex_until_wall": {"futex"},
    "nanosleep": {"nanosleep", "clock_nanosleep"},
    "sleep_until": {"clock_nanosleep"},
    "sigwait": {"rt_sigtimedwait"},
    "wait4": {"wait4"},
    "waitid": {"waitid"},
    "flock": {"flock"},
    "open": {"open", "openat"},
    "send": {"sendto"},
    "write": {"write"},
    "connect": {"connect"},
    "fcntl": {"fcntl"},
    "epoll_pwait2": {"epoll_pwait2"},
    "futex_waitv": {"futex_waitv"},
    "futex2": {"futex_wait"},
    "io_uring": {"io_uring_enter"},
}
YOUNG = ("epoll_pwait2", "futex_waitv", "futex2", "io_uring")
"""Calls that an older kernel lacks, or a container forbids."""


@pytest.fixture(scope="module")
def blocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blocked]:
    with b_support.blocked(tmp_path_factory.mktemp("blocked")) as (program, said):
        yield Blocked(program.pid, said)


@pytest.mark.parametrize(
    "name",
    [
        *("epoll_wait", "poll", "select", "read", "read_event", "write", "futex", "futex_shared"),
        *("futex_waitv", "futex2", "semop", "sigwait", "flock", "fcntl", "io_uring"),
    ],
)
def test_calls_without_a_timeout_say_so(blocked: Blocked, name: str) -> None:
    seen = blocked.decode(name)
    assert seen.is_timed is False and seen.timeout_s is None


@pytest.mark.parametrize(
    "name",
    [
        "epoll_timed",
        "epoll_pwait2",
        "poll_timed",
        "futex_timed",
        "futex_until",
        "futex_until_wall",
        "nanosleep",
        "sleep_until",
    ],
)
def test_timeouts_and_deadlines_are_seconds_left(blocked: Blocked, name: str) -> None:
    seen = blocked.decode(name)
    assert seen.is_timed is True and seen.timeout_s is not None
    assert 2900 < seen.timeout_s <= 3000


@pytest.mark.parametrize("name", ["recv", "recv_timed", "recv_tcp", "accept", "send", "connect"])
def test_a_socket_may_have_a_timeout_that_cannot_be_seen(blocked: Blocked, name: str) -> None:
    assert blocked.decode(name).is_timed is None


@pytest.mark.parametrize("name", ["epoll_wait", "poll"])
def test_sets_list_all_descriptors_and_blame_none(blocked: Blocked, name: str) -> None:
    seen = blocked.decode(name)
    pipe, event = int(blocked.said["fd_pipe"]), int(blocked.said["fd_event"])
    assert seen.fds == (pipe, event)
    assert seen.target is None
    assert seen.detail is not None and f"fd {pipe} pipe:[" in seen.detail and "eventfd" in seen.detail


def test_a_set_of_one_names_its_target(blocked: Blocked) -> None:
    seen = blocked.decode("select")
    assert seen.fd == int(blocked.said["fd_pipe"])
    assert seen.target is not None and seen.target.startswith("pipe:[")


def test_private_and_shared_futexes_are_told_apart(blocked: Blocked) -> None:
    private, shared = blocked.decode("futex").detail, blocked.decode("futex_shared").detail
    assert private is not None and private.startswith("futex wait, private, no timeout, at 0x")
    assert private.endswith("word 0x7")
    assert shared is not None and shared.startswith("futex wait, shared, no timeout, at 0x")


@pytest.mark.parametrize("name", ["wait4", "waitid"])
def test_the_child_waited_for_is_named(blocked: Blocked, name: str) -> None:
    seen = blocked.decode(name)
    assert seen.target == f"pid {blocked.said['child']}"
    assert seen.detail is not None and "python" in seen.detail


def test_file_lock_and_path(blocked: Blocked) -> None:
    lock = blocked.decode("flock")
    assert lock.target is not None and lock.target.endswith("/lock")
    assert lock.fd is not None and lock.is_timed is False
    assert blocked.decode("open").target == blocked.said["fifo"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("send", "sends to fd "),
        ("write", "writes fd "),
        ("fcntl", "waits for a lock on fd "),
        ("io_uring", "waits for 1 io_uring completions, no timeout"),
        ("futex_waitv", "futex wait on any of 1, no timeout"),
        ("futex2", "futex wait, private, no timeout, at 0x"),
        ("semop", "System V semaphore set "),
        ("sigwait", "waits for a signal"),
    ],
)
def test_what_it_does_is_said(blocked: Blocked, name: str, words: str) -> None:
    detail = blocked.decode(name).detail
    assert detail is not None and detail.startswith(words)


def test_a_connect_names_the_address_it_waits_for(blocked: Blocked) -> None:
    seen = blocked.decode("connect")
    assert seen.target is not None and seen.target.startswith("127.0.0.1:")
    assert seen.target != f"127.0.0.1:{blocked.said['port']}"


def test_sockets_are_named_by_their_endpoints(blocked: Blocked) -> None:
    plain = blocked.decode("recv_tcp")
    assert plain.target is not None and plain.target.startswith("socket:[") and plain.fd is not None
    known = Socket(plain.fd, "tcp", "ESTABLISHED", local="127.0.0.1:5", remote="127.0.0.1:6")
    line = read_syscall(blocked.pid, int(blocked.said["recv_tcp"]))
    seen = decode_syscall(blocked.pid, line, sockets=[known])
    assert seen is not None and seen.target == "TCP 127.0.0.1:5 <-> 127.0.0.1:6"


def test_without_memory_times_are_missing_not_wrong(blocked: Blocked) -> None:
    seen = blocked.decode("futex_until", can_read_memory=False)
    assert seen.is_timed is True and seen.timeout_s is None
    assert blocked.decode("open", can_read_memory=False).target is None


@pytest.mark.parametrize("name", ["futex", "futex_timed", "poll", "select", "nanosleep", "open", "connect"])
def test_through_pages_the_same_is_seen(blocked: Blocked, name: str) -> None:
    plain = blocked.decode(name)
    line = read_syscall(blocked.pid, int(blocked.said[name]))
    unread, pages = Memory(blocked.pid), Memory(blocked.pid)
    seen = decode_syscall(blocked.pid, line, pages=pages)
    assert seen == plain
    assert pages.pages
    decode_syscall(blocked.pid, line, can_read_memory=False, pages=unread)
    assert not unread.pages and not unread.bytes_read


def test_the_words_and_limits_of_futexes_are_listed(blocked: Blocked) -> None:
    names = ("futex", "futex_timed", "poll", "nanosleep")
    calls = {name: blocked.decode(name) for name in names}
    lines = [read_syscall(blocked.pid, int(blocked.said[name])) for name in names]
    timed = calls["futex_timed"].args
    wanted = {calls["futex"].args[0], timed[0], timed[3]}
    futex = lines[0].split()[0]
    broken = [f"{futex} x 0 0 0 0 0", futex, "", "running", "-1 0x1 0x2"]
    assert list_futexes([*lines, *broken]) == wanted


def test_every_wait_of_this_kernel_has_words(blocked: Blocked) -> None:
    silent = set()
    for name in KERNEL_NAMES:
        if name in YOUNG and name not in blocked.said:
            continue
        blocked.decode(name)
        wchan = read_wchan(blocked.pid, int(blocked.said[name]))
        if describe_wchan(wchan) is None:
            silent.add((name, wchan))
    assert not silent


@pytest.mark.parametrize(
    ("name", "call"), [("poll_timed", "poll"), ("futex_timed", "futex"), ("nanosleep", "nanosleep")]
)
def test_a_resumed_call_is_decoded_as_what_it_was(name: str, call: str, tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT leave what a debugger's stop leaves. (The test may signal; the product never does.)"""
    with b_support.blocked(tmp_path) as (program, said):
        blocked = Blocked(program.pid, said)
        blocked.decode(name)
        os.kill(program.pid, signal.SIGSTOP)
        eventually(lambda: "T (stopped)" in Path(f"/proc/{program.pid}/status").read_text())
        os.kill(program.pid, signal.SIGCONT)

        def look() -> Syscall | None:
            seen = blocked.decode(name)
            return seen if seen.detail and "resumed" in seen.detail else None

        seen = eventually(look)
    assert call in seen.name
    assert seen.timeout_s is not None and 2900 < seen.timeout_s <= 3000


# --- lines as they come from elsewhere ----------------------------------------------------------------

ZEROS = " 0x0" * 8


@pytest.mark.parametrize(
    "line", ["", "0", "7 0x1", "nonsense 1 2", "Permission denied", "7 0x1 0x2 zz 0x4 0x5 0x6"]
)
def test_what_is_no_line_is_none(line: str) -> None:
    assert decode_syscall(1, line) is None


def test_running_and_outside_a_call() -> None:
    assert decode_syscall(1, "running\n") == Syscall("running")
    seen = decode_syscall(1, "-1 0x7ffd 0x7f00\n", wchan="folio_wait_bit_common")
    assert seen == Syscall("page-fault", detail="waits for a data page from disk or network")


@pytest.mark.parametrize(
    ("wchan", "words"),
    [
        ("rpc_wait_bit_killable", "; in the kernel it waits for NFS"),
        ("request_wait_answer", "; in the kernel it waits for a FUSE file system"),
        ("nvidia_ioctl", "; in the kernel it waits for the NVIDIA driver"),
        ("folio_wait_bit_common", "; in the kernel it waits for a data page from disk or network"),
        ("anon_pipe_read", ""),
        ("wait_woken", ""),
        ("0", ""),
    ],
)
def test_what_stands_behind_a_call_on_a_file_is_told(wchan: str, words: str) -> None:
    number = {name: nr for nr, name in NAMES[platform.machine()].items()}["read"]
    with Path(__file__).open("rb", buffering=0) as file:
        file.seek(100)
        seen = decode_syscall(os.getpid(), f"{number} {file.fileno():#x}{ZEROS}", wchan=wchan)
        plain = f"reads fd {file.fileno()}, at byte 100"
    assert seen is not None and seen.target == __file__
    assert seen.detail == plain + words


def test_an_unknown_number_keeps_its_number() -> None:
    seen = decode_syscall(1, "999" + ZEROS)
    assert seen is not None and seen.name == "syscall 999" and seen.is_timed is None


def test_a_resumed_call_of_unknown_kind_stays_so() -> None:
    number = {name: nr for nr, name in NAMES[platform.machine()].items()}["restart_syscall"]
    seen = decode_syscall(1, f"{number}{ZEROS}", wchan="0")
    assert seen is not None and seen.name == "restart_syscall" and seen.is_timed is None


def test_aarch64_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls.platform, "machine", lambda: "aarch64")
    for number, name in ((98, "futex"), (73, "ppoll"), (22, "epoll_pwait"), (207, "recvfrom"), (63, "read")):
        seen = decode_syscall(os.getpid(), f"{number} 0xffffffffffffffff" + ZEROS, can_read_memory=False)
        assert seen is not None and seen.name == name


AARCH64 = {
    "ioctl": 29,
    "flock": 32,
    "openat": 56,
    "getdents64": 61,
    "write": 64,
    "pread64": 67,
    "preadv": 69,
    "pselect6": 72,
    "fsync": 82,
    "waitid": 95,
    "nanosleep": 101,
    "clock_nanosleep": 115,
    "fcntl": 25,
    "sched_yield": 124,
    "restart_syscall": 128,
    "rt_sigsuspend": 133,
    "rt_sigtimedwait": 137,
    "semtimedop": 192,
    "semop": 193,
    "accept": 202,
    "connect": 203,
    "sendto": 206,
    "sendmsg": 211,
    "recvmsg": 212,
    "accept4": 242,
    "wait4": 260,
    "process_vm_readv": 270,
    "statx": 291,
    "io_uring_enter": 426,
    "openat2": 437,
    "epoll_pwait2": 441,
    "futex_waitv": 449,
    "futex_wait": 455,
}


@pytest.mark.parametrize(("name", "number"), AARCH64.items())
def test_blocking_calls_of_aarch64(name: str, number: int) -> None:
    """Written down by hand from include/uapi/asm-generic/unistd.h."""
    assert NAMES["aarch64"][number] == name


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    ],
)
def test_the_tables_are_those_of_the_kernels_headers(machine: str, header: str) -> None:
    """Every number of this machine's headers; names that only differ by their width are the same call."""
    if not Path(header).exists():
        pytest.skip(f"no {header} here")
    lines = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", Path(header).read_text(), re.M)
    wanted = {int(number): name for name, number in lines if name != "syscalls" and int(number) < 462}
    ours = NAMES[machine]
    wrong = {
        number: (name, ours.get(number))
        for number, name in wanted.items()
        if number in ours and ours[number].rstrip("64").lstrip("_") != name.rstrip("64").lstrip("_")
    }
    assert len(wanted) > 250
    assert set(wrong) <= WIDTHS[machine], wrong
    assert set(wanted) - set(ours) <= UNNAMED[machine]


WIDTHS: dict[str, set[int]] = {"aarch64": {79, 244}, "x86_64": set()}
"""newfstatat is called fstatat there; 244 begins the numbers that each machine has of its own."""
UNNAMED: dict[str, set[int]] = {"aarch64": {244, *range(403, 424)}, "x86_64": set()}
"""From 403 on: times of 64 bits for machines of 32."""


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("futex_wait_queue_me futex_wait_queue futex_do_wait futex_wait_multiple", "futex"),
        ("rt_mutex_schedule __rt_mutex_slowlock rt_mutex_slowlock_block.constprop.0", "priority-inheriting"),
        ("ep_poll do_epoll_wait", "events (epoll)"),
        ("poll_schedule_timeout.constprop.0 poll_schedule_timeout", "poll or select"),
        ("wait_woken sk_wait_data tcp_data_wait", "data from a socket"),
        ("unix_stream_read_generic unix_stream_data_wait", "data from a socket"),
        ("__skb_wait_for_more_packets skb_wait_for_more_packets", "data from a socket"),
        ("sk_stream_wait_memory sock_alloc_send_pskb", "send buffer"),
        ("inet_csk_accept inet_csk_wait_for_connect", "incoming connection"),
        ("inet_wait_for_connect", "to be accepted"),
        ("pipe_wait pipe_read anon_pipe_read pipe_write wait_for_partner", "a pipe"),
        ("eventfd_read do_wait_intr_irq", "an eventfd"),
        ("hrtimer_nanosleep do_nanosleep common_nsleep", "a sleep"),
        ("do_wait kernel_wait4", "a child process"),
        ("locks_lock_inode_wait posix_lock_inode_wait flock_lock_inode_wait", "a file lock"),
        ("__do_semtimedop do_semtimedop", "System V semaphore"),
        ("io_cqring_wait io_cqring_wait_schedule", "io_uring"),
        ("rpc_wait_bit_killable nfs_wait_bit_killable nfs4_wait_bit_killable", "NFS"),
        ("request_wait_answer fuse_file_read_iter", "FUSE"),
        ("ceph_mdsc_do_request ll_file_io_generic ptlrpc_queue_wait cxiWaitEventWait", None),
        (
            "jbd2_log_wait_commit io_schedule_timeout wait_on_page_bit_killable lock_page_maybe_drop_mmap",
            None,
        ),
        (
            "uvm_page_tree_get_ptes_async nvidia_ioctl os_acquire_spinlock kgspInitRm_IMPL rm_init_adapter",
            None,
        ),
    ],
)
def test_wchan_from_4_18_to_6_18(names: str, words: str | None) -> None:
    """Each name that a kernel of these years shows for a wait; ``None``: some words, of several kinds."""
    for name in names.split():
        seen = describe_wchan(name)
        assert seen is not None and (words is None or words in seen), (name, seen)


@pytest.mark.parametrize(
    ("wchan", "words"),
    [
        ("futex_wait_queue_me", "futex"),
        ("__rt_mutex_slowlock.constprop.0", "priority-inheriting"),
        ("ep_poll", "epoll"),
        ("poll_schedule_timeout.constprop.0", "poll or select"),
        ("rpc_wait_bit_killable", "NFS"),
        ("request_wait_answer", "FUSE"),
        ("uvm_page_tree_get_ptes_async", "unified-memory"),
        ("os_acquire_rwlock_write", "NVIDIA"),
        ("_nv042330rm", None),
        ("folio_wait_bit_common", "page"),
        ("ptlrpc_set_wait", "Lustre"),
        ("cxiWaitEventWait", "GPFS"),
        ("0", None),
        ("", None),
        ("some_unknown_function", None),
    ],
)
def test_wchan_in_words(wchan: str, words: str | None) -> None:
    seen = describe_wchan(wchan)
    assert (seen is None) if words is None else (seen is not None and words in seen)


@pytest.mark.parametrize(
    ("target", "request_number", "words"),
    [
        ("/dev/nvidiactl", 0xC020462A, "RM_CONTROL (0xc020462a)"),
        ("/dev/nvidia3", 0xC030462B, "RM_ALLOC (0xc030462b)"),
        ("/dev/nvidia-uvm", 33, "UVM_MAP_EXTERNAL_ALLOCATION (0x21)"),
        ("/dev/nvidia0", 0x5401, "request 0x5401"),
        ("/dev/tty", 0xC020462A, "request 0xc020462a"),
        ("/dev/kfd", 0xC0184B0C, "KFD_WAIT_EVENTS (0xc0184b0c)"),
        ("/dev/kfd", 0xC0184B7F, "request 0xc0184b7f"),
        ("/dev/dri/renderD128", 0xC0206449, "AMDGPU_WAIT_CS (0xc0206449)"),
        ("/dev/dri/renderD129", 0xC02064C3, "SYNCOBJ_WAIT (0xc02064c3)"),
        ("/dev/nvidia0", 0xC0184B0C, "request 0xc0184b0c"),
        ("/home/dri/x", 0xC0206449, "request 0xc0206449"),
        (None, 33, "request 0x21"),
    ],
)
def test_ioctl_names_only_on_their_device(target: str | None, request_number: int, words: str) -> None:
    assert describe_ioctl(target, request_number) == words
