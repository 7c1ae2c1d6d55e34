"""Two RAS queries, three seconds apart: the raw answers and what hangdoctor reads in them: ``ras_raw.py FOLDER``."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

from hangdoctor.analysis.ras import read_ras
from hangdoctor.collect.ras_answers import NotAnAnswer, read_json, read_text


def ask(form: str) -> tuple[str, float]:
    """The raw answer as ``json`` or ``text``, and how long it took."""
    started = time.monotonic()
    with socket.create_connection(("localhost", 28028), timeout=15) as connection:
        status = "STATUS" if form == "json" else "VERBOSE STATUS"
        connection.sendall(f"CLIENT PROTOCOL 2\nTIMEOUT 5\nSET FORMAT {form}\n{status}\n".encode())
        blocks = []
        while block := connection.recv(65536):
            blocks.append(block)
    return b"".join(blocks).decode(errors="replace"), time.monotonic() - started


def main() -> None:
    folder = Path(sys.argv[1])
    answers = []
    for number, form in enumerate(("json", "json", "text")):
        if number == 1:
            time.sleep(3)
        raw, took = ask(form)
        (folder / f"ras{number}.{form}").write_text(raw)
        body = raw.split("\n", 3)[-1]  # behind the greeting and two OKs
        try:
            read = read_json if form == "json" else read_text
            answer = read(body, address="localhost:28028", is_partial=False, took_s=took)
        except NotAnAnswer as why:
            print(f"{form}: {why}")
            continue
        print(f"{form}: {took:.3f} s, NCCL {answer.nccl_version}, {len(answer.communicators)} communicators")
        if form == "json":
            answers.append(answer)
    for finding in read_ras(answers):
        print(finding)


if __name__ == "__main__":
    main()
