"""Holds secrets where servers hold them (command line, environment, log, path, thread name) and waits."""

import ctypes
import os
import sys
import threading

import handshake


def wait_in_a_thread(name):
    """Python's name of the thread is long; the kernel's has 15 bytes."""
    ctypes.CDLL(None).prctl(15, name[:15].encode(), 0, 0, 0)
    handshake.hold()


log_lines, leak = os.environ["E_LOG"], os.environ["E_LEAK"]
folder = os.path.join(os.environ["E_FOLDER"], f"run-{leak}")
os.makedirs(folder)
open_file = open(os.path.join(folder, f"weights-{leak}.bin"), "w+b")  # noqa: SIM115
open_file.write(b"x" * 4096)
open_file.flush()
with open(os.path.join(folder, "server.log"), "w") as log:
    log.write(log_lines)
os.dup2(os.open(os.path.join(folder, "server.log"), os.O_WRONLY | os.O_APPEND), 1)
source = os.path.join(folder, f"model_{leak.replace('-', '_')}.py")
with open(source, "w") as file:
    file.write("def forward(wait):\n    wait()\n")
namespace = {}
exec(compile(open(source).read(), source, "exec"), namespace)  # noqa: SIM115
threading.Thread(target=wait_in_a_thread, args=(f"flush-{leak}",), name=f"flush-{leak}", daemon=True).start()
handshake.ready("held", folder, len(sys.argv))
namespace["forward"](handshake.hold)
