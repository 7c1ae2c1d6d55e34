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
}
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
