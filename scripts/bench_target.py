"""Targets for scripts/bench: ``bench_target.py LIBRARY FOLDER PROCESSES THREADS FRAMES STATE IMPORT``

A launcher with PROCESSES children of THREADS threads each. All but one of the threads rest in a lock below FRAMES
calls; STATE is what the main thread does: ``idle`` waits, ``busy`` runs Python, ``gil`` sits in C and keeps Python's
lock. Each child maps FOLDER/N for what LIBRARY (bench_target.c) sees. The launcher says "ready" when all are.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import sys
import threading
import time
from typing import NoReturn

SEEN_BYTES = 24
_NATIVE_THREADS = 2
_lock = threading.Lock()


def rest() -> None:
    _lock.acquire()


def descend(levels: int) -> None:
    if levels > 1:
        descend(levels - 1)
    else:
        rest()


def run(state: str) -> NoReturn:
    while True:
        if state == "busy":
            sum(number * number for number in range(1000))
        elif state == "gil":
            ctypes.PyDLL(None).sleep(3600)
        else:
            time.sleep(3600)


def child(library: str, path: str, threads: int, frames: int, state: str, said: int) -> NoReturn:
    with open(path, "r+b") as file:
        seen = mmap.mmap(file.fileno(), SEEN_BYTES)
    if library and ctypes.CDLL(library).watch(ctypes.byref((ctypes.c_char * SEEN_BYTES).from_buffer(seen))):
        raise OSError("no thread could be started")
    threading.stack_size(1 << 20)
    own = threads - 1 - (_NATIVE_THREADS if library else 0)
    for number in range(own):
        threading.Thread(target=descend, args=(frames - 4,), name=f"worker-{number}", daemon=True).start()
    while sum(frame.f_code is rest.__code__ for frame in sys._current_frames().values()) < own:
        time.sleep(0.001)
    os.write(said, b".")
    run(state)


def main() -> None:
    library, folder, processes, threads, frames, state, module = sys.argv[1:]
    _lock.acquire()
    if module:
        importlib.import_module(module)
    heard, said = os.pipe()
    go, start = os.pipe()
    for number in range(int(processes)):
        if os.fork() == 0:
            os.close(start)
            # Until all are there, so that no thread's number lies between those of two processes.
            os.read(go, 1)
            child(library, f"{folder}/{number}", int(threads), int(frames), state, said)
    os.close(start)
    for _ in range(int(processes)):
        os.read(heard, 1)
    print("ready", flush=True)
    os.wait()


if __name__ == "__main__":
    main()
