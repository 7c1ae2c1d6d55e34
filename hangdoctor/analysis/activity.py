"""What one thread is doing at one look: from its state, its frames' meaning and the system call it sits in.

Order of trust: the kernel's state (a stopped thread shows whatever it did last), then what the frames are known
to mean, then the system call. ``wchan`` alone is never used to say that something runs: 0 also means "denied".
"""

from __future__ import annotations

from hangdoctor.knowledge.catalogue import PhaseMatch
from hangdoctor.model import Activity, Process, SpinSample, Syscall, Thread

SPIN_RECURRENCE = 0.4
"""Share of repeated register vectors from which a busy thread counts as spinning. Twelve compute loads stayed
at 0.18 or below, six kinds of spin at 0.41 or above (measured; three slower kinds of spin are missed)."""
SPIN_SAMPLES = 40
"""Enough to believe in a spin: with more samples more of them repeat, never fewer."""
WORK_SAMPLES = 100
"""Enough to believe that nothing repeats."""
WORK_PAGES = 200
WORK_NEW_PAGES = 0.5
"""A thread whose registers point into so many pages, at so many of the later samples into new ones, walks through
memory as work does. Waits in a loop came to 111 pages and 0.18 at most, one that asks 200,000 objects in turn to 271
and 0.34; eight kinds of work to 300 pages and 0.56 at least (measured, collect/spin.py)."""

_YIELDS_TO_KERNEL = frozenset({Activity.RUN, Activity.WAIT_IO})
"""What a phase usually does; the system call says what it does now (a lock inside a forward pass)."""

_BY_CALL = {
    "read": Activity.WAIT_IO,
    "readv": Activity.WAIT_IO,
    "pread64": Activity.WAIT_IO,
    "preadv": Activity.WAIT_IO,
    "write": Activity.WAIT_IO,
    "writev": Activity.WAIT_IO,
    "pwrite64": Activity.WAIT_IO,
    "fsync": Activity.WAIT_IO,
    "fdatasync": Activity.WAIT_IO,
    "openat": Activity.WAIT_IO,
    "statx": Activity.WAIT_IO,
    "newfstatat": Activity.WAIT_IO,
    "getdents64": Activity.WAIT_IO,
    "io_getevents": Activity.WAIT_IO,
    "io_uring_enter": Activity.WAIT_IO,
    "page-fault": Activity.WAIT_IO,
    "recvfrom": Activity.WAIT_PEER,
    "recvmsg": Activity.WAIT_PEER,
    "recvmmsg": Activity.WAIT_PEER,
    "sendto": Activity.WAIT_PEER,
    "sendmsg": Activity.WAIT_PEER,
    "connect": Activity.WAIT_PEER,
    "poll": Activity.WAIT_PEER,
    "ppoll": Activity.WAIT_PEER,
    "select": Activity.WAIT_PEER,
    "pselect6": Activity.WAIT_PEER,
    "accept": Activity.WAIT_WORK,
    "accept4": Activity.WAIT_WORK,
    "epoll_wait": Activity.WAIT_WORK,
    "epoll_pwait": Activity.WAIT_WORK,
    "epoll_pwait2": Activity.WAIT_WORK,
    "rt_sigtimedwait": Activity.WAIT_WORK,
    "rt_sigsuspend": Activity.WAIT_WORK,
    "wait4": Activity.WAIT_CHILD,
    "waitid": Activity.WAIT_CHILD,
    "nanosleep": Activity.TIMED_SLEEP,
    "clock_nanosleep": Activity.TIMED_SLEEP,
    "flock": Activity.WAIT_LOCK,
    "fcntl": Activity.WAIT_LOCK,
    "semop": Activity.WAIT_LOCK,
    "semtimedop": Activity.WAIT_LOCK,
    "running": Activity.RUN,
    "sched_yield": Activity.RUN,
}


def classify(thread: Thread, match: PhaseMatch | None, process: Process) -> Activity:
    """Name the activity of ``thread`` of ``process``, whose stack means ``match``."""
    state = thread.state or (process.state if thread.tid == process.pid else None)
    if state in ("T", "t"):
        return Activity.STOPPED
    if state == "D":
        return Activity.UNINTERRUPTIBLE
    known = meaning(match)
    if known is Activity.WAIT_LOCK and _waits_for_notice(thread):
        return Activity.WAIT_EVENT
    if known is not None and not (known in _YIELDS_TO_KERNEL and thread.syscall is not None):
        return known
    if is_spin(thread.spin):
        return Activity.SPIN
    if thread.syscall is not None:
        return _from_syscall(thread.syscall, thread)
    hinted = _from_wchan(thread.wchan) if thread.stack is None else None
    if hinted is not None:
        return hinted
    if state == "R" or (state is None and thread.is_active_hint):
        return Activity.RUN
    return known or Activity.BLOCKED


