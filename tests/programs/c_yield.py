"""On CPU number ARGV[1] a thread spins in sched_yield, as a rank does that waits for its peer, and another rests."""

import os
import sys
import threading

import handshake


def spin():
    while True:
        os.sched_yield()


os.sched_setaffinity(0, {int(sys.argv[1])})
threading.Thread(target=spin, daemon=True).start()
handshake.ready("spinning")
handshake.hold()
