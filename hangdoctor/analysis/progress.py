"""What moved between the looks: per thread (did it run, did its stack change) and per process (bytes, files, faults).

The strongest class wins and classes are never added up: a thousand context switches are not one byte read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from hangdoctor.analysis.loads import LOAD_RATE_BYTES_S, Pair, files_read_again, load_moves, write_moves
from hangdoctor.case import Movement, ThreadView, Window
from hangdoctor.model import FlightEntry, Process, Stack, Thread
from hangdoctor.report import Progress, ProgressClass

MIB = 1 << 20
CYCLING_SWITCHES_S = 5.0
"""Wake-ups per second from which an unchanged stack is an event loop. An idle SGLang scheduler makes hundreds,
one that waits for a stopped peer one or two (8 in 6 s, measured; a ptrace stop by another tool adds some)."""
BUSY_SHARE = 0.5
"""Share of one core from which an unchanged stack counts as busy."""

MEMORY_GROWS = "memory grows"
PAGES_UNIT = "pages/s"
THRASHING_FAULTS_S = 20.0
"""Pages fetched from storage each second, outside a load, from which memory is short: elsewhere they come once."""
LEAST_STREAM_BYTES_S = 64 * 1024
"""A stream below this rate is keep-alive traffic, not a transfer."""
LEAST_MESSAGES_S = 10.0
LEAST_OUTPUT_BYTES = 4096
"""What a build tool writes between two looks from which it is output, and no line about what it does."""
_RECEIVING = frozenset({"read", "readv", "recvfrom", "recvmsg", "splice"})

RESTING_SHARE = 0.05
"""Share of one core below which a thread rests."""

_ORDER = (ProgressClass.PROOF, ProgressClass.WEAK, ProgressClass.ACTIVITY, ProgressClass.NONE)


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


def same_wait(a: Thread, b: Thread) -> bool | None:
    """For threads without stacks: whether the kernel shows the same call, else the same function, both times."""
    if a.state is None or b.state is None or a.voluntary_switches is None or b.voluntary_switches is None:
        return None  # without counters, the same wait may be a new one
    if a.syscall is not None and b.syscall is not None:
        return (a.syscall.name, a.syscall.args) == (b.syscall.name, b.syscall.args)
    return a.wchan == b.wchan


def _is_torn(thread: Thread) -> bool:
    return thread.stack is not None and thread.stack.is_torn


def compare_views(
    before: ThreadView | None,
    after: ThreadView | None,
    seconds: float,
    ticks_per_s: int,
    *,
    is_dark: bool = False,
) -> Window:
    """What one thread did between two looks ``seconds`` apart. ``is_dark``: its process has no stacks at all."""
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
    switches = _delta(a.voluntary_switches, b.voluntary_switches)
    is_same = same_wait(a, b) if is_dark else same_stack(a.stack, b.stack)
    if is_same is False and (_is_torn(a) or _is_torn(b)):
        # One that no reader can follow to its end (5,000 calls, a file without a name) is no other stack each time.
        is_same = cpu_s == 0 and switches == 0
    return Window(
        seconds=seconds,
        same_stack=is_same,
        cpu_s=cpu_s,
        ready_s=(b.runnable_ns - a.runnable_ns) / 1e9
        if a.runnable_ns is not None and b.runnable_ns is not None
        else None,
        switches=switches,
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


def progress_of(pairs: Sequence[Pair], *, is_loading: bool, is_serving: bool) -> Progress:
    """The strongest movement of one process over its successive looks.

    ``is_loading`` says that its phase reads weights: only there do anonymous reads and page faults count.
    ``is_serving`` says that it is inside a step: only there do messages count.
    """
    if not pairs:
        return Progress(ProgressClass.NONE)
    per_window = [strongest(list(_moves(pair, is_loading, is_serving))) for pair in pairs]
    best = strongest(list(reversed(per_window)))
    if best.kind is not ProgressClass.PROOF:
        return best
    # A burst in an early window that has since ended is not progress now.
    if per_window[-1].kind is ProgressClass.NONE:
        return replace(best, kind=ProgressClass.WEAK)
    # Rates over one short window are noise (read-ahead, caches); the whole time tells.
    whole = Pair(pairs[0].before, pairs[-1].after, sum(pair.seconds for pair in pairs))
    overall = strongest(list(_moves(whole, is_loading, is_serving)))
    return overall if overall.kind is ProgressClass.PROOF and overall.unit == best.unit else best


def _moves(pair: Pair, is_loading: bool, is_serving: bool) -> Iterator[Progress]:
    yield from load_moves(pair)
    yield from write_moves(pair)
    yield from _collective_moves(pair)
    yield from _stream_moves(pair)
    if is_serving:
        yield from _message_moves(pair)
    again = files_read_again(pair)
    for path in sorted(again):
        yield Progress(ProgressClass.ACTIVITY, f"reads {path.rsplit('/', 1)[-1]} over and over")
    if is_loading and not again:
        yield from _anonymous_load_moves(pair)
    yield from _weak_moves(pair)


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


def _message_moves(pair: Pair) -> Iterator[Progress]:
    """Messages between the processes of a server inside a step; in every recorded hang they stood at exactly 0.

    (In start-up they prove nothing: a stuck TCPStore client polls.)
    """
    before, after = pair.before.io, pair.after.io
    if before is None or after is None or None in (before.read_calls, after.read_calls) or not pair.seconds:
        return
    rate = ((after.read_calls or 0) - (before.read_calls or 0)) / pair.seconds
    if rate >= LEAST_MESSAGES_S:
        yield Progress(ProgressClass.PROOF, "exchanges messages", rate, "calls/s")


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
    fetched = _delta(a.major_faults, b.major_faults)
    if fetched and pair.seconds and fetched / pair.seconds >= THRASHING_FAULTS_S:
        what = f"fetched {fetched} pages from storage"
        yield Progress(ProgressClass.WEAK, what, fetched / pair.seconds, PAGES_UNIT)
    growth = _delta(a.rss_bytes, b.rss_bytes)
    if growth is not None and growth >= MIB:
        rate = growth / pair.seconds if pair.seconds else None
        yield Progress(ProgressClass.WEAK, MEMORY_GROWS, rate, "bytes/s")
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
    wrote = sum(_written(old[key], p) for key, p in new.items())
    if wrote >= LEAST_OUTPUT_BYTES:
        return Progress(
            ProgressClass.PROOF,
            f"has {names} write its output",
            wrote / seconds if seconds else None,
            "bytes/s",
        )
    grew = [p for key, p in new.items() if (_delta(_cpu_ticks(old[key]), _cpu_ticks(p)) or 0) > 0]
    if grew:
        busy = ", ".join(sorted({p.comm or "?" for p in grew}))
        return Progress(ProgressClass.WEAK, f"keeps {busy} on the CPU")
    return Progress(ProgressClass.NONE, f"has {names} below it, which does nothing")


def _written(before: Process, after: Process) -> int:
    if before.io is None or after.io is None:
        return 0
    return max(0, after.io.write_chars - before.io.write_chars)


def _steps(processes: Collection[object]) -> str:
    return f"{len(processes)} build step{'s' if len(processes) != 1 else ''}"


def _delta(before: int | None, after: int | None) -> int | None:
    if before is None or after is None:
        return None
    return after - before


def _cpu_ticks(process: Process) -> int | None:
    if process.user_ticks is None or process.system_ticks is None:
        return None
    return process.user_ticks + process.system_ticks
