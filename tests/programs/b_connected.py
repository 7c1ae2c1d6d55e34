"""A server, a client in another process, and an heir that only inherited descriptors.

Says ``server=… client=… heir=… port=… pipe=INODE unsent=N``: the client has sent 1000 bytes that the server does
not read, over TCP, a UNIX stream and a socketpair; the client waits in a read on a pipe that the server writes.
"""

import ctypes
import fcntl
import mmap
import os
import socket
import struct
import sys
from pathlib import Path

import handshake

kind = sys.argv[1]
if kind == "own_net":
    assert ctypes.CDLL(None).unshare(0x40000000) == 0  # CLONE_NEWNET
    with socket.socket() as any_socket:
        # struct ifreq {char name[16]; short flags}, SIOCSIFFLAGS, IFF_UP
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))
folder = sys.argv[2]
if kind == "tcp6":
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
else:
    listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
named = socket.socket(socket.AF_UNIX)
named.bind(os.path.join(folder, "named.sock"))
named.listen()
pair_server, pair_client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
pipe_read, pipe_write = os.pipe()
shared = open(f"/dev/shm/hd_test_{os.getpid()}", "wb+")  # noqa: SIM115 (held for life)
Path(shared.name).unlink()
shared.truncate(8192)
memory = mmap.mmap(shared.fileno(), 8192)

client = os.fork()
if client == 0:
    listener.close()
    named.close()
    pair_server.close()
    os.close(pipe_write)
    talker = socket.create_connection(("127.0.0.1", port))
    talker.sendall(b"x" * 1000)
    unix = socket.socket(socket.AF_UNIX)
    unix.connect(os.path.join(folder, "named.sock"))
    unix.sendall(b"x" * 1000)
    pair_client.send(b"x" * 1000)
    handshake.ready(f"talker={talker.fileno()} unix={unix.fileno()} pair={pair_client.fileno()}")
    os.read(pipe_read, 1)
pair_client.close()
os.close(pipe_read)
answerer, _ = listener.accept()
unix_answerer, _ = named.accept()
heir = os.fork()
if heir == 0:
    memory.close()
    for held in (listener, named, pair_server, unix_answerer):
        held.close()
    os.close(pipe_write)
    handshake.hold()
handshake.ready(
    f"server={os.getpid()} client={client} heir={heir} port={port} pipe={os.fstat(pipe_write).st_ino}",
    f"answerer={answerer.fileno()} listener={listener.fileno()}",
    f"unix_answerer={unix_answerer.fileno()} pair_server={pair_server.fileno()}",
    f"path={folder}/named.sock",
)
handshake.hold()
