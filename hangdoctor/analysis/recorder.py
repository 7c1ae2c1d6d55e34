"""What PyTorch's Flight Recorder says of one process: which of its entries counts for a process group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from hangdoctor.model import FlightEntry

DONE = ("completed", "retired")
"""States of a collective that is over; ``retired`` is gloo's."""


def by_group(entries: Iterable[FlightEntry]) -> Mapping[str, Sequence[FlightEntry]]:
    """The entries of each group; those without a number cannot be compared and are left out."""
    groups: dict[str, list[FlightEntry]] = defaultdict(list)
    for entry in entries:
        if entry.sequence is not None:
            groups[entry.group].append(entry)
    return groups


def current_entries(entries: Iterable[FlightEntry]) -> dict[str, FlightEntry]:
    """Where a process is in each group: the oldest collective that is not over (the later ones queue behind it on one
    stream), else the newest."""
    return {group: min(own, key=_urgency) for group, own in by_group(entries).items()}


def _urgency(entry: FlightEntry) -> tuple[bool, int]:
    is_done, sequence = entry.state in DONE, entry.sequence or 0
    return is_done, -sequence if is_done else sequence
