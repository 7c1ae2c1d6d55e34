"""A small HTTP service of two workers: ``serve`` or ``serve-threaded``; and its client: ``load PORT``."""

import http.server
import multiprocessing
import os
import sys
import threading
import urllib.request

import handshake

CONTEXT = multiprocessing.get_context("fork")
WORKERS = 2


def count_primes(limit):
    return sum(
        all(number % divisor for divisor in range(2, int(number**0.5) + 1)) for number in range(2, limit)
    )


def serve_requests(rank, requests, answers):
    """A worker: idle in its queue until a request comes."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORKERS))
    while True:
        answers.put(count_primes(requests.get()))


def make_handler(requests, answers):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            for queue in requests:
                queue.put(2000)
            body = str([answers.get() for _ in requests]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments):
            pass

    return Handler


def send_load(port):
    """The client: one request after the other."""
    handshake.ready("load", os.getpid())
    while True:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/").read()


def serve(is_threaded):
    """Serve HTTP in the main thread, or in another one while the main thread sits in an event for ever."""
    requests = [CONTEXT.Queue() for _ in range(WORKERS)]
    answers = CONTEXT.Queue()
    for rank in range(WORKERS):
        worker = CONTEXT.Process(target=serve_requests, args=(rank, requests[rank], answers), daemon=True)
        worker.start()
    server = http.server.HTTPServer(("127.0.0.1", 0), make_handler(requests, answers))
    port = server.server_address[1]
    if is_threaded:
        threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
        urllib.request.urlopen(f"http://127.0.0.1:{port}/").read()
    handshake.ready("serving", port)
    if is_threaded:
        threading.Event().wait()
    server.serve_forever()


if sys.argv[1] == "load":
    send_load(sys.argv[2])
else:
    serve(is_threaded=sys.argv[1] == "serve-threaded")
