"""Sightings → snapshots: who is one process, which look at it is the second, which threads belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hangdoctor.model import Method, Process, Snapshot, Thread
from hangdoctor.parsers.findings import Sighting
from hangdoctor.parsers.identity import Person, Register
from hangdoctor.parsers.labels import EVERYONE, OTHERS
from hangdoctor.parsers.native_stack import join_python

_T = TypeVar("_T")
_SAME_LOOK_S = 5.0
"""Tools run one after the other by one person see one moment, if they ran within this time."""
_MOST_LOOKS = 64
_WEAK = (Method.TRACEBACK, Method.FLIGHT_RECORDER)


@dataclass(slots=True)
class _Look:
    """Sightings of one process that are of one moment."""

    sightings: list[Sighting] = field(default_factory=list)

    @property
    def taken_at(self) -> float | None:
        return next((s.taken_at for s in self.sightings if s.taken_at is not None), None)

    def takes(self, sighting: Sighting) -> bool:
        """Whether it can be of the same moment: another tool, and no time in between."""
        if any(s.source == sighting.source for s in self.sightings) and not sighting.is_continuation:
            return sighting.is_incidental or sighting.is_history
        mine = self.taken_at
        return mine is None or sighting.taken_at is None or abs(sighting.taken_at - mine) <= _SAME_LOOK_S


def assemble(sightings: Iterable[Sighting]) -> tuple[Snapshot, ...]:
    """The snapshots that the sightings add up to, oldest first; one without processes when there are none."""
    register = Register()
    register.enter(_worthwhile(list(sightings)))
    people = register.people
    host = _only_host(people)
    numbers = _numbers(people, host)
    looks = [(person, _looks(person)) for person in people]
    rows = _aligned(looks)
    snapshots = []
    for row in rows:
        processes = tuple(
            _process(person, look, numbers[id(person)], person.host or host) for person, look in row
        )
        times = [p.taken_at for p in processes if p.taken_at is not None]
        snapshots.append(Snapshot(taken_at=min(times, default=None), processes=processes))
    return tuple(snapshots) or (Snapshot(taken_at=None, processes=()),)


def _worthwhile(sightings: list[Sighting]) -> Iterator[Sighting]:
    """Exceptions that no process can be named for count only where nothing better exists, and the last one then."""
    nameless = [s for s in sightings if s.is_incidental and s.pid is None and not s.labels]
    has_better = any(not s.is_incidental and s.threads for s in sightings)
    dropped = {id(s) for s in (nameless if has_better else nameless[:-1])}
    return (s for s in sightings if id(s) not in dropped)


def _only_host(people: Sequence[Person]) -> str | None:
    """One text that names one host is about that host."""
    hosts = {person.host for person in people if person.host}
    return next(iter(hosts)) if len(hosts) == 1 else None


def _numbers(people: Sequence[Person], host: str | None) -> dict[int, int]:
    """A pid each. Whoever has none, or shares it with another without a host to tell them apart, gets -1, -2 …"""
    claims: dict[tuple[str | None, int], int] = {}
    for person in people:
        if person.pid is not None:
            key = (person.host or host, person.pid)
            claims[key] = claims.get(key, 0) + 1
    numbers: dict[int, int] = {}
    unknown = 0
    for person in people:
        if person.pid is not None and claims[(person.host or host, person.pid)] == 1:
            numbers[id(person)] = person.pid
        else:
            unknown -= 1
            numbers[id(person)] = unknown
    return numbers


def _looks(person: Person) -> list[_Look]:
    looks: list[_Look] = [_Look()]
    for sighting in person.sightings:
        if not looks[-1].takes(sighting) and len(looks) < _MOST_LOOKS:
            looks.append(_Look())
        looks[-1].sightings.append(sighting)
    return looks


def _aligned(looks: Sequence[tuple[Person, list[_Look]]]) -> list[list[tuple[Person, _Look]]]:
    """The n-th look at everybody is one snapshot; with times on all of them, the nearest in time."""
    anchors = max((found for _, found in looks), key=len, default=[])
    times = [look.taken_at for look in anchors]
    rows: list[list[tuple[Person, _Look]]] = [[] for _ in anchors]
    for person, found in looks:
        last = -1
        for position, look in enumerate(found):
            index = _nearest(look.taken_at, times, position)
            index = min(max(index, last + 1), len(rows) - len(found) + position)
            rows[index].append((person, look))
            last = index
    return [row for row in rows if row]


def _nearest(moment: float | None, times: Sequence[float | None], default: int) -> int:
    known = [(abs(t - moment), i) for i, t in enumerate(times) if t is not None] if moment is not None else []
    return min(known)[1] if known and len(known) == len(times) else default


def _process(person: Person, look: _Look, pid: int, host: str | None) -> Process:
    sightings = look.sightings
    everything = person.sightings
    label = person.label if person.label not in (EVERYONE, None) else None
    versions: dict[str, str] = {}
    for sighting in everything:
        versions.update(sighting.versions)
    return Process(
        pid=pid,
        ns_pid=person.pid if person.pid != pid else None,
        host=host,
        ppid=_first(s.ppid for s in everything),
        state=_first(s.state for s in sightings),
        comm=_first(s.comm for s in everything),
        command=next((s.command for s in reversed(everything) if s.command), ()),
        threads=_threads(sightings),
        thread_count=_first(s.thread_count for s in sightings),
        tracer_pid=_first(s.tracer_pid for s in sightings),
        taken_at=look.taken_at,
        rss_bytes=_first(s.rss_bytes for s in sightings),
        user_ticks=_first(s.cpu_ticks for s in sightings),
        versions=versions,
        flight=tuple(entry for s in sightings for entry in s.flight),
        rank_hint="others" if label == OTHERS else label,
    )


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)


# -- threads -------------------------------------------------------------------------------------


def _threads(sightings: Sequence[Sighting]) -> tuple[Thread, ...]:
    """One row a thread: what several tools say of the same number is put together."""
    has_stacks = any(
        t.stack is not None and t.stack.method not in _WEAK for s in sightings for t in s.threads
    )
    rows: dict[object, Thread] = {}
    for sighting in sightings:
        for position, thread in enumerate(sighting.threads):
            if has_stacks and thread.stack is not None and thread.stack.method in _WEAK:
                continue  # where an exception came from, or an issue point: the dump is better
            key: object = thread.tid
            if key is None:
                key = _same_name(rows, thread) or (sighting.source, sighting.where.line, position)
            known = rows.get(key)
            rows[key] = thread if known is None else merge_threads(known, thread)
    return tuple(rows.values())


def _same_name(rows: dict[object, Thread], thread: Thread) -> object:
    if thread.name != "MainThread":
        return None
    return next((key for key, known in rows.items() if known.name == "MainThread"), None)


def merge_threads(first: Thread, second: Thread) -> Thread:
    """Two views of one thread; a native and a Python stack become one."""
    values: dict[str, object] = {}
    for name in Thread.__slots__:
        mine, other = getattr(first, name), getattr(second, name)
        if mine in (None, ()) and other not in (None, ()):
            values[name] = other
    merged = replace(first, **values)  # type: ignore[arg-type]
    if first.stack is None or second.stack is None:
        return merged
    native, python = first.stack, second.stack
    if all(frame.is_native for frame in python.frames):
        native, python = python, native
    if all(f.is_native for f in native.frames) and not any(f.is_native for f in python.frames):
        return replace(merged, stack=replace(python, frames=join_python(native.frames, python.frames)))
    return merged
