"""A server that hangs and goes on writing statistics, as vLLM's front end does: ``d_talker.py SCENARIO``.

Says ``ready`` once its story and 200 statistics are written; its main thread then waits for a lock that is never
released while another thread writes more. What it tells is stamped with the time of day, up to 400 s ago.
"""

import sys
import threading
import time

import handshake

STORY = {
    "failed": ("ready", "traceback", "failed"),
    "recovered": ("traceback", "failed", "ready"),
    "works_on": ("ready", "traceback", "failed", "busy"),
    "restarted": ("traceback", "failed", "arguments", "loading"),
    "loading": ("arguments", "loading"),
    "quiet": (),
}
TEXT = {
    "arguments": "(APIServer pid=7) INFO {} [utils.py:1] non-default args: {{'model': 'm'}}",
    "loading": "(Worker_TP1 pid=9) INFO {} [gpu_model_runner.py:1] Starting to load model m...",
    "ready": "(APIServer pid=7) INFO:     Application startup complete.",
    "traceback": "(EngineCore pid=8) ERROR {} [core.py:9] Traceback (most recent call last):\n"
    '(EngineCore pid=8) ERROR {} [core.py:9]   File "/x/core.py", line 9, in step\n'
    "(EngineCore pid=8) ERROR {} [core.py:9] torch.AcceleratorError: CUDA error: an illegal memory access\n"
    "(EngineCore pid=8) ERROR {} [core.py:9] RuntimeError: Worker failed, please check the stack trace "
    "above for the root cause",
    "failed": "(EngineCore pid=8) ERROR {} [core.py:9] EngineCore encountered a fatal error.",
    "busy": "(APIServer pid=7) INFO {} [loggers.py:1] Engine 000: Avg prompt throughput: 1.2 tokens/s, "
    "Avg generation throughput: 97.6 tokens/s, Running: 3 reqs, Waiting: 0 reqs",
    "statistics": "(APIServer pid=7) INFO {} [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
    "Avg generation throughput: 0.0 tokens/s, Running: 3 reqs, Waiting: 0 reqs",
    "access": '(APIServer pid=7) INFO:     10.0.0.{}:4711 - "GET /health HTTP/1.1" 200 OK',
}


def tell(name, ago_s):
    stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(time.time() - ago_s))
    print(TEXT[name].replace("{}", stamp).replace("{{", "{").replace("}}", "}"), flush=True)


def write_statistics():
    while True:
        time.sleep(0.1)
        tell("statistics", 0)


for name in STORY[sys.argv[1]]:
    tell(name, 400)
for number in range(200):
    print(TEXT["access"].format(number), flush=True)
    tell("statistics", 300 - 1.5 * number)
if sys.argv[1:] == ["failed", "at-last"]:
    tell("failed", 0)
else:
    threading.Thread(target=write_statistics, name="statistics", daemon=True).start()
lock = threading.Lock()
lock.acquire()
handshake.ready("told")
lock.acquire()
