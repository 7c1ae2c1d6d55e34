"""Which sightings are the same process.

By pid where there is one, else by the name of the rank; a name and a pid seen together tie the two. The same pid does
not always mean the same process: in containers every server is pid 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from hangdoctor.parsers.findings import Sighting
from hangdoctor.parsers.labels import EVERYONE, OTHERS, dimensions


@dataclass(slots=True)
class Person:
    """One process with everything that was seen of it, in the order of the input."""

    sightings: list[Sighting] = field(default_factory=list)
    named: dict[str, set[int]] = field(default_factory=dict)
    """Thread name → tids, over all sightings."""
    title: str | None = None
    label: str | None = None
    pid: int | None = None
    host: str | None = None

    def add(self, sighting: Sighting) -> None:
        """Take one more sighting in."""
        self.sightings.append(sighting)
        self.pid = self.pid if self.pid is not None else sighting.pid
        self.host = self.host or sighting.host
        self.label = self.label or next(iter(sighting.labels), None)
        self.title = _title(sighting) or self.title
        for thread in sighting.threads:
            if thread.tid is not None and thread.name and thread.name != "MainThread":
                self.named.setdefault(thread.name, set()).add(thread.tid)

    @property
    def is_ghost(self) -> bool:
        """Known only from tools that did not find it."""
        return any(s.is_gone for s in self.sightings) and all(s.is_history for s in self.sightings)

    def contradicts(self, sighting: Sighting) -> bool:
        """Whether a sighting with the same pid must be another process all the same."""
        label = next(iter(sighting.labels), None)
        if label and self.label and not _same_label(label, self.label):
            return True
        if sighting.host and self.host and sighting.host != self.host:
            return True
        title = _title(sighting)
        if title and self.title and _other_title(title, self.title):
            return True
        return self._has_other_threads(sighting)

    def _has_other_threads(self, sighting: Sighting) -> bool:
        """Threads of the same names under other numbers: a twin in another container."""
        met = False
        for thread in sighting.threads:
            if thread.tid is None or not thread.name or thread.name == "MainThread":
                continue
            tids = self.named.get(thread.name)
            if tids is None:
                continue
            if thread.tid in tids:
                return False
            met = True
        return met


class Register:
    """Finds the process that a sighting is of."""

    def __init__(self) -> None:
        self.people: list[Person] = []
        self._by_pid: dict[int, list[Person]] = {}
        self._by_label: dict[object, list[Person]] = {}
        self._by_thread: dict[object, Person] = {}

    def enter(self, sightings: Iterable[Sighting]) -> None:
        """Take sightings in, in the order of the input; those with a pid first, so that names find their pids."""
        everyone: list[Sighting] = []
        waiting: list[Sighting] = []
        last: dict[str, Person] = {}
        for sighting in sightings:
            if sighting.labels == (EVERYONE,):
                everyone.append(sighting)
            elif sighting.is_continuation and sighting.where.file in last:
                self._put(last[sighting.where.file], sighting)
            elif sighting.pid is None and (sighting.is_incidental or not sighting.labels):
                waiting.append(sighting)
            else:
                for one in _one_each(sighting):
                    last[sighting.where.file] = self._enter(one)
        for sighting in waiting:
            for one in _one_each(sighting):
                self._enter(one)
        for sighting in everyone:
            self._for_all(sighting)
        # A process that was never seen and is gone is no process of this picture.
        self.people = [p for p in self.people if not p.is_ghost]

    def _enter(self, sighting: Sighting) -> Person:
        person = self._find(sighting) or self._new()
        self._put(person, sighting)
        return person

    def _new(self) -> Person:
        person = Person()
        self.people.append(person)
        return person

    def _put(self, person: Person, sighting: Sighting) -> None:
        person.add(sighting)
        if sighting.pid is not None:
            _remember(self._by_pid.setdefault(sighting.pid, []), person)
        for key in _label_keys(person):
            _remember(self._by_label.setdefault(key, []), person)
        for thread in sighting.threads:
            if thread.tid is not None:
                self._by_thread.setdefault(thread.tid, person)
            elif thread.name and thread.name.startswith("thread 0x"):
                self._by_thread[thread.name] = person

    def _find(self, sighting: Sighting) -> Person | None:
        if sighting.pid is not None:
            for person in self._by_pid.get(sighting.pid, ()):
                if not person.contradicts(sighting):
                    return person
        for label in sighting.labels:
            if label in (OTHERS, EVERYONE):
                continue
            for key in _keys_of(label):
                for person in self._by_label.get(key, ()):
                    if sighting.pid is not None and person.pid is not None:
                        continue
                    if not person.contradicts(sighting):
                        return person
        if sighting.pid is None and not sighting.labels:
            for thread in sighting.threads:
                known = self._by_thread.get(thread.tid if thread.tid is not None else thread.name)
                if known is not None and not known.contradicts(sighting):
                    return known
        return None

    def _for_all(self, sighting: Sighting) -> None:
        """``# both``: one more thread of every process that this text had shown."""
        people = [p for p in self.people if p.sightings[0].where.file == sighting.where.file]
        for person in people:
            first = person.sightings[-1]
            person.sightings.append(
                replace(
                    sighting,
                    labels=(),
                    pid=first.pid,
                    source=f"{sighting.source}, all",
                )
            )
        if not people:
            self._enter(replace(sighting, labels=()))


def _one_each(sighting: Sighting) -> Sequence[Sighting]:
    if len(sighting.labels) < 2:
        return (sighting,)
    return [replace(sighting, labels=(label,), pid=None) for label in sighting.labels]


def _remember(people: list[Person], person: Person) -> None:
    if not any(known is person for known in people):
        people.append(person)


def _title(sighting: Sighting) -> str | None:
    """What setproctitle left; a command line may be cut or quoted differently by every tool, so it tells nothing."""
    if len(sighting.command) != 1:
        return None
    title = sighting.command[0].strip()
    return title if "::" in title or dimensions(title) else None


def _other_title(a: str, b: str) -> bool:
    """``VLLM::Worker`` becomes ``VLLM::Worker_TP0`` later, and every tool may cut a title."""
    if a in b or b in a:
        return False
    first, second = dimensions(a), dimensions(b)
    return not (first and second and (first <= second or second <= first))


def _same_label(a: str, b: str) -> bool:
    if a == b:
        return True
    first, second = dimensions(a), dimensions(b)
    return bool(first and second) and (first <= second or second <= first)


def _label_keys(person: Person) -> Iterable[object]:
    if person.label is not None and person.label != OTHERS:
        yield from _keys_of(person.label)
    if person.title is not None:
        found = dimensions(person.title)
        if found:
            yield found


def _keys_of(label: str) -> Iterable[object]:
    yield label
    found = dimensions(label)
    if found:
        yield found
