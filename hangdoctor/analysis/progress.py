"""What moved between the looks: per thread (did it run, did its stack change) and per process (bytes, files, faults).

The strongest class wins and classes are never added up: a thousand context switches are not one byte read.
Facts and traps behind each rule: a cached file reads 0 bytes from disk (so positions and ``rchar`` count),
``pread`` moves no position, a mapped file moves neither (so residency and major faults count), a heartbeat
line is not progress but an advancing number is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hangdoctor.case import Movement, ThreadView, Window
from hangdoctor.model import FlightEntry, LogTail, OpenFile, Process, Snapshot, Stack
from hangdoctor.report import Progress, ProgressClass

MIB = 1 << 20
SMALLEST_FILE_BYTES = 64 * 1024
"""A file below this size is configuration, not a load."""
LOAD_RATE_BYTES_S = 256 * 1024
"""Reads below this rate are housekeeping (a watchdog reading /proc), not a load."""
CYCLING_SWITCHES_S = 5.0
"""Wake-ups per second from which an unchanged stack is an event loop. An idle SGLang scheduler makes hundreds,
one that waits for a stopped peer one or two (8 in 6 s, measured; a ptrace stop by another tool adds some)."""
BUSY_SHARE = 0.5
"""Share of one core from which an unchanged stack counts as busy."""

LEAST_STREAM_BYTES_S = 64 * 1024
"""A stream below this rate is keep-alive traffic, not a transfer."""
_RECEIVING = frozenset({"read", "readv", "recvfrom", "recvmsg", "splice"})

RESTING_SHARE = 0.05
"""Share of one core below which a thread rests."""

_ORDER = (ProgressClass.PROOF, ProgressClass.WEAK, ProgressClass.ACTIVITY, ProgressClass.NONE)
_SHARD = re.compile(r"(\d+)-of-(\d+)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_COUNT = re.compile(
    r"(?<![\d./:])(\d+(?:\.\d+)?)\s*(?:/\s*\d|%|of \d)"
    r"|(?:step|iter(?:ation)?|epoch|batch|layer|shard|token|sample|request)s?[ #:=]+(\d+)",
    re.IGNORECASE,
)
_BAR = re.compile(r"[\u2588-\u258f#=>|]{2,}[\s|]*")
_CLOCK = re.compile(r"\d{1,4}[-/:.]\d{1,2}[-/:.]\d{1,4}[ T]?[\d:.,]*")


@dataclass(frozen=True, slots=True)
class Pair:
    """The same process at two successive looks."""

    before: Process
    after: Process
    seconds: float


def strongest(candidates: Sequence[Progress]) -> Progress:
    """The candidate of the strongest class; among equals the first."""
    return min(candidates, key=lambda p: _ORDER.index(p.kind), default=Progress(ProgressClass.NONE))


def same_stack(a: Stack | None, b: Stack | None) -> bool | None:
    """Whether two stacks are the same calls at the same lines; ``None`` when either is missing."""
    if a is None or b is None:
        return None
    if a.is_torn or b.is_torn:  # it changed under the reader's hands
        return False
    if a is b:
        return True
    if len(a.frames) != len(b.frames):
        return False
    return all(
        x is y or (x.function == y.function and x.line == y.line and x.file == y.file)
        for x, y in zip(a.frames, b.frames, strict=True)
    )


def compare_views(
    before: ThreadView | None, after: ThreadView | None, seconds: float, ticks_per_s: int
) -> Window:
    """What one thread did between two looks ``seconds`` apart."""
    if before is None or after is None:
        return Window(seconds, None, None, None, None, None)
    a, b = before.thread, after.thread
    cpu_s: float | None = None
    if a.run_ns is not None and b.run_ns is not None:
        cpu_s = (b.run_ns - a.run_ns) / 1e9
    elif None not in (a.user_ticks, a.system_ticks, b.user_ticks, b.system_ticks):
        ticks = (b.user_ticks or 0) + (b.system_ticks or 0) - (a.user_ticks or 0) - (a.system_ticks or 0)
        cpu_s = ticks / ticks_per_s
    faults = _delta(a.minor_faults, b.minor_faults)
    return Window(
        seconds=seconds,
        same_stack=same_stack(a.stack, b.stack),
        cpu_s=cpu_s,
        ready_s=(b.runnable_ns - a.runnable_ns) / 1e9
        if a.runnable_ns is not None and b.runnable_ns is not None
        else None,
        switches=_delta(a.voluntary_switches, b.voluntary_switches),
        faults=faults,
    )


def movement_of(windows: Sequence[Window]) -> Movement:
    """One word for all windows of a thread."""
    known = [w for w in windows if w.same_stack is not None]
    if not known:
        return Movement.UNKNOWN
    if not all(w.same_stack for w in known):
        return Movement.MOVING
    seconds = sum(w.seconds for w in known)
    ran = sum(w.cpu_s or 0.0 for w in known)
    wanted = ran + sum(w.ready_s or 0.0 for w in known)
    if seconds and wanted / seconds >= BUSY_SHARE and ran / seconds >= RESTING_SHARE:
        return Movement.BUSY
    switches = sum(w.switches or 0 for w in known)
    if seconds and (switches / seconds >= CYCLING_SWITCHES_S or ran / seconds >= RESTING_SHARE):
        return Movement.CYCLING
    return Movement.STILL


def progress_of(pairs: Sequence[Pair], is_loading: bool) -> Progress:
    """The strongest movement of one process over its successive looks.

    ``is_loading`` says that its phase reads weights: only there do anonymous reads and page faults count.
    """
    if not pairs:
        return Progress(ProgressClass.NONE)
    per_window = [strongest(list(_moves(pair, is_loading))) for pair in pairs]
    best = strongest(list(reversed(per_window)))
    if best.kind is not ProgressClass.PROOF:
        return best
    # A burst in an early window that has since ended is not progress now.
    if per_window[-1].kind is ProgressClass.NONE:
        return replace(best, kind=ProgressClass.WEAK)
    # Rates over one short window are noise (read-ahead, caches); the whole time tells.
    whole = Pair(pairs[0].before, pairs[-1].after, sum(pair.seconds for pair in pairs))
    overall = strongest(list(_moves(whole, is_loading)))
    return overall if overall.kind is ProgressClass.PROOF and overall.unit == best.unit else best


def _moves(pair: Pair, is_loading: bool) -> Iterator[Progress]:
    yield from _file_moves(pair)
    yield from _mapping_moves(pair)
    yield from _collective_moves(pair)
    yield from _stream_moves(pair)
    if is_loading:
        yield from _anonymous_load_moves(pair)
    yield from _weak_moves(pair)


def _file_moves(pair: Pair) -> Iterator[Progress]:
    old = {(f.fd, f.target): f for f in pair.before.files}
    for new in pair.after.files:
        if new.kind != "file" or new.fd in (0, 1, 2) or new.position is None:
            continue
        previous = old.get((new.fd, new.target))
        if previous is None or previous.position is None or new.position <= previous.position:
            continue
        rate = (new.position - previous.position) / pair.seconds if pair.seconds else None
        if new.access == "w":
            if not new.target.endswith(".log"):
                what = f"writes {_name(new.target)}"
                yield Progress(ProgressClass.PROOF, what, rate, "bytes/s")
        elif new.size_bytes and new.size_bytes >= SMALLEST_FILE_BYTES:
            yield _load(new, new.position, new.size_bytes, rate)
    yield from _next_shard(pair, old)


def _next_shard(pair: Pair, old: dict[tuple[int, str], OpenFile]) -> Iterator[Progress]:
    """A newly opened numbered shard means that the previous ones are done."""
    known = {target for _, target in old}
    for new in pair.after.files:
        shard = _SHARD.search(new.target)
        if shard and new.target not in known and known:
            number, total = int(shard[1]), int(shard[2])
            if 0 < number <= total:
                yield Progress(
                    ProgressClass.PROOF,
                    f"opened {_name(new.target)} (shard {number} of {total})",
                    percent=100.0 * (number - 1) / total,
                )


def _mapping_moves(pair: Pair) -> Iterator[Progress]:
    old = {m.path: m.resident_bytes for m in pair.before.mapped}
    for new in pair.after.mapped:
        before = old.get(new.path)
        if before is None or new.resident_bytes is None or new.resident_bytes <= before:
            continue
        rate = (new.resident_bytes - before) / pair.seconds if pair.seconds else None
        if new.size_bytes:
            percent = min(100.0, 100.0 * new.resident_bytes / new.size_bytes)
            left = max(0, new.size_bytes - new.resident_bytes)
            yield Progress(
                ProgressClass.PROOF,
                f"has {percent:.0f} % of {_name(new.path)} in memory",
                rate,
                "bytes/s",
                percent,
                left / rate if rate else None,
            )


def _load(file: OpenFile, position: int, size: int, rate: float | None) -> Progress:
    percent = min(100.0, 100.0 * position / size)
    shard = _SHARD.search(file.target)
    where = f", shard {int(shard[1])} of {int(shard[2])}" if shard else ""
    return Progress(
        ProgressClass.PROOF,
        f"has read {percent:.0f} % of {_name(file.target)}{where}",
        rate,
        "bytes/s",
        percent,
        (size - position) / rate if rate else None,
    )


def _collective_moves(pair: Pair) -> Iterator[Progress]:
    before = newest_sequences(pair.before.flight)
    for group, sequence in newest_sequences(pair.after.flight).items():
        if group in before and sequence > before[group]:
            done = sequence - before[group]
            yield Progress(
                ProgressClass.PROOF,
                f"issued {done} more collectives in group {group}",
                done / pair.seconds if pair.seconds else None,
                "collectives/s",
            )


def _stream_moves(pair: Pair) -> Iterator[Progress]:
    """Bytes that arrive at a socket or pipe which a thread of the process stands in a read of."""
    fds = {
        t.syscall.fd
        for p in (pair.before, pair.after)
        for t in p.threads
        if t.syscall is not None and t.syscall.fd is not None and t.syscall.name in _RECEIVING
    }
    old = {s.fd: s.bytes_received for s in pair.before.sockets}
    for socket in pair.after.sockets:
        got = _delta(old.get(socket.fd), socket.bytes_received)
        if socket.fd in fds and got and pair.seconds and got / pair.seconds >= LEAST_STREAM_BYTES_S:
            yield Progress(ProgressClass.PROOF, "receives data", got / pair.seconds, "bytes/s")
    pipes = {f.fd for f in pair.after.files if f.kind == "pipe"} & fds
    if pipes and pair.before.io is not None and pair.after.io is not None and pair.seconds:
        rate = (pair.after.io.read_chars - pair.before.io.read_chars) / pair.seconds
        if rate >= LEAST_STREAM_BYTES_S:
            yield Progress(ProgressClass.PROOF, "receives data through a pipe", rate, "bytes/s")


def newest_sequences(entries: Sequence[FlightEntry]) -> dict[str, int]:
    """The highest sequence number that the Flight Recorder holds for each process group."""
    newest: dict[str, int] = {}
    for entry in entries:
        if entry.sequence is not None:
            newest[entry.group] = max(entry.sequence, newest.get(entry.group, entry.sequence))
    return newest


def _anonymous_load_moves(pair: Pair) -> Iterator[Progress]:
    a, b = pair.before, pair.after
    if a.io is not None and b.io is not None and pair.seconds:
        rate = max(b.io.read_chars - a.io.read_chars, b.io.read_bytes - a.io.read_bytes) / pair.seconds
        if rate >= LOAD_RATE_BYTES_S:
            yield Progress(ProgressClass.PROOF, "reads files", rate, "bytes/s")
    major = _delta(a.major_faults, b.major_faults)
    if major:
        yield Progress(ProgressClass.PROOF, f"faulted in {major} more pages of mapped files from storage")
    minor = _delta(a.minor_faults, b.minor_faults)
    # A stuck loader's counters stood still to the unit over 4 s, a slow one's moved by hundreds (measured).
    if minor is not None and minor >= 64:
        yield Progress(ProgressClass.WEAK, f"touched {minor} more pages")


def _weak_moves(pair: Pair) -> Iterator[Progress]:
    a, b = pair.before, pair.after
    growth = _delta(a.rss_bytes, b.rss_bytes)
    if growth is not None and growth >= MIB:
        rate = growth / pair.seconds if pair.seconds else None
        yield Progress(ProgressClass.WEAK, "memory grows", rate, "bytes/s")
    cpu = _delta(_cpu_ticks(a), _cpu_ticks(b))
    if cpu:
        yield Progress(ProgressClass.ACTIVITY, "uses the CPU")


def describe_progress(progress: Progress) -> str:
    """``has read 41 % of x.safetensors at 1.2 GB/s, about 4 min left``."""
    text = progress.what or "moves"
    if progress.rate and progress.unit == "bytes/s":
        text += f" at {_bytes(progress.rate)}/s"
    if progress.eta_s is not None:
        minutes = progress.eta_s / 60
        text += (
            f", about {minutes:.0f} min left" if minutes >= 1.5 else f", about {progress.eta_s:.0f} s left"
        )
    return text


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def compile_progress(before: Sequence[Process], after: Sequence[Process], seconds: float) -> Progress:
    """What the compilers below one process did between two looks."""
    if not before and not after:
        return Progress(ProgressClass.NONE)
    old = {(p.pid, p.start_ticks): p for p in before}
    new = {(p.pid, p.start_ticks): p for p in after}
    started, ended = new.keys() - old.keys(), old.keys() - new.keys()
    names = ", ".join(sorted({p.comm or "?" for p in after})) or "all"
    if started and ended:
        return Progress(ProgressClass.PROOF, f"finished {_steps(ended)} and began {len(started)}")
    if started or ended:
        verb = "began" if started else "finished"
        return Progress(ProgressClass.PROOF, f"{verb} {_steps(started or ended)}")
    grew = [p for key, p in new.items() if (_delta(_cpu_ticks(old[key]), _cpu_ticks(p)) or 0) > 0]
    if grew:
        busy = ", ".join(sorted({p.comm or "?" for p in grew}))
        return Progress(ProgressClass.WEAK, f"keeps {busy} on the CPU")
    return Progress(ProgressClass.NONE, f"has {names} below it, which does nothing")


def _steps(processes: Collection[object]) -> str:
    return f"{len(processes)} build step{'s' if len(processes) != 1 else ''}"


@dataclass(frozen=True, slots=True)
class LogMove:
    """What the logs did over all looks."""

    kind: ProgressClass
    text: str | None
    """The newest line that is news."""
    pids: tuple[int, ...] = ()
    """Who writes that log."""


def log_progress(snapshots: Sequence[Snapshot]) -> LogMove:
    """Whether the target's logs say something new: a count that advances is proof, repeated text is not."""
    best = LogMove(ProgressClass.NONE, None)
    for earlier, later in pairwise(snapshots):
        old = {log.path: log for log in earlier.logs}
        for log in later.logs:
            previous = old.get(log.path)
            if previous is not None and log.lines != previous.lines:
                move = _compare_logs(previous, log)
                if _ORDER.index(move.kind) <= _ORDER.index(best.kind):
                    best = move
    return best


