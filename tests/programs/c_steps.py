"""The main thread rests in `first`, and once it is released in `second`."""

import handshake


def first():
    handshake.hold()


def second():
    handshake.ready("moved on")
    handshake.hold()


handshake.ready("resting")
first()
second()
