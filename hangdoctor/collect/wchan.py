"""What the kernel function a thread sleeps in (``/proc/PID/task/TID/wchan``) says about the wait.

A hint only: the system call is the primary evidence. But wchan is all there is for a thread blocked outside
a call (page fault), in an ioctl, or in a process we may not attach to.
"""

from __future__ import annotations

import re
from functools import lru_cache

_SUFFIX = re.compile(r"\.(?:constprop|isra|part|cold)\.?\d*")

# Names seen on 6.18; those of other kernels from 4.18 on come from their sources and from bug reports. The
# first match wins, so the special stands before the general. A trailing * matches any rest. Leading underscores
# and the compiler's suffixes are not compared.
_MEANINGS: tuple[tuple[str, str], ...] = (
    ("a priority-inheriting lock", "rt_mutex_schedule rt_mutex_slowlock* rt_mutex_wait_proxy_lock"),
    ("a lock or condition (futex)", "futex_*"),
    ("events (epoll)", "do_epoll_wait ep_poll"),
    ("events (poll or select)", "poll_schedule_timeout do_poll do_select do_sys_poll"),
    ("io_uring completions", "io_cqring_wait* io_uring_* io_wqe_worker io_wq_worker io_sq_thread"),
    ("asynchronous I/O (aio)", "read_events do_io_getevents wait_for_kiocb"),
    ("data from a socket", "wait_woken sk_wait_data tcp_data_wait inet_csk_wait_data"),
    ("data from a socket", "skb_wait_for_more_packets unix_stream_read_generic unix_stream_data_wait"),
    ("room in a socket's send buffer", "sk_stream_wait_memory sock_alloc_send_pskb unix_wait_for_peer"),
    ("an incoming connection", "inet_csk_accept inet_csk_wait_for_connect"),
    ("a connection to be accepted", "inet_wait_for_connect inet_stream_connect* sk_stream_wait_connect"),
    ("a pipe or FIFO", "anon_pipe_* pipe_* wait_for_partner fifo_open"),
    ("an eventfd", "eventfd_* do_wait_intr_irq do_wait_intr"),
    ("a timer descriptor", "timerfd_read*"),
    ("a sleep to end", "hrtimer_nanosleep do_nanosleep common_nsleep* schedule_hrtimeout_range*"),
    ("a child process", "do_wait kernel_wait4 kernel_waitid do_wait_thread"),
    ("a child it started with vfork", "kernel_clone do_fork wait_for_vfork_done"),
    ("a file lock", "locks_lock_inode_wait posix_lock_inode_wait flock_lock_inode_wait fcntl_setlk"),
    ("a System V semaphore", "do_semtimedop do_semtimedop_*"),
    ("a System V or POSIX message", "do_msgrcv do_msgsnd wq_sleep"),
    ("a signal", "do_sys_pause sys_pause sigsuspend do_sigtimedwait do_rt_sigtimedwait"),
    ("a debugger (stopped)", "ptrace_stop ptrace_do_notify"),
    ("SIGCONT (stopped)", "do_signal_stop"),
    ("a FUSE request to answer", "fuse_dev_do_read fuse_dev_read"),
    ("a FUSE file system", "request_wait_answer fuse_*"),
    ("NFS", "rpc_* nfs_* nfs3_* nfs4_* xprt_*"),
    ("CIFS/SMB", "cifs_* smb2_* wait_for_response"),
    ("CephFS", "ceph_*"),
    ("Lustre", "ll_* ptlrpc_* cl_* osc_* lustre_* obd_*"),
    ("GPFS", "cxi* mmfs* gpfs*"),
    ("9p (a virtual machine's shared folder)", "p9_* v9fs_*"),
    ("the NVIDIA unified-memory driver", "uvm_*"),
    ("the NVIDIA driver", "nvidia_* rm_* os_acquire_* kgspinitrm* nv_* nvkms_*"),
    ("the AMD GPU driver", "amdgpu_* kfd_* svm_range_* dma_fence_* ttm_*"),
    ("InfiniBand verbs", "ib_* rdma_* uverbs_* mlx5_*"),
    ("a data page from disk or network", "folio_wait_bit* wait_on_page_bit* filemap_* do_read_cache*"),
    ("a data page from disk or network", "lock_page* folio_lock* read_swap_cache* swap_*"),
    ("a disk", "io_schedule* blk_* wait_on_buffer* submit_bio_wait blkdev_* bit_wait_io"),
    ("a file system", "jbd2_* start_this_handle xfs_* btrfs_* ext4_* overlay_* ovl_*"),
    ("room for dirty pages", "balance_dirty_pages* wb_wait_for_completion"),
    ("memory to be freed", "throttle_direct_reclaim try_to_free_* shrink_* mem_cgroup_handle_over_high"),
    ("a page to move between NUMA nodes", "migration_entry_wait*"),
    ("a userfaultfd handler", "handle_userfault"),
    ("a lock in the kernel (often the address space's)", "rwsem_* down_read* down_write* mutex_*"),
    ("its threads to end", "do_exit exit_mm do_coredump coredump_* zap_pid_ns_processes"),
    ("a frozen control group", "refrigerator do_freezer_trap cgroup_freeze*"),
)


_STARTS_OF_DEVICES = (
    *("a FUSE file", "NFS", "CIFS", "CephFS", "Lustre", "GPFS", "9p", "the NVIDIA", "the AMD", "InfiniBand"),
    *(
        "a data page",
        "a disk",
        "a file system",
        "room for dirty",
        "memory to be freed",
        "a lock in the kernel",
    ),
)
_BEHIND = frozenset(phrase for phrase, _ in _MEANINGS if phrase.startswith(_STARTS_OF_DEVICES))
"""What stands behind a call on a file or a device, and not at the other end of it."""


def name_device(wchan: str | None) -> str | None:
    """The file system, device or kernel resource that a call on a file sleeps in; ``None`` for any other wait."""
    phrase = describe_wchan(wchan)
    return phrase if phrase in _BEHIND else None


@lru_cache(maxsize=256)  # the threads of a server sleep in a dozen functions; 2 us for each thread otherwise
def describe_wchan(wchan: str | None) -> str | None:
    """What a thread in this kernel function waits for, as a noun phrase; ``None`` when not known.

    ``0`` means running *or* not permitted, so it says nothing.
    """
    if not wchan or wchan == "0":
        return None
    name = _SUFFIX.sub("", wchan).lstrip("_").lower()
    for phrase, patterns in _MEANINGS:
        for pattern in patterns.split():
            if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
                return phrase
    return None
