"""Processes that wait for each other in one known way: ``b_peers.py SCENARIO``. Each says ``NAME PID``.

The launcher waits for all of them. Names: ``waiter`` waits for ``holder``, or ``a`` and ``b`` for each other;
``bystander`` has a part in neither.
"""

import fcntl
import multiprocessing
import os
import socket
import sys
import time

import handshake

context = multiprocessing.get_context("fork")
children = []
held = []


def run(name, target, *args, keep=(), close=()):
    """A process of its own that says its name before it goes in; ``close`` are descriptors that it must not inherit."""
    pid = os.fork()
    if pid:
        children.append(pid)
        return pid
    for fd in close:
        if fd not in keep:
            os.close(fd)
    handshake.ready(name, os.getpid())
    target(*args)
    os._exit(0)


def stay(*_):
    time.sleep(3600)


def read_pipe(fd):
    os.read(fd, 1)


def pipes(second):
    """``a`` reads what only ``b`` writes; ``b`` does ``second``."""
    a_read, b_write = os.pipe()
    b_read, a_write = os.pipe()
    everything = (a_read, b_write, b_read, a_write)
    run("a", read_pipe, a_read, keep=(a_read, a_write), close=everything)
    run("b", second, b_read, keep=(b_read, b_write), close=everything)
    for fd in everything:
        os.close(fd)
    run("bystander", stay)


def pipe_ring():
    pipes(read_pipe)


def pipe_chain():
    pipes(stay)


def unix(second):
    left, right = socket.socketpair()
    fds = (left.fileno(), right.fileno())
    run("a", left.recv, 1, keep=fds[:1], close=fds)
    run("b", second, 1, keep=fds[1:], close=fds)
    left.close()
    right.close()
    run("bystander", stay)


def unix_chain():
    unix(stay)


def tcp_chain():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    fds = (listener.fileno(), client.fileno(), server.fileno())
    run("a", client.recv, 1, keep=fds[1:2], close=fds)
    run("b", stay, keep=fds[2:], close=fds)
    for each in (listener, client, server):
        each.close()
    run("bystander", stay)


def tcp_deaf():
    """The kernel shakes hands for a listener that accepts nobody."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    fds = (listener.fileno(), client.fileno())
    run("a", client.recv, 1, keep=fds[1:], close=fds)
    run("b", stay, keep=fds[:1], close=fds)
    for each in (listener, client):
        each.close()
    run("bystander", stay)


def mp_pipe():
    """multiprocessing.Pipe, one way: the only writer sleeps."""
    reader, writer = context.Pipe(duplex=False)
    fds = (reader.fileno(), writer.fileno())
    run("a", reader.recv, keep=fds[:1], close=fds)
    run("b", stay, keep=fds[1:], close=fds)
    reader.close()
    writer.close()
    run("bystander", stay)


def mp_lock():
    lock = context.Lock()
    heard, said = os.pipe()

    def hold():
        with lock:
            os.write(said, b".")
            stay()

    def had():
        with lock:
            pass
        os.write(said, b".")
        stay()

    run("bystander", had)
    os.read(heard, 1)
    run("holder", hold)
    os.read(heard, 1)
    run("waiter", lock.acquire)


def mp_queue():
    """Two consumers of an empty queue: the first reads the pipe under the queue's lock, the second wants that lock."""
    queue = context.Queue()
    run("holder", queue.get)
    while queue._rlock.acquire(False):
        queue._rlock.release()
        time.sleep(0.001)
    run("waiter", queue.get)
    run("bystander", stay)


def mp_queue_full():
    """Nobody takes anything out of a queue with one place."""
    queue = context.Queue(maxsize=1)
    queue.put("first")
    run("waiter", queue.put, "second")
    run("bystander", stay)


def zmq_pair(address, answer):
    import zmq

    heard, said = os.pipe()

    def serve():
        server = zmq.Context().socket(zmq.REP)
        server.bind(address)
        os.write(said, b".")
        server.recv()
        os.write(said, b".")
        answer(server)

    def ask():
        client = zmq.Context().socket(zmq.REQ)
        client.connect(address)
        client.send(b"?")
        client.recv()

    run("holder", serve)
    os.read(heard, 1)
    run("waiter", ask)
    os.read(heard, 1)
    run("bystander", stay)


def zmq_ipc():
    zmq_pair(f"ipc://{sys.argv[2]}/socket", stay)


def zmq_tcp():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    zmq_pair(f"tcp://127.0.0.1:{port}", stay)


def zmq_both_listen():
    """The answer was lost: both wait for a message, as an idle pair does."""

    def lose(server):
        import zmq

        other = server.context.socket(zmq.PULL)
        other.bind(f"ipc://{sys.argv[2]}/other")
        other.recv()

    zmq_pair(f"ipc://{sys.argv[2]}/socket", lose)


def lock_file(take):
    path = os.path.join(sys.argv[2], "build.lock")
    heard, said = os.pipe()

    def hold():
        with open(path, "w") as file:
            take(file)
            os.write(said, b".")
            stay()

    def want():
        with open(path, "w") as file:
            take(file)

    run("holder", hold)
    os.read(heard, 1)
    run("waiter", want)
    run("bystander", stay)


def flock():
    lock_file(lambda file: fcntl.flock(file, fcntl.LOCK_EX))


def posix_lock():
    lock_file(lambda file: fcntl.lockf(file, fcntl.LOCK_EX))


def filelock():
    """The library that Hugging Face's hub, Triton and vLLM use; it polls."""
    from filelock import FileLock

    def take(file):
        held.append(FileLock(file.name))  # a lock that is dropped is released
        held[-1].acquire()

    lock_file(take)


def threads_in_a_ring():
    """Two threads of one process, ABBA, while the main thread waits for them."""
    import threading

    locks, gate = [threading.Lock() for _ in range(2)], threading.Barrier(2)

    def both(first, second):
        with locks[first]:
            gate.wait()
            with locks[second]:
                pass

    def work():
        threads = [threading.Thread(target=both, args=(n, 1 - n), name=f"worker-{n}") for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run("a", work)


def threads_in_order():
    """Its twin: the same locks, taken in one order; the first sleeps inside."""
    import threading

    locks = [threading.Lock() for _ in range(2)]

    def both():
        with locks[0], locks[1]:
            stay()

    def work():
        threads = [threading.Thread(target=both, name=f"worker-{n}") for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run("a", work)


globals()[sys.argv[1]]()
for child in children:
    os.waitpid(child, 0)
