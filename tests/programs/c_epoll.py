"""A thread in epoll_wait(2) without a time limit, past Python's own retry: it says when the call is interrupted."""

import ctypes
import errno
import os
import select
import threading

import handshake

libc = ctypes.CDLL(None, use_errno=True)
watched, _ = os.pipe()
epoll = select.epoll()
epoll.register(watched, select.EPOLLIN)
events = ctypes.create_string_buffer(12 * 4)


def wait():
    handshake.ready("waiting", threading.get_native_id())
    while libc.epoll_wait(epoll.fileno(), events, 4, -1) < 0:
        handshake.ready(errno.errorcode[ctypes.get_errno()])


threading.Thread(target=wait, daemon=True).start()
handshake.hold()