def _compare_logs(before: LogTail, after: LogTail) -> LogMove:
    seen = set(before.lines)
    fresh = [line for line in after.lines if line not in seen]
    known = {_mask(line): line for line in before.lines}
    for line in reversed(fresh):
        twin = known.get(_mask(line))
        if twin is not None and any(b > a for a, b in zip(_counts(twin), _counts(line), strict=False)):
            return LogMove(ProgressClass.PROOF, line, after.pids)
    unheard = [line for line in fresh if _mask(line) not in known]
    if unheard:
        return LogMove(ProgressClass.WEAK, unheard[-1], after.pids)
    return LogMove(ProgressClass.ACTIVITY, fresh[-1] if fresh else None, after.pids)


def _mask(line: str) -> str:
    return _NUMBER.sub("#", _BAR.sub("", _CLOCK.sub("@", line)))


def _counts(line: str) -> list[float]:
    """The numbers that count something: ``17/100``, ``17 %``, ``step 17``; not times, ports or sizes."""
    return [float(next(part for part in match if part)) for match in _COUNT.findall(_CLOCK.sub("@", line))]


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _delta(before: int | None, after: int | None) -> int | None:
    if before is None or after is None:
        return None
    return after - before


def _cpu_ticks(process: Process) -> int | None:
    if process.user_ticks is None or process.system_ticks is None:
        return None
    return process.user_ticks + process.system_ticks
