"""Threads that burn CPU: two that only wait for a flag (C, Python), and some that work. Says ``name=tid …``."""

import ctypes
import hashlib
import os
import sys
import threading

import handshake

library = ctypes.CDLL(sys.argv[1])
flag = threading.Event()
tids = {}


def start(name, target, *args):
    noted = threading.Event()

    def run():
        tids[name] = threading.get_native_id()
        noted.set()
        target(*args)

    threading.Thread(target=run, daemon=True).start()
    noted.wait()


def hash_for_ever():
    data = os.urandom(1 << 20)
    while True:
        data = hashlib.sha256(data).digest() * (1 << 15)


def spin_in_python():
    while not flag.is_set():
        pass


TARGETS = {
    "spin_c": library.spin,
    "work_c": library.work,
    "hash": hash_for_ever,
    "spin_python": spin_in_python,
    "idle": flag.wait,
}
for name in sys.argv[2:]:
    start(name, TARGETS[name])
handshake.ready(*(f"{name}={tid}" for name, tid in tids.items()))
handshake.hold()
