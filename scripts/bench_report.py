"""The page that scripts/bench writes: medians, and ratios of runs of the same round."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench_tools import Cost, Fleet

_HEAD = """\
# Benchmarks

Written by `scripts/bench`; each number is the median of some rounds, in which all tools took turns on the same
processes. **L** is what people type today, `for pid in …; do py-spy dump --pid $pid; done`, wall time and CPU time of
it are 1.00. Ratios are medians of the ratios within a round, with the smallest and the largest.

- *CPU* includes everything the tool started; *memory* is the resident size of its largest process.
- *gap*: the longest time between two ticks of a thread in any target that ticks every millisecond, beside *nothing*,
  where nobody looked. On a machine whose cores are all in use a gap is also a wait for a core.
- *EINTR*: system calls in the targets that were interrupted. A tool that stops a process does that.
- *EINTR* of `py-spy dump --nonblocking`, hangdoctor and *nothing* is to be 0.
- *snapshot* is one look of the collector (stacks, everything in `/proc` of every thread, lock owners, parsed), without
  the start of an interpreter, but with that of its readers; *the next snapshot* is one for which these are there: the
  second and third of an attach, and all of a watch. *Stacks alone* is what stack dumpers give, readers started for it.
- *attach* and *collect* are the commands as typed, which look at the launcher, too.
- A third of the CPU time of a look is stacks, which hangdoctor reads from memory itself; the rest is what a stack dump
  does not have: files, sockets, environment, locks, logs.

Sections after the first come from `scripts/bench --append --title …`, what a watched job feels from
`scripts/bench_watch`.
"""


@dataclass(frozen=True, slots=True)
class Table:
    """All runs of each tool on one fleet; the n-th runs of all tools belong together."""

    fleet: Fleet
    costs: Mapping[str, Sequence[Cost]]


def render(
    tables: Sequence[Table], missing: Sequence[str], reference: str, *, title: str, has_ticker: bool
) -> str:
    """Markdown."""
    kernel = ".".join(platform.release().split(".")[:2])
    machine = f"{os.cpu_count()} cores, Linux {kernel}, CPython {platform.python_version()}"
    parts = [_HEAD if not title else "", f"\n## {title or 'Comparison'}\n"]
    parts.append(f"{time.strftime('%d %B %Y')}, {machine}, load {os.getloadavg()[0]:.1f} at the end.\n")
    if not has_ticker:
        parts.append("No C compiler was found: gaps and EINTR were not measured.\n")
    parts += [f"Missing: {what}.\n" for what in missing]
    for table in tables:
        parts.append(f"\n### {table.fleet}\n\n{_rows(table, reference)}")
    return "\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _rows(table: Table, reference: str) -> str:
    lines = [
        "| tool | wall ms | × L | CPU ms | × L | memory MB | written kB | gap ms | EINTR |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    base = table.costs[reference]
    for name, costs in table.costs.items():
        failures = [cost.failure for cost in costs if cost.failure]
        wall, cpu = [cost.wall_s for cost in costs], [cost.cpu_s for cost in costs]
        is_idle = name == "nothing"
        cells = [
            name + (f" ({len(failures)} of {len(costs)} failed: {_short(failures[0])})" if failures else ""),
            _ms(wall),
            "" if is_idle else _ratio(wall, [cost.wall_s for cost in base]),
            "" if is_idle else _ms(cpu),
            "" if is_idle else _ratio(cpu, [cost.cpu_s for cost in base]),
            _number([cost.memory_bytes for cost in costs], 1 << 20),
            _number([cost.output_bytes for cost in costs], 1000),
            _gap(costs),
            str(max(cost.interrupted for cost in costs)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _ms(seconds: Sequence[float]) -> str:
    return f"{1000 * median(seconds):,.0f}"


def _ratio(own: Sequence[float], base: Sequence[float]) -> str:
    ratios = sorted(one / other for one, other in zip(own, base, strict=False))
    spread = f" ({ratios[0]:.2f}–{ratios[-1]:.2f})" if len(ratios) > 1 else ""
    return f"{median(ratios):.2f}{spread}"


def _number(values: Sequence[int | None], unit: int) -> str:
    known = [value / unit for value in values if value is not None]
    return f"{median(known):,.0f}" if known else ""


def _gap(costs: Sequence[Cost]) -> str:
    gaps = sorted(1000 * cost.longest_gap_s for cost in costs if cost.longest_gap_s is not None)
    if not gaps:
        return ""
    return f"{median(gaps):.1f} ({gaps[0]:.1f}–{gaps[-1]:.1f})" if len(gaps) > 1 else f"{gaps[0]:.1f}"


def _short(failure: str) -> str:
    return " ".join(failure.split())[:80].replace("|", "/")
