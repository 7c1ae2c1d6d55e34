"""COUNT threads that never rest, in tiny calls: the worst case for reading stacks without stopping them."""

import sys
import threading

import handshake


def leaf(number):
    return number + 1


def branch(number):
    return leaf(leaf(number)) + leaf(number)


def spin():
    number = 0
    while True:
        number = branch(number) & 0xFF


for _ in range(int(sys.argv[1])):
    threading.Thread(target=spin, daemon=True).start()
handshake.ready("spinning")
handshake.hold()
