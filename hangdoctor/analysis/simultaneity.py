"""How far apart in time one look at several hosts is, by one clock."""

from __future__ import annotations

from collections.abc import Sequence

from hangdoctor.model import Host, Snapshot


def spread_of(snapshot: Snapshot, hosts: Sequence[Host]) -> float | None:
    """Seconds between the first and the last process that was looked at.

    Between hosts whose clocks were not compared (captures carried by hand) nothing can be said, for the clocks may
    differ by more than the looks: then it is the largest spread within one host.
    """
    offsets = {host.name: host.clock_offset_s for host in hosts}
    is_known = len(offsets) < 2 or None not in offsets.values()
    times: dict[str | None, list[float]] = {}
    for process in snapshot.processes:
        if process.taken_at is not None:
            offset = offsets.get(process.host or "") or 0.0
            times.setdefault(None if is_known else process.host, []).append(process.taken_at - offset)
    return max((max(own) - min(own) for own in times.values()), default=None)


def start_skew(hosts: Sequence[Host]) -> float | None:
    """Seconds between the first and the last host's start of its first look; ``None`` where no start was agreed."""
    delays = [host.start_delay_s for host in hosts if host.start_delay_s is not None]
    return max(delays) - min(delays) if len(delays) > 1 else None
