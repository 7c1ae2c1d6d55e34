"""A job of several processes, started under the name given as TOP (``torchrun``, ``my_engine.py`` …).

    top ─ sh -c ─ rank-0
        └ core ─ rank-1 ─ sleep (in a process group of its own, as ninja starts its commands)
               └ rank-2

``top`` is this file under another name; core and ranks run under the titles of vLLM's processes. Every process
says ``<name> <pid> [<child pid>]`` and waits.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import handshake

TITLES = {
    "core": "VLLM::EngineCore",
    "rank-0": "VLLM::Worker_TP0",
    "rank-1": "VLLM::Worker_TP1",
    "rank-2": "helper",
}


# Under a title as argv[0] the interpreter does not find itself.
PYTHON = os.environ.setdefault("FAMILY_PYTHON", sys.executable)


def start(name, *, through_shell=False):
    file = str(Path(__file__).resolve())
    if through_shell:
        script = f'exec -a "{TITLES[name]}" {PYTHON} {file} {name} & wait'
        return subprocess.Popen(["bash", "-c", script], close_fds=False)
    return subprocess.Popen([TITLES[name], file, name], executable=PYTHON, close_fds=False)


name = sys.argv[1] if len(sys.argv) > 1 else "top"
child = ""
if name == "top":
    start("rank-0", through_shell=True)
    start("core")
elif name == "core":
    start("rank-1")
    start("rank-2")
elif name == "rank-1":
    child = subprocess.Popen(["sleep", "1000"], preexec_fn=os.setpgrp).pid
    threading.Thread(target=handshake.hold, daemon=True).start()
handshake.ready(name, os.getpid(), child)
handshake.hold()
