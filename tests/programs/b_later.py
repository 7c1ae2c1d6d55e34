"""Locks that change hands: WHAT is `let-go`, `new-threads` or `new-owner`.

Says its pid, waits to be released, lets it happen, and says who holds the lock and who waits for it then.
"""

import os
import sys
import threading
import time
from pathlib import Path

import handshake

lock = threading.Lock()
let_go, released, end, take, held, want, for_ever = (threading.Event() for _ in range(7))


def lets_go():
    with lock:
        let_go.wait()
        lock.release()
        released.set()
        for_ever.wait()
        lock.acquire()


def ends():
    end.wait()


def holds(lock):
    take.wait()
    with lock:
        held.set()
        for_ever.wait()


def waits(lock):
    want.wait()
    with lock:
        pass


def start(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def settle(waiter):
    """Until it is inside the lock: in no Python function further in than its own, and asleep in a futex."""
    want.set()
    while sys._current_frames()[waiter.ident].f_code is not waits.__code__:
        time.sleep(0.001)
    while not Path(f"/proc/self/task/{waiter.native_id}/syscall").read_text().startswith("202 "):
        time.sleep(0.001)


what = sys.argv[1]
if what == "new-owner":
    lock = threading.RLock()
if what == "let-go":
    first, holder, waiter = start(lets_go), start(holds, lock), start(waits, lock)
else:
    first = start(ends)
    if what == "new-owner":
        waiter = start(waits, lock)
handshake.ready(f"pid={os.getpid()}")
handshake.hold()
if what == "let-go":
    let_go.set()
    released.wait()
else:
    end.set()
    first.join()
    while os.path.exists(f"/proc/self/task/{first.native_id}"):
        time.sleep(0.001)
    holder = start(holds, lock)
    if what == "new-threads":
        waiter = start(waits, lock)
take.set()
held.wait()
settle(waiter)
is_reused = first.ident == holder.ident
handshake.ready(f"holder={holder.native_id}", f"waiter={waiter.native_id}", f"reused={is_reused}")
for_ever.wait()
