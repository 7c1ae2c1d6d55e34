"""``b_changes.py FILE``: once it is released it has another environment, another thread, and FILE open and mapped."""

import mmap
import os
import sys
import threading

import handshake

handshake.ready("before")
handshake.hold()
file = open(sys.argv[1], "rb")  # noqa: SIM115 - open for as long as it lives
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
os.environ["NCCL_DEBUG"] = "INFO"
begun = threading.Event()


def rest():
    begun.set()
    threading.Event().wait()


threading.Thread(target=rest, name="later", daemon=True).start()
begun.wait()
handshake.ready("after")
handshake.hold()