def meaning(match: PhaseMatch | None) -> Activity | None:
    """What the frames alone say the thread does; the kind of wait further in beats the phase around it."""
    if match is None:
        return None
    if match.aspect is not None and match.aspect.activity is not None:
        return match.aspect.activity
    return match.phase.activity


def _waits_for_notice(thread: Thread) -> bool:
    """Inside ``Condition.wait`` or ``Event.wait``: there is no lock that anybody could be holding."""
    innermost = next((f for f in thread.stack.frames if not f.is_native), None) if thread.stack else None
    return (
        innermost is not None
        and innermost.function.rpartition(".")[2] in ("wait", "wait_for")
        and innermost.file.endswith(("threading.py", "synchronize.py"))
    )


def is_spin(sample: SpinSample | None) -> bool:
    """Whether sampled registers show a tight loop; silence proves nothing."""
    return sample is not None and sample.samples >= SPIN_SAMPLES and sample.recurrence >= SPIN_RECURRENCE


def walks_through_memory(sample: SpinSample) -> bool | None:
    """Whether sampled registers lead through ever more pages, as those of work do; ``None`` when not known.

    No is no sign of a wait: work on few data keeps to few pages.
    """
    if sample.pages is None or sample.new_pages is None:
        return None
    return sample.pages >= WORK_PAGES and sample.new_pages >= WORK_NEW_PAGES


_GPU_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


def _from_syscall(call: Syscall, thread: Thread) -> Activity:
    if call.name.startswith("futex"):
        return _from_futex(call, thread)
    if call.name in ("read", "readv") and call.target and _is_stream(call.target):
        return Activity.WAIT_PEER
    if call.name == "ioctl" and call.target and call.target.startswith(_GPU_DEVICES):
        return Activity.WAIT_GPU
    return _BY_CALL.get(call.name, Activity.BLOCKED)


_BY_WCHAN = (
    # Kernel functions of 4.18 to 6.18, as in collect.wchan: all there is where system calls may not be seen.
    ("do_wait kernel_wait4 kernel_waitid", Activity.WAIT_CHILD),
    ("hrtimer_nanosleep do_nanosleep common_nsleep", Activity.TIMED_SLEEP),
    ("locks_lock_ posix_lock_ flock_lock_ fcntl_setlk do_semtimedop", Activity.WAIT_LOCK),
    ("wait_woken sk_wait_data sk_stream_wait tcp_ inet_wait_for_connect unix_ skb_wait_", Activity.WAIT_PEER),
    ("anon_pipe_ pipe_ wait_for_partner poll_schedule_timeout do_poll do_select", Activity.WAIT_PEER),
    ("do_epoll_wait ep_poll inet_csk_accept do_sigtimedwait sigsuspend", Activity.WAIT_WORK),
    ("folio_wait_ wait_on_page_ io_schedule request_wait_answer fuse_ nfs rpc_ ceph_", Activity.WAIT_IO),
    ("jbd2_ blk_ xfs_ ext4_ btrfs_ filemap_ p9_ ll_ ptlrpc_ cxi", Activity.WAIT_IO),
    ("uvm_ nvidia_ os_acquire_ rm_ amdgpu_ kfd_", Activity.WAIT_GPU),
)


def _from_wchan(wchan: str | None) -> Activity | None:
    """What the kernel function that a thread sleeps in says of it; a hint, and no more than that."""
    name = (wchan or "").lstrip("_")
    for prefixes, activity in _BY_WCHAN:
        if name.startswith(tuple(prefixes.split())):
            return activity
    return None


_OWNERLESS = ("condition", "semaphore", "mp.Semaphore")


def _from_futex(call: Syscall, thread: Thread) -> Activity:
    lock = thread.lock
    if lock is not None:
        return Activity.WAIT_EVENT if lock.kind in _OWNERLESS else Activity.WAIT_LOCK
    # Without the lock's memory: an untimed futex below a Python frame is a lock being acquired; below native
    # frames only it can be any condition variable.
    if call.is_timed is False and thread.stack is not None and thread.stack.frames:
        return Activity.WAIT_LOCK
    return Activity.BLOCKED


def _is_stream(target: str) -> bool:
    return target.startswith(("pipe:", "socket:", "TCP", "UNIX", "anon_inode"))
