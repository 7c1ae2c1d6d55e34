"""How long one read of each rank's Flight Recorder takes, first and again: ``read_times.py ROOT-PID``."""

from __future__ import annotations

import sys
import time

from hangdoctor.collect.flight import read_flight
from hangdoctor.collect.procfs import descend, read_table
from hangdoctor.model import Gap


def main() -> None:
    table = read_table()
    for pid in descend(table, [int(sys.argv[1])]):
        took = []
        for _ in range(3):
            started = time.monotonic()
            found = read_flight(pid)
            took.append(f"{(time.monotonic() - started) * 1000:.1f}")
        if found is not None:
            words = found.reason if isinstance(found, Gap) else f"{len(found)} entries"
            print(f"flight recorder of {pid}: {' '.join(took)} ms, {words}")


if __name__ == "__main__":
    main()
