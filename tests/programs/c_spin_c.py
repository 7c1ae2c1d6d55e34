"""COUNT threads that never rest, in tiny calls that go through C and back: each C call has frames of its own."""

import sys
import threading

import handshake


def leaf(number):
    return number + 1


def branch(number):
    return max(map(leaf, (number, number)), key=leaf)


def spin():
    number = 0
    while True:
        number = max((number, 1), key=branch) & 0xFF


for _ in range(int(sys.argv[1])):
    threading.Thread(target=spin, daemon=True).start()
handshake.ready("spinning")
handshake.hold()
