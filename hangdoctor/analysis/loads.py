"""How far a load of weights is: bytes read of a file, pages resident of a mapping, shards done of a checkpoint.

Names such as ``model-00012-of-00061`` carry the total, so the place in the whole load is known even when the looks
caught two different files. Traps: a cached file reads nothing from disk (positions count), ``pread`` moves no
position, and a retry loop that reads one file again and again moves plenty and gets nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hangdoctor.model import OpenFile, Process
from hangdoctor.report import Progress, ProgressClass

SMALLEST_FILE_BYTES = 64 * 1024
"""A file below this size is configuration, not a load."""
LOAD_RATE_BYTES_S = 256 * 1024
"""Reads below this rate are housekeeping (a watchdog reading /proc), not a load."""
LEAST_NEW_BYTES = 256 * 1024
"""Growth of a mapping below this is noise of the page cache."""

_SHARD = re.compile(r"(\d+)-of-(\d+)")
_DATA = re.compile(r"\.(safetensors|bin|pt|pth|gguf|ckpt|npz|npy|parquet|arrow|distcp)( \(deleted\))?$")
_DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class Pair:
    """The same process at two successive looks."""

    before: Process
    after: Process
    seconds: float


@dataclass(frozen=True, slots=True)
class _Place:
    """How much of one data file a process has taken in."""

    path: str
    done_bytes: int
    size_bytes: int
    verb: str

    @property
    def share(self) -> float:
        return min(1.0, self.done_bytes / self.size_bytes)

    @property
    def shard(self) -> tuple[int, int] | None:
        """Number and total of a numbered shard."""
        found = _SHARD.search(self.path)
        if found is None or not 0 < int(found[1]) <= int(found[2]):
            return None
        return int(found[1]), int(found[2])

    @property
    def words(self) -> str:
        name = self.path.rsplit("/", 1)[-1]
        where = f", shard {self.shard[0]} of {self.shard[1]}" if self.shard else ""
        if self.verb == "map":
            return f"has {100 * self.share:.0f} % of {name} in memory{where}"
        return f"has read {100 * self.share:.0f} % of {name}{where}"


def load_moves(pair: Pair) -> Iterator[Progress]:
    """What moved in the files that a process reads or maps; every item is proof."""
    before = {place.path: place for place in _places(pair.before)}
    again = files_read_again(pair)
    after = [place for place in _places(pair.after) if place.path not in again]
    whole = _whole_load(list(before.values()), after, pair.seconds)
    if whole is not None:
        yield whole
        return
    for place in after:
        old = before.get(place.path)
        if old is None or place.done_bytes - old.done_bytes < _least(place):
            continue
        rate = (place.done_bytes - old.done_bytes) / pair.seconds if pair.seconds else None
        left = (place.size_bytes - place.done_bytes) / rate if rate else None
        yield Progress(ProgressClass.PROOF, place.words, rate, "bytes/s", 100 * place.share, left)
    if not again:
        yield from _read_at_offsets(pair)


def files_read_again(pair: Pair) -> frozenset[str]:
    """Files open at both looks of which more was read in between than they hold: they are read over and over.

    Counted are the bytes of all reads beyond what the positions of open files explain. A loader that finishes
    several other files meanwhile looks the same, and so no such file proves anything.
    """
    read = read_chars(pair)
    if read is None:
        return frozenset()
    old = {place.path: place for place in _places(pair.before) if place.verb == "read"}
    both = [
        (old[place.path], place)
        for place in _places(pair.after)
        if place.verb == "read" and place.path in old
    ]
    unexplained = read - sum(max(0, new.done_bytes - before.done_bytes) for before, new in both)
    return frozenset(new.path for _, new in both if unexplained >= new.size_bytes)


def read_chars(pair: Pair) -> int | None:
    """Bytes of all read(2) calls between the looks, cached or not; ``None`` where they could not be counted."""
    if pair.before.io is None or pair.after.io is None:
        return None
    return pair.after.io.read_chars - pair.before.io.read_chars


def reached_percent(process: Process) -> float | None:
    """How far a load is at one look: of the whole where shard names carry the total, else of the largest data file.

    ``None`` when no data file is open or mapped.
    """
    places = _places(process)
    furthest = _furthest(places)
    if furthest is not None:
        number, total = furthest.shard or (1, 1)
        return 100 * (number - 1 + furthest.share) / total
    data = [place for place in places if _DATA.search(place.path)]
    largest = max(data, key=lambda place: place.size_bytes, default=None)
    return None if largest is None else 100 * largest.share


def write_moves(pair: Pair) -> Iterator[Progress]:
    """Regular files (no logs) that grow under a process' hand: a checkpoint being saved."""
    old = {(f.fd, f.target): f.position for f in pair.before.files}
    for new in pair.after.files:
        before = old.get((new.fd, new.target))
        is_output = new.kind == "file" and new.access in ("w", "rw") and new.fd not in (0, 1, 2)
        if not is_output or new.target.endswith(".log") or before is None or new.position is None:
            continue
        if new.position > before and pair.seconds:
            what = f"writes {new.target.rsplit('/', 1)[-1]}"
            yield Progress(ProgressClass.PROOF, what, (new.position - before) / pair.seconds, "bytes/s")


