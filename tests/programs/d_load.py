"""A rank that loads weights, or seems to: ``d_load.py WAY``. The other two ranks wait for it in a barrier."""

import io
import mmap
import os
import signal
import socket
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import d_world

MEGABYTE = 1 << 20
SIZE = 768 * MEGABYTE
BLOCKS_A_SECOND = 12
WEIGHTS = "model-00002-of-00003.safetensors"
SMALL = "adapter_model.bin"
SMALL_SIZE = 8 * MEGABYTE
PAGE = 4096


def make_weights(folder):
    """Sparse: real reads, real page cache, no disk."""
    for name, size in ((WEIGHTS, SIZE), (SMALL, SMALL_SIZE)):
        with (folder / name).open("wb") as weights:
            weights.truncate(size)


def storage():
    """A file system with a throttle that the test holds (tests/slow_files.py)."""
    return Path(os.environ["LIVE_STORAGE"])


def throttle():
    time.sleep(1 / BLOCKS_A_SECOND)


def load_mapped(folder):
    """Page in a mapped file, one megabyte after the other."""
    with (folder / WEIGHTS).open("rb") as weights:
        mapped = mmap.mmap(weights.fileno(), 0, access=mmap.ACCESS_READ)
    d_world.placed()
    for start in range(0, SIZE, MEGABYTE):
        zlib.crc32(mapped[start : start + MEGABYTE])
        throttle()


def load_read(folder):
    with (folder / WEIGHTS).open("rb", buffering=0) as weights:
        d_world.placed()
        while block := weights.read(MEGABYTE):
            zlib.crc32(block)
            throttle()


def load_direct(folder):
    """Past the page cache."""
    weights = os.open(folder / WEIGHTS, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, MEGABYTE)
    d_world.placed()
    while os.readv(weights, [buffer]):
        throttle()


def load_pread(folder):
    """Two threads read by offset, so that no file position moves; the main thread waits for them."""
    weights = os.open(folder / WEIGHTS, os.O_RDONLY)

    def read_part(first):
        for start in range(first * MEGABYTE, SIZE, 2 * MEGABYTE):
            os.pread(weights, MEGABYTE, start)
            throttle()

    with ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(read_part, first) for first in range(2)]
        d_world.placed()
        for part in parts:
            part.result()


def load_from_storage(_folder):
    """As fast as a file system gives; it may give nothing."""
    with (storage() / WEIGHTS).open("rb", buffering=0) as weights:
        d_world.placed()
        while weights.read(MEGABYTE):
            pass


def map_from_storage(_folder):
    """The same through page faults."""
    with (storage() / WEIGHTS).open("rb") as weights:
        mapped = mmap.mmap(weights.fileno(), 0, access=mmap.ACCESS_READ)
    d_world.placed()
    for start in range(0, SIZE, PAGE):
        mapped[start]


def load_by_child(folder):
    """A process of its own fetches the weights; the rank asks twice a second whether it is done."""
    fetcher = os.fork()
    if fetcher == 0:
        with (folder / WEIGHTS).open("rb", buffering=0) as weights:
            while weights.read(MEGABYTE):
                throttle()
        os._exit(0)
    d_world.placed()
    while os.waitpid(fetcher, os.WNOHANG) == (0, 0):
        time.sleep(0.5)


def load_short_of_memory(folder):
    """Tables that do not fit: every pass over them takes their pages from storage again."""
    if group := os.environ.get("LIVE_MEMORY_GROUP"):
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    with (folder / WEIGHTS).open("rb") as weights:
        mapped = mmap.mmap(weights.fileno(), 256 * MEGABYTE, access=mmap.ACCESS_READ)
    d_world.placed()
    while True:
        sum_rows(mapped)
        sum_columns(mapped)


def sum_rows(table):
    return sum(table[start] for start in range(0, len(table), PAGE))


def sum_columns(table):
    width = 512 * PAGE
    return sum(table[start] for first in range(0, width, PAGE) for start in range(first, len(table), width))


