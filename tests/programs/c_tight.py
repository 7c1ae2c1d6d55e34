"""The main thread spins on a flag that nobody sets; another thread rests."""

import threading

import handshake

threading.Thread(target=handshake.hold, daemon=True).start()
flag = False
handshake.ready("spinning")
while not flag:
    pass