def _least(place: _Place) -> int:
    return LEAST_NEW_BYTES if place.verb == "map" else 1


def _places(process: Process) -> list[_Place]:
    places = [
        _Place(_plain(f.target), f.position, f.size_bytes, "read")
        for f in process.files
        if f.kind == "file"
        and f.fd not in (0, 1, 2)
        and f.access != "w"
        and f.position
        and f.size_bytes
        and f.size_bytes >= SMALLEST_FILE_BYTES
    ]
    for mapping in process.mapped:
        # A file that was replaced under a running load has lost its size; its mapping has not.
        size = mapping.size_bytes or mapping.mapped_bytes
        if size and mapping.resident_bytes is not None:
            places.append(_Place(_plain(mapping.path), mapping.resident_bytes, size, "map"))
    return places


def _plain(path: str) -> str:
    return path.removesuffix(_DELETED)


def _whole_load(before: list[_Place], after: list[_Place], seconds: float) -> Progress | None:
    """Progress through a numbered checkpoint, by the furthest shard of each look."""
    old, new = _furthest(before), _furthest(after)
    if old is None or new is None or not seconds:
        return None
    (number, total), (old_number, old_total) = new.shard or (0, 1), old.shard or (0, 1)
    reached = (number - 1 + new.share) / total
    gained = reached - (old_number - 1 + old.share) / old_total
    if old_total != total or gained <= 0 or (new.path == old.path and new.done_bytes <= old.done_bytes):
        return None
    return Progress(
        ProgressClass.PROOF,
        new.words,
        gained * total * new.size_bytes / seconds,
        "bytes/s",
        100 * reached,
        (1 - reached) * seconds / gained,
    )


def _furthest(places: list[_Place]) -> _Place | None:
    numbered = [place for place in places if place.shard is not None and place.done_bytes > 0]
    return max(numbered, key=lambda place: (place.shard or (0, 0), place.share), default=None)


def _read_at_offsets(pair: Pair) -> Iterator[Progress]:
    """``pread``: bytes come in while a data file is open and its position does not move.

    More bytes than all open data files hold is a retry loop, not a load; so is a file that is opened anew each time.
    """
    chars = read_chars(pair)
    if chars is None or pair.before.io is None or pair.after.io is None or not pair.seconds:
        return
    data = _data_files(pair.after)
    positions = {(f.fd, f.target): f.position for f in _data_files(pair.before)}
    lasting = [f for f in data if (f.fd, f.target) in positions]
    is_still = bool(lasting) and all(positions[f.fd, f.target] == f.position for f in lasting)
    got = max(chars, pair.after.io.read_bytes - pair.before.io.read_bytes)
    held = sum(f.size_bytes or 0 for f in data)
    if is_still and got / pair.seconds >= LOAD_RATE_BYTES_S and (not held or got <= held):
        name = data[0].target.rsplit("/", 1)[-1]
        yield Progress(ProgressClass.PROOF, f"reads {name}", got / pair.seconds, "bytes/s")


def _data_files(process: Process) -> list[OpenFile]:
    return [f for f in process.files if f.kind == "file" and _DATA.search(f.target) and f.access != "w"]