def start_source(block, pause_s):
    """A process that streams into a pipe; returns its pid and the end to read from."""
    read_end, write_end = os.pipe()
    source = os.fork()
    if source == 0:
        os.close(read_end)
        while True:
            os.write(write_end, block)
            time.sleep(pause_s)
    os.close(write_end)
    return source, read_end


def read_stream(stream):
    received = 0
    is_first = True
    while received < SIZE:
        received += len(os.read(stream, MEGABYTE))
        if is_first:
            d_world.placed()
            is_first = False


def load_stream(_folder):
    """From a pipe that somebody fills slowly."""
    _source, stream = start_source(bytes(MEGABYTE // 16), 0.02)
    read_stream(stream)


def load_stopped_stream(_folder):
    """From a pipe whose other end is stopped."""
    source, stream = start_source(bytes(4096), 0.001)
    os.read(stream, 4096)
    os.kill(source, signal.SIGSTOP)
    os.waitpid(source, os.WUNTRACED)
    os.set_blocking(stream, False)
    try:
        while os.read(stream, MEGABYTE):
            pass
    except BlockingIOError:
        os.set_blocking(stream, True)
    d_world.placed()
    os.read(stream, 4096)


def load_again(folder):
    """A retry loop: reads the first megabytes over and over, because the header never checks."""
    d_world.placed()
    while True:
        with (folder / WEIGHTS).open("rb", buffering=0) as weights:
            header = weights.read(4 * MEGABYTE)
            if header.startswith(b"\x08"):
                return
        time.sleep(0.2)


def load_from_start(folder):
    """A retry loop that is at it all the time: block after block to the end, and once more, for the sum is wrong."""
    is_first = True
    while True:
        total = 0
        with (folder / SMALL).open("rb", buffering=0) as weights:
            while block := weights.read(MEGABYTE // 4):
                total = zlib.crc32(block, total)
                if is_first:
                    d_world.placed()
                    is_first = False
                time.sleep(0.01)
        if total == 1:
            return


def serve_slowly(listener, block, pause_s):
    """A storage server in a process of its own: after the first block ``pause_s`` between blocks."""
    if os.fork() == 0:
        connection, _ = listener.accept()
        while True:
            connection.sendall(block)
            time.sleep(pause_s)


def download(pause_s, block):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serve_slowly(listener, block, pause_s)
        connection = socket.create_connection(listener.getsockname())
    received = len(connection.recv(MEGABYTE))
    d_world.placed()
    while received < SIZE:
        received += len(connection.recv(MEGABYTE))


def load_trickle(_folder):
    """Over TCP, a little at a time."""
    download(0.05, bytes(32768))


def load_wedged(_folder):
    """Over TCP, from a server that has stopped to send."""
    download(3600, b"x")


def save_checkpoint(folder):
    """The other direction: a large file that grows steadily."""
    block = os.urandom(MEGABYTE)
    with (folder / "checkpoint.pt").open("wb", buffering=0) as checkpoint:
        d_world.placed()
        for _ in range(400):
            checkpoint.write(block)
            throttle()


class SlowDisk(io.FileIO):
    """A file whose every large write takes its time."""

    def write(self, data):
        if len(data) > PAGE:
            throttle()
        return super().write(data)


def save_with_torch(folder):
    """Two gigabytes of parameters."""
    import torch

    state = {f"layers.{number}.weight": torch.zeros(MEGABYTE // 4) for number in range(2000)}
    with SlowDisk(folder / "checkpoint.pt", "wb") as checkpoint:
        d_world.placed()
        torch.save(state, checkpoint)


WAYS = {
    "mmap": load_mapped,
    "read": load_read,
    "direct": load_direct,
    "pread": load_pread,
    "storage": load_from_storage,
    "storage-mapped": map_from_storage,
    "by-child": load_by_child,
    "short-of-memory": load_short_of_memory,
    "stream": load_stream,
    "stopped-stream": load_stopped_stream,
    "again": load_again,
    "from-start": load_from_start,
    "trickle": load_trickle,
    "wedged": load_wedged,
    "save": save_checkpoint,
    "save-torch": save_with_torch,
}

d_world.run(WAYS[sys.argv[1]], prepare=make_weights)
