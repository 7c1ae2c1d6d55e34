"""Nothing but log lines: which ranks have come how far in starting up, and what the servers' own heartbeats mean."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from hangdoctor.analysis.findings import Finding, Rule, Situation
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.analysis.identify import parse_rank
from hangdoctor.model import LogMessage, Rank
from hangdoctor.report import Cause, Confidence, Kind

_STEPS = ("begin", "progress", "end")


@dataclass(frozen=True, slots=True)
class _Reading:
    """What lines of one kind mean when there is nothing else."""

    because: str
    decider: str
    cause: Cause | None = None


def check(situation: Situation) -> Finding | None:
    """Fires when no process was seen and the log alone says something."""
    case = situation.case
    if any(m.lead is not None or m.last.flight for m in case.members):
        return None
    messages = [m for snapshot in case.capture.snapshots for m in snapshot.messages]
    if any(m.kind == "ready" for m in messages):
        return None
    started = _ranks_apart(messages)
    if started is not None:
        return started
    reading = _bars(messages) or _watchdog_thread(messages) or _waiting(messages)
    if reading is None:
        return None
    return Finding(Kind.UNKNOWN, Confidence.POSSIBLE, reading.cause, reading.because, decider=reading.decider)


# -- start-up, rank by rank ------------------------------------------------------------------------


def _ranks_apart(messages: list[LogMessage]) -> Finding | None:
    """Ranks that have not begun a phase which their peers have begun, or one rank alone in a phase of all."""
    ranks: dict[str, Rank] = {}
    begun: dict[str, set[str]] = defaultdict(set)
    last: tuple[str, str] | None = None
    for message in messages:
        rank = parse_rank(message.process) if message.process else None
        phase = message.fields.get("phase")
        if rank is None or rank.text is not None or message.process is None:
            continue
        ranks.setdefault(message.process, rank)
        if phase is not None and message.kind in _STEPS:
            begun[phase].add(message.process)
            last = (phase, message.text)
    if last is None:
        return None
    phase, text = last
    behind = [label for label in ranks if label not in begun[phase]]
    if behind:
        return _behind(phase, behind, [label for label in ranks if label in begun[phase]], ranks)
    return _alone(phase, text, ranks) if len(ranks) == 1 else None


def _behind(phase: str, behind: list[str], others: list[str], ranks: dict[str, Rank]) -> Finding | None:
    if len(behind) > len(others) or not phase.endswith(_MEETINGS):
        return None  # they come one after another, and a pasted log seldom has the lines of all
    because = f"{fold_labels(others)} logged {phase} and {fold_labels(behind)} did not: all ranks meet there"
    return Finding(
        Kind.UNKNOWN,
        Confidence.POSSIBLE,
        Cause.MISSING_PEER,
        because,
        absent=tuple(ranks[label] for label in behind),
        decider=f"whether {fold_labels(behind)} is alive, and its stack",
    )


_MEETINGS = ("dist-init", "nccl-init", "custom-all-reduce", "load-barrier")
"""Ends of the names of phases that no rank leaves alone."""


def _alone(phase: str, text: str, ranks: dict[str, Rank]) -> Finding | None:
    label, rank = next(iter(ranks.items()))
    if not phase.endswith(_MEETINGS):
        return None
    other = f"TP{1 if rank.tp == 0 else 0}" if rank.tp is not None else "another rank"
    because = (
        f"only {label} logged {phase} ({text.strip()[-60:]}), which no rank of several leaves alone: with more than "
        f"one rank, {other} and the other ranks were never started, have died, or log elsewhere"
    )
    return Finding(
        Kind.UNKNOWN,
        Confidence.POSSIBLE,
        Cause.MISSING_PEER,
        because,
        decider="how many processes there are, and how many ranks were asked for (--tp, --nnodes)",
        command="hangdoctor attach {pid}",
    )


# -- lines that mean something by themselves ---------------------------------------------------------


def _bars(messages: list[LogMessage]) -> _Reading | None:
    """The same bar twice, finished once: ranks that tune in lockstep have come apart."""
    counts: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for message in messages:
        if message.kind == "bar" and "tun" in message.fields.get("name", "").lower():
            done, total = message.fields.get("done", ""), message.fields.get("total", "")
            counts[message.fields["name"]].add((done, total))
    for name, seen in counts.items():
        if len(seen) > 1:
            states = ", ".join(sorted(f"{done}/{total}" for done, total in seen))
            return _Reading(
                f'the bar "{name}" stands at {states}: kernels are being tuned, and a rank that has finished waits for '
                "one that has not begun",
                "the bars of all ranks side by side: which of them still tunes",
                Cause.WARMING_UP,
            )
    return None


def _watchdog_thread(messages: list[LogMessage]) -> _Reading | None:
    stuck = [m for m in messages if m.kind == "nccl.watchdog-stuck"]
    if not stuck:
        return None
    labels = fold_labels(dict.fromkeys(m.process or "?" for m in stuck))
    return _Reading(
        f"the NCCL watchdog thread itself of {labels} is blocked: in a CUDA call, by the GIL, or by swapping",
        "native stacks of those processes, and memory pressure (/proc/pressure/memory)",
        Cause.LOCK_HELD,
    )


def _waiting(messages: list[LogMessage]) -> _Reading | None:
    """vLLM's line about shared memory blocks: written by whoever waits for the other side, busy or not."""
    waiting = [m for m in messages if m.kind == "waiting"]
    if not waiting or any(m.kind != "waiting" for m in messages[messages.index(waiting[-1]) :]):
        return None
    writer = waiting[-1].process or ""
    if writer.startswith("EngineCore"):
        return _Reading(
            f"{writer} waits for the result of a step: a worker does not answer; it is stuck, compiles or computes",
            "the stacks of the workers, and compilers below them (nvcc, cicc, ptxas)",
        )
    if writer.startswith("Worker"):
        return _Reading(
            f"{writer} waits for work from the engine core, as it does whenever nothing is asked of it",
            "whether a request is in flight: then look at the engine core",
        )
    return _Reading(
        "the line is a heartbeat of somebody who waits on the other side of a queue: idle, busy with a time-consuming "
        "step (a compilation, a large prefill), or stuck",
        "who wrote it, and the stacks and compiler children (nvcc, cicc, ptxas) of the workers",
    )


RULE = Rule(
    id="only-logs",
    order=80,
    summary="There are log lines and no processes: what they say of each rank's start-up, and what they leave open.",
    refuted_by="the other ranks' lines in another file",
    check=check,
)
