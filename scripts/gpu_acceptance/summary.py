"""What came back, as tables: ``summary.py ARCHIVE…``; what each look cost is read in its bundle.

``FOLDER/capture*.hang`` of every scenario is then kept with ``scripts/record_bundle.py`` under a name of its own.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

from look import REPOSITORY

sys.path.insert(0, str(REPOSITORY))

from hangdoctor import bundle


def describe(path: Path) -> str:
    """Seconds of each look, how many processes and threads it found, and what read the stacks."""
    snapshots = bundle.read(str(path)).snapshots
    took = "/".join("?" if one.duration_s is None else f"{one.duration_s:.2f}" for one in snapshots)
    last = snapshots[-1].processes
    threads = [thread for process in last for thread in process.threads]
    methods = Counter(thread.stack.method.value for thread in threads if thread.stack is not None)
    answers = sum(len(one.ras) for one in snapshots)
    told = ", ".join(f"{count} by {method}" for method, count in methods.most_common())
    ras = f", {answers} answers of RAS" if answers else ""
    return f"{took} s | {len(last)} processes, {len(threads)} threads; stacks: {told}{ras}"


def rows(folder: Path) -> list[str]:
    """One row for each attach of each scenario of a life."""
    table = []
    for found in sorted(folder.glob("*/*/result.json")):
        result = json.loads(found.read_text())
        mark = "right" if result["is_right"] else "WRONG: " + "; ".join(result["problems"])
        wall = "" if result["attach_s"] is None else f"{result['attach_s']:.1f} s"
        name = f"{result['life']}/{result['scenario']}"
        captures = sorted(found.parent.glob("capture*.hang"))
        if not captures:
            table.append(f"| {name} | {result['verdict']} | {mark} | {wall} | | |")
        for capture in captures:
            suffix = capture.stem.removeprefix("capture")
            table.append(f"| {name}{suffix} | {result['verdict']} | {mark} | {wall} | {describe(capture)} |")
        if result["throughput"]:
            table += [f"|   {key} | {value} | | | | |" for key, value in result["throughput"].items()]
    return table


def main() -> None:
    print("| scenario | verdict | | attach | looks | seen |\n|---|---|---|---:|---|---|")
    for archive in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as name, tarfile.open(archive) as packed:
            packed.extractall(name, filter="data")
            print(*rows(Path(name)), sep="\n")


if __name__ == "__main__":
    main()
