"""A thread that rests DEPTH calls deep."""

import sys
import threading

import handshake

depth = int(sys.argv[1])
sys.setrecursionlimit(depth + 1000)
threading.stack_size(512 << 20)


def descend(levels):
    if levels:
        return descend(levels - 1)
    handshake.ready("deep")
    return threading.Event().wait()


threading.Thread(target=descend, args=(depth,), name="deep").start()
