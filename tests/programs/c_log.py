"""Writes LINES numbered lines and a progress bar that rewrites itself, then waits."""

import sys

import handshake

for number in range(int(sys.argv[1])):
    print(f"line {number}")
print("\rloading 1/3\rloading 2/3", end="", flush=True)
handshake.ready("said")
handshake.hold()
