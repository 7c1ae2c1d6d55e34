"""Starts one more ``sleep`` each time it is released."""

import subprocess

import handshake

children = []
while True:
    handshake.ready(*(child.pid for child in children))
    handshake.hold()
    children.append(subprocess.Popen(["sleep", "1000"]))
