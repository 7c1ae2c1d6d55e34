"""The program's half of ``conftest.stuck``: say that the state is reached, and wait to be released."""

import os


def ready(*words):
    """Tell the test, in one line, that this process is where the test wants it."""
    os.write(int(os.environ["HANDSHAKE_SAY_FD"]), (" ".join(map(str, words)) + "\n").encode())


def hold():
    """Block in read(2) until the test releases this process; for ever if it never does."""
    os.read(int(os.environ["HANDSHAKE_HOLD_FD"]), 1)
