"""Holds a file of weights open in the middle: ``b_reader.py FOLDER``. The folder may be a mount of its own."""

import os
import sys

import handshake

path = os.path.join(sys.argv[1], "model-00001-of-00002.safetensors")
with open(path, "wb") as file:
    file.truncate(7 << 20)
weights = os.open(path, os.O_RDONLY)
os.lseek(weights, 3 << 20, os.SEEK_SET)
handshake.ready(os.getpid())
handshake.hold()
