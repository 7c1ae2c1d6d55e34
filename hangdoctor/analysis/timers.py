"""What the job's own timers have measured: a watchdog that ran out is evidence of a hang, however short our look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hangdoctor.analysis.folding import fold_labels
from hangdoctor.case import Case
from hangdoctor.knowledge.catalogue import RoleKind
from hangdoctor.model import LogMessage

_FALSE_ALARMS = ("DataParallelController",)
"""SGLang's watchdog of this component fires on healthy nodes with node_rank > 0: nothing ever feeds it there."""
_DUMPING = "sglang.watchdog-dump"
_SLOW_BY_NATURE = (
    "jit-compile",
    "autotune",
    "deepgemm",
    "graph-capture",
    "weights-load",
    "dequantize",
    "compile",
)
"""Ends of the names of phases that take longer than a step's watchdog allows, and end."""
_NCCL = "the NCCL watchdog"
_RECOVERED = ("sglang.decode", "sglang.prefill")


@dataclass(frozen=True, slots=True)
class Alarm:
    """Timers that ran out, in one clause."""

    labels: tuple[str, ...]
    """Whose timers: they waited; none of them is at fault for it."""
    text: str
    """``the NCCL watchdogs of rank 0,3 ran out after 600 s``."""


@dataclass(frozen=True, slots=True)
class _Ring:
    who: str | None
    timer: str
    seconds: float | None
    at: float | None


def alarm_of(case: Case) -> Alarm | None:
    """The timers that ran out, unless the log shows that work went on afterwards."""
    messages = [m for snapshot in case.capture.snapshots for m in snapshot.messages]
    rings = [ring for message in messages if (ring := _ring(message)) is not None]
    rings = [ring for ring in rings if not _went_on(messages, ring)]
    if any(m.fields.get("phase", "").endswith(_SLOW_BY_NATURE) for m in messages):
        rings = [ring for ring in rings if ring.timer == _NCCL]  # step watchdogs know nothing of compilers
    rings += _seen_dumping(case)
    if not rings:
        return None
    timer = rings[0].timer
    same = [ring for ring in rings if ring.timer == timer]
    labels = tuple(dict.fromkeys(ring.who for ring in same if ring.who))
    seconds = max((ring.seconds for ring in same if ring.seconds is not None), default=None)
    of_whom = f" of {fold_labels(labels)}" if labels else ""
    after = f" after {seconds:.0f} s" if seconds is not None else ""
    return Alarm(labels, f"{timer}{of_whom} ran out{after}")


def _ring(message: LogMessage) -> _Ring | None:
    fields = message.fields
    at = _number(fields, "time_s")
    if message.kind == "nccl.timeout":
        seconds = _milliseconds(fields, "elapsed_ms") or _milliseconds(fields, "timeout_ms")
        return _Ring(message.process, _NCCL, seconds, at)
    if message.kind == "watchdog" and fields.get("component") not in _FALSE_ALARMS:
        return _Ring(message.process, "the watchdog", _number(fields, "seconds"), at)
    if message.kind == "sglang.holds-batch":
        return _Ring(message.process, "the watchdog, with a batch in hand,", None, at)
    if message.kind in ("gloo.timeout", "store.key-timeout", "torch.barrier-missing"):
        return _Ring(message.process, "a time-out", _milliseconds(fields, "timeout_ms"), at)
    return None


def _went_on(messages: list[LogMessage], ring: _Ring) -> bool:
    """Whether the same writer (or an unnamed one) logged steps after its timer ran out."""
    if ring.at is None:
        return False
    return any(
        m.kind == "heartbeat"
        and m.fields.get("phase") in _RECOVERED
        and (_number(m.fields, "time_s") or 0.0) > ring.at
        and (m.process is None or ring.who is None or m.process == ring.who)
        for m in messages
    )


def _seen_dumping(case: Case) -> Iterator[_Ring]:
    """A scheduler whose watchdog thread is dumping stacks: its timer has run out."""
    for member in case.members:
        if member.kind is not RoleKind.RANK:
            continue  # the controller's has false alarms
        for track in member.threads:
            match = track.last.match
            if match is not None and match.phase.id == _DUMPING:
                yield _Ring(member.label, "the watchdog", None, None)


def _number(fields: Mapping[str, str], name: str) -> float | None:
    try:
        return float(fields[name])
    except (KeyError, ValueError):
        return None


def _milliseconds(fields: Mapping[str, str], name: str) -> float | None:
    value = _number(fields, name)
    return None if value is None else value / 1000
