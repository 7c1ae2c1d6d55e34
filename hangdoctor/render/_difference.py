"""How the difference of two looks looks: for a terminal, and as JSON for scripts.

Ranks that did nothing share one line: in a hang of hundreds of ranks those that moved are the news.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from hangdoctor.analysis.differences import Difference, ProcessDifference, ThreadDifference
from hangdoctor.case import Movement
from hangdoctor.render._wording import amount, clean, count, duration, fold_labels

SCHEMA = "hangdoctor.diff/1"
_MOST_THREADS = 8
_MOST_COUNTERS = 8
_WORTH_SAYING_S = 0.05
"""CPU time from which a native thread without a stack is named: a gloo loop's heartbeat takes 10 ms in 12 s."""
_WORDS = {
    "read_chars": "read",
    "write_chars": "written",
    "read_bytes": "read from storage",
    "write_bytes": "written to storage",
    "rss_bytes": "resident memory",
    "minor_faults": "minor faults",
    "major_faults": "major faults",
    "user_ticks": "user CPU ticks",
    "system_ticks": "system CPU ticks",
}
_BYTES = frozenset({"read_chars", "write_chars", "read_bytes", "write_bytes", "rss_bytes"})


def difference_text(difference: Difference, *, detail: bool = False) -> str:
    """Some lines a process that moved, one for all that did not; ``detail``: every thread and counter."""
    seconds = difference.seconds
    lines = [
        "The looks carry no time." if seconds is None else f"{duration(seconds)} between the two looks.",
        "",
    ]
    still = [process for process in difference.processes if not has_moved(process)]
    for process in difference.processes:
        if has_moved(process):
            lines += [*_process_lines(process, detail), ""]
    if still:
        threads = sum(process.still + len(process.threads) for process in still)
        labels = clean(fold_labels((process.label for process in still), limit=70))
        lines += [f"{labels}: nothing moved ({count(threads, 'thread')})", ""]
    if not difference.processes:
        lines += ["No process is in both looks.", ""]
    if difference.log is not None:
        lines += [f"The log says something new: {clean(difference.log)}", ""]
    return "\n".join(lines[:-1]) + "\n"


def difference_json(difference: Difference) -> str:
    """The whole difference, ``hangdoctor.diff/1``; any value may be null."""
    record = {
        "schema": SCHEMA,
        "seconds": difference.seconds,
        "log": difference.log,
        "processes": [_process_record(process) for process in difference.processes],
    }
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


def has_moved(process: ProcessDifference) -> bool:
    """Whether there is anything to say about a process."""
    return bool(
        process.change != "same"
        or process.progress
        or any(map(_is_news, process.threads))
        or process.counters
        or process.phase_before != process.phase_after
    )


def _is_news(thread: ThreadDifference) -> bool:
    """Native pool threads have no stack to compare: those that did not run either are no line worth reading."""
    return (
        thread.movement is not Movement.UNKNOWN
        or thread.before != thread.after
        or (thread.cpu_s is not None and thread.cpu_s >= _WORTH_SAYING_S)
    )


def _process_lines(process: ProcessDifference, detail: bool) -> Iterator[str]:
    change = {"new": ": new at the later look", "gone": ": gone at the later look"}.get(process.change, "")
    yield f"{clean(process.label)} (pid {process.pid}){change}"
    if process.phase_before != process.phase_after and process.change == "same":
        yield f"  phase     {process.phase_before or '?'} → {process.phase_after or '?'}"
    elif process.phase_after or process.phase_before:
        yield f"  phase     {process.phase_after or process.phase_before}"
    if process.progress:
        yield f"  progress  {clean(process.progress)}"
    counters = process.counters if detail else process.counters[:_MOST_COUNTERS]
    if counters:
        more = len(process.counters) - len(counters)
        told = "; ".join(_counter(name, change) for name, change in counters)
        yield f"  counters  {told}" + (f"; {more} more" if more else "")
    news = process.threads if detail else tuple(filter(_is_news, process.threads))
    threads = news if detail else news[:_MOST_THREADS]
    for thread in threads:
        yield f"  thread    {_thread(thread)}"
    if len(threads) < len(news):
        yield f"            {count(len(news) - len(threads), 'more thread')} moved (--detail)"
    still = process.still + len(process.threads) - len(news)
    if still and process.change == "same":
        yield f"            {count(still, 'thread')} stood still"


def _counter(name: str, change: int) -> str:
    sign = "+" if change > 0 else "-"
    if name in _BYTES or name.startswith("position of "):
        return f"{clean(_WORDS.get(name, name))} {sign}{amount(abs(change))}"
    return f"{clean(_WORDS.get(name, name))} {sign}{abs(change):,}"


def _thread(thread: ThreadDifference) -> str:
    where = clean(thread.before or "?")
    if thread.after != thread.before:
        where += f" → {clean(thread.after or '?')}"
    numbers = []
    if thread.cpu_s is not None and thread.cpu_s >= 0.0005:
        numbers.append(f"{duration(thread.cpu_s)} of CPU")
    if thread.switches:
        numbers.append(count(thread.switches, "switch", "switches"))
    tail = f" ({', '.join(numbers)})" if numbers else ""
    return f"{clean(thread.name or str(thread.tid))}, {thread.movement.value}: {where}{tail}"


def _process_record(process: ProcessDifference) -> dict[str, object]:
    return {
        "pid": process.pid,
        "label": process.label,
        "change": process.change,
        "phase": {"before": process.phase_before, "after": process.phase_after},
        "progress": process.progress,
        "counters": dict(process.counters),
        "threads": [
            {
                "tid": thread.tid,
                "name": thread.name,
                "movement": thread.movement.value,
                "before": thread.before,
                "after": thread.after,
                "cpu_s": thread.cpu_s,
                "switches": thread.switches,
            }
            for thread in process.threads
        ],
        "still": process.still,
    }
