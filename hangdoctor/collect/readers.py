"""Children that stay for all looks and read one thing after the other for us.

A fork is dear: the child writes to the pages of what it runs and each is copied, and so is what we write to meanwhile.
Two children cost 55 ms of CPU (measured, on virtual hardware), as much as everything else of a look at four ranks. So
they take requests through a pipe: we can go on while they read, and they keep what they know about a process for the
next step, and what costs nothing to keep for the next look. One that blocks is killed and replaced, as in
:func:`hangdoctor.collect.deadline.each`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import struct
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Generic, TypeVar

from hangdoctor.collect.deadline import CHUNK_BYTES, Child, Trouble
from hangdoctor.collect.packing import pack

T = TypeVar("T")
K = TypeVar("K")
Item = TypeVar("Item")

NOT_TRIED = "was not tried, for an earlier read that needs the same lock did not return"
_SIZE = struct.Struct("<I")
_NOTHING = 0
"""Instead of the size of a request: there is none for a while."""
_LATE = Trouble("did not get its turn in time", True)


@dataclass(slots=True)
class _Group:
    """What one call of :meth:`Readers.ask` asked for. Its time counts from when the answers are waited for."""

    number: int
    item_s: float
    total_s: float
    is_pointless: Callable[[Any, Any], bool]
    end: float | None = None

    def left(self) -> float:
        if self.end is None:
            self.end = time.monotonic() + self.total_s
        return max(0.0, self.end - time.monotonic())


@dataclass(slots=True, eq=False)
class _Request:
    item: object
    group: _Group
    data: bytes = b""
    """What of it has not been sent yet."""
    answer: object = None
    is_answered: bool = False

    def settle(self, answer: object) -> None:
        self.answer, self.is_answered = answer, True


@dataclass(slots=True)
class _Reader:
    """One child, and what it has been asked and has not answered yet, in this order."""

    functions: Sequence[Callable[[Any], Any]]
    renew: Callable[[], None]
    asked: deque[_Request] = field(default_factory=deque)
    child: Child[Any] | None = None
    to_child: int = -1

    def ask(self, request: _Request) -> None:
        if not self.asked and not self._is_ready():
            self.end()
        self._encode(request)
        self.asked.append(request)
        if self.child is None:
            self._start()
        self._send()

    def _is_ready(self) -> bool:
        """It was neither dismissed, nor killed by somebody while it rested."""
        return self.to_child >= 0 and self.child is not None and self.child.is_alive()

    def _encode(self, request: _Request) -> None:
        payload = pack((request.group.number, request.item))
        request.data = _SIZE.pack(len(payload)) + payload

    def settle(self, request: _Request) -> None:
        """Waits until ``request`` is answered, one way or the other."""
        while not request.is_answered:
            head = self.asked[0]
            if self.child is None:
                self._start()
            assert self.child is not None
            limit = min(head.group.item_s, head.group.left())
            try:
                self._send(head, limit)
                head.settle(self.child.answer(limit))
                self.asked.popleft()
            except (
                BaseException
            ):  # Ctrl-C: half an answer may be gone, and the next one would be taken for it
                self._begin_anew()
                raise
            if self.child.is_lost:
                self.end()
                self._pass_over(head)

    def _begin_anew(self) -> None:
        self.end()
        self.asked = deque(request for request in self.asked if not request.is_answered)
        for request in self.asked:
            self._encode(request)

    def _pass_over(self, stuck: _Request) -> None:
        """Settles what need not be tried after ``stuck``; the rest will be asked of another child."""
        is_over = stuck.group.left() <= 0
        for later in tuple(self.asked):
            if later.group is stuck.group and is_over:
                later.settle(_LATE)
            elif later.group.is_pointless(stuck.item, later.item):
                later.settle(Trouble(NOT_TRIED, True))
            else:
                self._encode(later)
                continue
            self.asked.remove(later)

    def _start(self) -> None:
        try:
            from_us, self.to_child = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            self.child = Child.refused(f"had no pipe to a helper ({error.strerror})")
            return
        os.set_blocking(self.to_child, False)
        functions = self.functions
        self.child = Child.fork(
            lambda asked: functions[asked[0]](asked[1]), _Requests(from_us, self.renew), keeps=(from_us,)
        )
        os.close(from_us)

    def _send(self, needed: _Request | None = None, limit_s: float = 0.0) -> None:
        """As much as the pipe takes now; ``needed`` goes out whole, or its time is up."""
        if self.to_child < 0:
            return
        end = time.monotonic() + limit_s
        for request in self.asked:
            while request.data:
                try:
                    request.data = request.data[os.write(self.to_child, request.data) :]
                except BlockingIOError:
                    if request is not needed or time.monotonic() >= end:
                        return
                    _wait_for_room(self.to_child, end - time.monotonic())
                except BrokenPipeError:  # it died: its answer will say so
                    return

    def rest(self) -> None:
        """Lets the child forget what it keeps, and wait. One that has not answered everything is killed."""
        if self.child is None:
            return
        if not self.asked and self.to_child >= 0 and self.child.is_alive():
            with contextlib.suppress(OSError):  # it has died since, and will be missed when it is asked
                os.write(self.to_child, _SIZE.pack(_NOTHING))
        else:
            self.end()
            self.asked.clear()

    def dismiss(self) -> None:
        """Lets the child leave by itself, once it has finished what it reads."""
        if self.to_child >= 0:
            os.close(self.to_child)
            self.to_child = -1

    def end(self) -> None:
        """Kills the child. Idempotent."""
        self.dismiss()
        if self.child is not None:
            self.child.end()
            self.child = None


class _Requests:
    """In the child: what we are asked, for as long as we are."""

    def __init__(self, fd: int, renew: Callable[[], None]) -> None:
        self._fd = fd
        self._renew = renew
        self._received = b""

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        is_new = True
        while header := self._read(_SIZE.size):
            (size,) = _SIZE.unpack(header)
            if size == _NOTHING:
                self._rest()
                is_new = True
                continue
            if is_new:
                self._renew()
                is_new = False
            # Written by the process that we were forked from: nobody else has the other end of this pipe.
            yield pickle.loads(self._read(size))

    def _rest(self) -> None:
        self._renew()
        gc.collect()

    def _read(self, size: int) -> bytes:
        while len(self._received) < size:
            chunk = os.read(self._fd, max(CHUNK_BYTES, size - len(self._received)))
            if not chunk:
                return b""
            self._received += chunk
        data, self._received = self._received[:size], self._received[size:]
        return data


def _wait_for_room(fd: int, seconds: float) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll(max(0.0, seconds) * 1000)


@dataclass(frozen=True, eq=False, slots=True)
class Answers(Generic[Item, T]):
    """What was asked for in one call. Iterate once: every item comes once, with its answer or why there is none."""

    _requests: Sequence[tuple[_Reader, _Request]]

    def __iter__(self) -> Iterator[tuple[Item, T | Trouble]]:
        for reader, request in self._requests:
            yield request.item, _settled(reader, request)  # type: ignore[misc]

    def by(self, key: Callable[[Item], K]) -> Mapping[K, Callable[[], T | Trouble]]:
        """The answers by the keys of their items, each waited for when it is called for; in any order."""
        return {
            key(request.item): partial(_settled, reader, request)  # type: ignore[arg-type]
            for reader, request in self._requests
        }


def _settled(reader: _Reader, request: _Request) -> Any:
    reader.settle(request)
    return request.answer


def _do_nothing() -> None:
    pass


class Readers:
    """Some children with the same functions. Forked at the first question, they see our memory as it was then.

    They have none of our descriptors.
    """

    def __init__(
        self,
        functions: Sequence[Callable[[Any], Any]],
        width: int,
        *,
        renew: Callable[[], None] = _do_nothing,
    ) -> None:
        """``functions`` may be closures; the items they are asked about and what they return must be picklable.

        ``renew()`` is called in every child before its first request, when it is to rest, and before the first request
        after that.
        """
        self._functions = tuple(functions)
        self._readers = [_Reader(self._functions, renew) for _ in range(max(1, width))]
        self._places: dict[Hashable, int] = {}
        self._batch: dict[Hashable, list[tuple[_Reader, _Request]]] | None = None

    def ask(
        self,
        function: Callable[[Item], T],
        items: Sequence[Item],
        *,
        item_s: float,
        total_s: float,
        belongs_to: Callable[[Item], Hashable],
        is_pointless: Callable[[object, Item], bool] = lambda stuck, later: False,
    ) -> Answers[Item, T]:
        """Asks now; the answers are waited for when they are iterated over, and their time counts from then.

        ``function`` is one of those given to the constructor. Items with the same ``belongs_to(item)`` go to the same
        child, in this call and in later ones. ``is_pointless(stuck, item)`` is asked after anything that blocked, of
        this call or another; the other parameters are those of :func:`deadline.each`.
        """
        group = _Group(self._functions.index(function), item_s, total_s, is_pointless)
        requests = []
        for item in items:
            owner = belongs_to(item)
            place = self._places.setdefault(owner, len(self._places) % len(self._readers))
            asked = self._readers[place], _Request(item, group)
            requests.append(asked)
            if self._batch is None:
                asked[0].ask(asked[1])
            else:
                self._batch.setdefault(owner, []).append(asked)
        return Answers(requests)

    @contextlib.contextmanager
    def by_owner(self) -> Iterator[None]:
        """What is asked inside is asked at the end: all about the first owner, then all about the second, and so on.

        So what is read of one process belongs to one moment, and is still at hand for the next question.
        """
        self._batch = {}
        try:
            yield
        finally:
            batch, self._batch = self._batch, None
            for reader, request in chain.from_iterable(batch.values()):
                reader.ask(request)

    def rest(self) -> None:
        """Nothing will be asked for a while. Answers that nobody has waited for are lost, with whoever owes them."""
        for reader in self._readers:
            reader.rest()
        self._places.clear()

    def dismiss(self) -> None:
        """Nothing more will be asked: the children end, which takes them milliseconds, while we go on.

        Not those that still have to be told a part of what was asked.
        """
        for reader in self._readers:
            if not any(request.data for request in reader.asked):
                reader.dismiss()

    def end(self) -> None:
        """Kills the children. Needed in every case; idempotent."""
        for reader in self._readers:
            reader.dismiss()
        for reader in self._readers:
            with contextlib.suppress(OSError):
                reader.end()
