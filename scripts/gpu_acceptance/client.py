"""Requests to a server: ``client.py request PORT`` or ``client.py load PORT FILE`` (eight streams, until killed)."""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

STREAMS = 8
TOKENS = 512


def generate(port: str, tokens: int, timeout_s: float) -> int:
    body = {
        "text": "tell me",
        "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0},
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return int(json.load(answer)["meta_info"]["completion_tokens"])


def generated(port: str, tokens: int) -> Iterator[int]:
    """How many tokens each piece of one streamed answer brings: what a rate over seconds has to be made of."""
    body = {
        "text": "tell me",
        "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0},
        "stream": True,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    had = 0
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                count = int(json.loads(line[6:])["meta_info"]["completion_tokens"])
                yield count - had
                had = count


def stream(port: str, path: str, lock: threading.Lock) -> None:
    while True:
        for tokens in generated(port, TOKENS):
            with lock, open(path, "a") as counts:
                counts.write(f"{time.monotonic():.4f} {tokens}\n")


def main() -> None:
    word, port, *rest = sys.argv[1:]
    if word == "request":
        try:
            generate(port, 200, 600)
        except OSError:  # a hung server hangs up one day; that is the point
            return
        return
    lock = threading.Lock()
    streams = [threading.Thread(target=stream, args=(port, rest[0], lock)) for _ in range(STREAMS)]
    for one in streams:
        one.start()


if __name__ == "__main__":
    main()
