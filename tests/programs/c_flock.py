"""Holds an exclusive flock on FILE; a child waits for it. A second file is a lock by existing, held open."""

import fcntl
import os
import sys
from pathlib import Path

import handshake

if len(sys.argv) == 3:
    fd = os.open(sys.argv[1], os.O_RDWR)
    handshake.ready("waiter", os.getpid())
    fcntl.flock(fd, fcntl.LOCK_EX)
held = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
fcntl.flock(held, fcntl.LOCK_EX)
baton = os.open(Path(sys.argv[1]).parent / "lock", os.O_CREAT | os.O_EXCL)
handshake.ready("holder", os.getpid())
os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, __file__, sys.argv[1], "wait"])
handshake.hold()
