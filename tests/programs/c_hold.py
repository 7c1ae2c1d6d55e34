"""Waits in read(2) on a pipe: the simplest stuck process."""

import os

import handshake

handshake.ready("held", os.getpid())
handshake.hold()
