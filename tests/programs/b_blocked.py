"""One thread in each kind of blocking system call, entered raw so that nothing retries an interrupted one.

Argument: an empty folder. The System V semaphore outlives the process; who started it removes it.

Says ``pid call=tid …``; with each spurious return (EINTR) a line ``returned CALL ERRNO`` follows.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
import subprocess
import sys
import threading
import time

import handshake

libc = ctypes.CDLL(None, use_errno=True)
FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
EVERY_BIT = ctypes.c_ulong(0xFFFFFFFF)


def timespec(seconds):
    return ctypes.create_string_buffer(struct.pack("qq", seconds, 0))


folder = sys.argv[1]
left, right = socket.socketpair()
timed_left, timed_right = socket.socketpair()
timed_left.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 3000, 0))
listener = socket.create_server(("127.0.0.1", 0))
talker = socket.create_connection(listener.getsockname())
answerer, _ = listener.accept()
pipe_read, pipe_write = os.pipe()
event = libc.eventfd(0, 0)
semaphores = libc.semget(0, 1, 0o1600)
words = [ctypes.c_int(7) for _ in range(4)]
buffer = ctypes.create_string_buffer(64)
epoll = libc.epoll_create1(0)
libc.epoll_ctl(epoll, 1, pipe_read, struct.pack("<Iq", 1, 0))
libc.epoll_ctl(epoll, 1, event, struct.pack("<Iq", 1, 0))
polled = ctypes.create_string_buffer(struct.pack("ihhihh", pipe_read, 1, 0, event, 1, 0))
selected = ctypes.create_string_buffer((1 << pipe_read).to_bytes(128, "little"))
fifo = os.path.join(folder, "fifo")
os.mkfifo(fifo)
locked = open(os.path.join(folder, "lock"), "w")  # noqa: SIM115 (held for life)
libc.flock(locked.fileno(), 2)
locked_again = open(locked.name, "w")  # noqa: SIM115
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
deadline = struct.pack("qq", int(time.clock_gettime(time.CLOCK_MONOTONIC)) + 3000, 0)
wall_deadline = struct.pack("qq", int(time.time()) + 3000, 0)

full_left, full_right = socket.socketpair()
full_left.setblocking(False)
full_read, full_write = os.pipe()
os.set_blocking(full_write, False)
for write, wide in (
    (full_left.send, full_left.fileno()),
    (lambda data: os.write(full_write, data), full_write),
):
    try:
        while write(b"x" * 4096):
            pass
    except BlockingIOError:
        os.set_blocking(wide, True)
# One connection fills the queue of a listener that accepts nobody; the next one waits for a place.
crowded = socket.create_server(("127.0.0.1", 0), backlog=0)
first = socket.create_connection(crowded.getsockname())
late = socket.socket()
late_address = struct.pack("!HH4s8x", 0, crowded.getsockname()[1], socket.inet_aton("127.0.0.1"))
late_address = struct.pack("=H", socket.AF_INET) + late_address[2:]
# A lock of an open file description (F_OFD_SETLKW), which conflicts within one process as well.
whole_file = struct.pack("hhxxxxqqixxxx", 1, 0, 0, 0, 0)
libc.fcntl(locked.fileno(), 38, whole_file)
waiters = ctypes.create_string_buffer(struct.pack("QQII", 7, ctypes.addressof(words[0]), 2 | 128, 0))
ring = libc.syscall(425, 1, ctypes.create_string_buffer(120))  # io_uring_setup

CALLS = {
    "epoll_wait": lambda: libc.epoll_wait(epoll, buffer, 1, -1),
    "epoll_timed": lambda: libc.epoll_wait(epoll, ctypes.create_string_buffer(12), 1, 3_000_000),
    "poll": lambda: libc.poll(polled, 2, -1),
    "poll_timed": lambda: libc.poll(polled, 2, 3_000_000),
    "select": lambda: libc.select(pipe_read + 1, selected, None, None, None),
    "recv": lambda: libc.recv(left.fileno(), buffer, 1, 0),
    "recv_timed": lambda: libc.recv(timed_left.fileno(), buffer, 1, 0),
    "recv_tcp": lambda: libc.recv(talker.fileno(), buffer, 1, 0),
    "accept": lambda: libc.accept(listener.fileno(), None, None),
    "read": lambda: libc.read(pipe_read, buffer, 1),
    "read_event": lambda: libc.read(event, buffer, 8),
    "semop": lambda: libc.semop(semaphores, struct.pack("Hhh", 0, -1, 0), 1),
    "futex": lambda: libc.syscall(FUTEX, ctypes.byref(words[0]), 128, 7, None, None, 0),
    "futex_shared": lambda: libc.syscall(FUTEX, ctypes.byref(words[1]), 0, 7, None, None, 0),
    "futex_timed": lambda: libc.syscall(FUTEX, ctypes.byref(words[2]), 128, 7, timespec(3000), None, 0),
    "futex_until": lambda: libc.syscall(FUTEX, ctypes.byref(words[3]), 128 | 9, 7, deadline, None, -1),
    "futex_until_wall": lambda: libc.syscall(
        FUTEX, ctypes.byref(words[3]), 128 | 256 | 9, 7, wall_deadline, None, -1
    ),
    "nanosleep": lambda: libc.nanosleep(timespec(3000), None),
    "sleep_until": lambda: libc.clock_nanosleep(1, 1, deadline, None),
    "sigwait": lambda: libc.sigwaitinfo(ctypes.create_string_buffer(128), None),
    "wait4": lambda: libc.waitpid(child.pid, None, 0),
    "waitid": lambda: libc.waitid(1, child.pid, buffer, 4 | 0x01000000),
    "flock": lambda: libc.flock(locked_again.fileno(), 2),
    "open": lambda: libc.open(fifo.encode(), 0),
    "send": lambda: libc.send(full_left.fileno(), buffer, 64, 0),
    "write": lambda: libc.write(full_write, buffer, 64),
    "connect": lambda: libc.connect(late.fileno(), late_address, len(late_address)),
    "fcntl": lambda: libc.fcntl(locked_again.fileno(), 38, whole_file),
    "epoll_pwait2": lambda: libc.syscall(
        441, epoll, ctypes.create_string_buffer(12), 1, timespec(3000), None, 8
    ),
    "futex_waitv": lambda: libc.syscall(449, waiters, 1, 0, None, 0),
    "futex2": lambda: libc.syscall(455, ctypes.byref(words[0]), 7, EVERY_BIT, 2 | 128, None, 0),
}
if ring >= 0:  # some containers forbid it
    CALLS["io_uring"] = lambda: libc.syscall(426, ring, 0, 1, 1, None, 0)
for name, probe in (
    ("epoll_pwait2", lambda: libc.syscall(441, -1, None, 1, None, None, 8)),
    ("futex_waitv", lambda: libc.syscall(449, None, 0, 0, None, 0)),
    ("futex2", lambda: libc.syscall(455, ctypes.byref(words[0]), 8, EVERY_BIT, 2 | 128, None, 0)),
):
    probe()
    if ctypes.get_errno() == errno.ENOSYS:  # younger than this kernel
        del CALLS[name]
tids = {}


def block(name, call):
    tids[name] = threading.get_native_id()
    ready.release()
    while True:
        call()
        handshake.ready("returned", name, errno.errorcode.get(ctypes.get_errno()))


ready = threading.Semaphore(0)
for item in CALLS.items():
    threading.Thread(target=block, args=item, daemon=True).start()
for _ in CALLS:
    ready.acquire()
handshake.ready(
    os.getpid(),
    *(f"{name}={tid}" for name, tid in tids.items()),
    f"fd_pipe={pipe_read}",
    f"fd_event={event}",
    f"child={child.pid}",
    f"port={listener.getsockname()[1]}",
    f"fifo={fifo}",
    f"semaphores={semaphores}",
)
handshake.hold()
