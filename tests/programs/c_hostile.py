"""Hostile names everywhere: argv, comm and open file hold brackets, escapes, newlines and bytes that are no UTF-8."""

import ctypes
import os
import sys
import threading
from pathlib import Path

import handshake

if len(sys.argv) == 1:
    file = os.fsencode(__file__)
    os.execv(sys.executable, [os.fsencode(sys.executable), file, b"\xff\xfe [red]\x1b[31m\n", b"", b"--last"])
ctypes.CDLL(None).prctl(15, b"a) R 1 (\xff\n\x1b", 0, 0, 0)
path = os.fsdecode(b"/tmp/hangdoctor-\xff\n[x]-%d" % os.getpid())
fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
Path(path).unlink()
threading.Thread(target=threading.Event().wait, name="[/bold]\x1b[2J", daemon=True).start()
handshake.ready("hostile")
handshake.hold()
