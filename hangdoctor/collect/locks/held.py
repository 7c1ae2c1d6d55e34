"""Who is inside ``with lock:``? A ``threading.Lock`` records no owner, but the block's frame does.

For the whole body the value stack keeps, below the depth of the block's handler
(:mod:`hangdoctor.collect.cpython.frames`), the bound ``__exit__`` of the lock (up to 3.13) or the pair of ``__exit__``
and the lock (3.14). The same holds for ``with condition:``, whose ``Condition`` object has the lock among its
attributes.

Not seen: a lock taken with ``.acquire()``, or in a ``with`` block of a suspended generator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hangdoctor.collect.cpython.attributes import read_attributes
from hangdoctor.collect.cpython.frames import Frame
from hangdoctor.collect.cpython.view import View
from hangdoctor.collect.locks.objects import CONDITION, ObjectReader
from hangdoctor.collect.memory import Regions


@dataclass(frozen=True, slots=True)
class Block:
    """One active ``with`` block: the slot that proves it, and the lock or condition it is about."""

    tid: int
    frame: int
    slot: int
    manager: int
    is_condition: bool


class HolderSearch:
    """Looks for the holders of some locks among the threads of one process."""

    def __init__(self, view: View, regions: Regions) -> None:
        """``view``: the first look, which may be some moments old; if it accuses anybody, all are looked at anew."""
        self._view = view
        self._regions = regions

    def find(self, locks: Collection[int]) -> Mapping[int, int]:
        """Lock address to host tid, where exactly one thread holds it and a second look agrees."""
        first = self._claims(self._view, locks)
        now = self._view.anew() if first else None
        if now is None:
            return {}
        second = self._claims(now, locks)
        holders = {}
        for lock, blocks in first.items():
            tids = {block.tid for block in blocks}
            if len(tids) == 1 and blocks == second.get(lock):
                holders[lock] = tids.pop()
        return holders

    def _claims(self, view: View, locks: Collection[int]) -> dict[int, frozenset[Block]]:
        """Lock to the blocks over it that are active and have not let go of it for the time being."""
        stacks = {tid: view.frames.frames_with_blocks(seen.trace) for tid, seen in view.threads.items()}
        claims: dict[int, set[Block]] = {}
        for block, inner in self._list_blocks(view, stacks):
            if block.is_condition:
                attributes = read_attributes(view.interpreter, view.memory, block.manager)
                about = [lock for lock in locks if lock in attributes]
            else:
                about = [block.manager] if block.manager in locks else []
            for lock in about:
                if not _is_released(view, inner, lock):
                    claims.setdefault(lock, set()).add(block)
        return {lock: frozenset(blocks) for lock, blocks in claims.items()}

    def _list_blocks(
        self, view: View, stacks: Mapping[int, Sequence[Frame]]
    ) -> list[tuple[Block, Sequence[Frame]]]:
        """All active blocks over locks and conditions, with the frames further in than each."""
        objects = ObjectReader(view.interpreter, view.memory, self._regions)
        values = {value for frames in stacks.values() for frame in frames for value in frame.live}
        resolved = objects.resolve(values)
        is_pair = view.interpreter.version >= (3, 14)
        exits = objects.exit_functions(values) if is_pair else frozenset()
        blocks = []
        for tid, frames in stacks.items():
            for position, frame in enumerate(frames):
                for slot, value in enumerate(frame.live):
                    known = resolved.get(value)
                    if known is None:
                        continue
                    if is_pair:
                        is_exit = known.method is None and slot > 0 and frame.live[slot - 1] in exits
                    else:
                        is_exit = known.method == "__exit__"
                    if is_exit:
                        is_condition = known.type_name == CONDITION
                        block = Block(tid, frame.address, slot, known.manager, is_condition)
                        blocks.append((block, frames[:position]))
        return blocks


def _is_released(view: View, inner: Sequence[Frame], lock: int) -> bool:
    """Whether a ``Condition.wait`` on this very lock, further in, has released it."""
    for frame in inner:
        function, file = view.frames.name_of(frame.code)
        if function == "wait" and file.endswith("threading.py"):
            own = view.frames.slot_values(frame)[:1]
            if own and lock in read_attributes(view.interpreter, view.memory, own[0]):
                return True
    return False
