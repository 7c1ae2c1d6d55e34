"""When to look, when to stop, and what survives an interruption."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from hangdoctor import __version__
from hangdoctor.collect import host
from hangdoctor.collect.deadline import helper_pids
from hangdoctor.collect.inside import sample_hot_threads
from hangdoctor.collect.look import Look, LookReaders
from hangdoctor.collect.plan import Plan
from hangdoctor.collect.procfs import read_table
from hangdoctor.collect.pyspy import PySpy, find_py_spy
from hangdoctor.collect.ras_asking import SPACING_S
from hangdoctor.collect.resting import Resting
from hangdoctor.collect.tree import Tree, grow
from hangdoctor.errors import TargetNotFound
from hangdoctor.model import Capture, Gap, Snapshot, SpinSample, Target, Tool

SPARE_S = 0.5
"""Of a pause, left over when it is used for sampling: a starved host must not delay the next look."""
LEAST_SPIN_S = 0.6
"""Unless there is no sample yet. On a busy host looks fill the pauses, and that is where spins are found."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during a capture; ``capture`` holds every look that was complete, or the one begun."""

    def __init__(self, capture: Capture) -> None:
        super().__init__("interrupted")
        self.capture = capture


def take_capture(
    tree: Tree,
    plan: Plan,
    *,
    on_snapshot: Callable[[Capture], None] | None = None,
    is_enough: Callable[[Capture], bool] | None = None,
) -> Capture:
    """Looks at all processes of ``tree`` as often as ``plan`` says and returns what was seen.

    ``on_snapshot(capture)`` is called after every look with all looks so far; ``is_enough(capture)`` then ends the
    capture early. Processes that appear between looks are included. Raises :class:`Interrupted` with what there is,
    and :class:`TargetNotFound` when the target is gone before the first look.
    """
    with _interruptible():
        run = _Run(tree, plan)
        try:
            try:
                run.go(on_snapshot or (lambda capture: None), is_enough or (lambda capture: False))
            finally:
                run.end()
        except KeyboardInterrupt:
            raise Interrupted(run.capture()) from None
        return run.capture()


class RollingCapture:
    """Looks taken one at a time, for as long as somebody likes, of which only the last ``keep`` are remembered.

    Between looks some helper processes wait; :meth:`close` it to let them go.
    """

    def __init__(self, tree: Tree, plan: Plan, keep: int) -> None:
        self._run = _Run(tree, plan)
        self._keep = keep
        weakref.finalize(self, self._run.end)

    @property
    def tree(self) -> Tree:
        """The processes as they were at the last look."""
        return self._run.tree

    def look(self, plan: Plan) -> Capture:
        """Take one more look, as ``plan`` says, and return what is remembered.

        A look without processes means that the target has ended; raises :class:`TargetNotFound` when it had ended
        before the first look.
        """
        self._run.look_again(plan, self._keep)
        return self._run.capture()

    def capture(self) -> Capture:
        """What is remembered; before the first look is complete, as far as that has come."""
        return self._run.capture()

    def close(self) -> None:
        """No look is due any more. Idempotent, and done anyway when the capture is forgotten."""
        self._run.end()


class _Run:
    """A capture being taken."""

    def __init__(self, tree: Tree, plan: Plan) -> None:
        self._tree = tree
        self._plan = plan
        self._asked = tree
        self._snapshots: list[Snapshot] = []
        self._look: Look | None = None
        self._spins: Mapping[int, SpinSample] = {}
        self._was_sampled = False
        self._asked_ras_at = float("-inf")
        self._resting = Resting()
        self._readers = LookReaders(plan.is_env_allowed)
        program = find_py_spy()
        self._program = program if isinstance(program, PySpy) else None
        self._gaps = [program] if isinstance(program, Gap) else _age_gaps(program)

    def go(self, on_snapshot: Callable[[Capture], None], is_enough: Callable[[Capture], bool]) -> None:
        began = time.monotonic()
        count = max(1, self._plan.snapshots)
        for index in range(count):
            self._wait_until(began + self._plan.offset_s(index))
            self._take_look(is_last=index == count - 1)
            on_snapshot(self.capture())
            if not self._snapshots[-1].processes or is_enough(self.capture()):
                break
        if self._plan.native and self._program is not None and self._look is not None:
            self._snapshots[-1] = self._look.add_native(self._program)
            on_snapshot(self.capture())

    @property
    def tree(self) -> Tree:
        return self._tree

    def look_again(self, plan: Plan, keep: int) -> None:
        # The readers know the rule from when they were forked.
        if plan.is_env_allowed is not self._plan.is_env_allowed:
            self._readers.end()
            self._readers = LookReaders(plan.is_env_allowed)
        self._plan, self._spins = plan, {}
        self._take_look()
        del self._snapshots[:-keep]

    def end(self) -> None:
        """Nothing of ours is left running."""
        self._readers.end()

    def _take_look(self, *, is_last: bool = False) -> None:
        table = read_table()
        self._tree = grow(self._tree, table)
        if not self._tree.members and not self._snapshots:
            raise TargetNotFound(
                f"{self._tree.asked} ended before it could be looked at",
                hint="Is it restarting? `hangdoctor attach --name PATTERN` finds the new one.",
            )
        previous = self._snapshots[-1] if self._snapshots else None
        self._look = Look(self._plan_now(), self._program, self._spins, self._readers, self._resting)
        stats = [table[pid] for pid in self._tree.pids]
        visible = frozenset(table) - helper_pids()
        self._snapshots.append(self._look.take(stats, visible, previous, is_last=is_last))

    def _plan_now(self) -> Plan:
        """NCCL's service is asked in looks some seconds apart, whatever their spacing is."""
        now = time.monotonic()
        if not self._plan.use_ras or now - self._asked_ras_at < SPACING_S:
            return replace(self._plan, use_ras=False)
        self._asked_ras_at = now
        return self._plan

    def _wait_until(self, moment: float) -> None:
        """Uses the pause to watch hot threads: the samples go with the look that follows."""
        self._spins = {}
        if self._plan.use_spin and self._snapshots:
            spare = moment - time.monotonic() - SPARE_S
            least = 0.0 if self._was_sampled else LEAST_SPIN_S
            self._spins = sample_hot_threads(self._snapshots[-1], max(spare, least))
            self._was_sampled = self._was_sampled or bool(self._spins)
        time.sleep(max(0.0, moment - time.monotonic()))

    def capture(self) -> Capture:
        """All complete looks; if there is none, the one that was begun."""
        snapshots = tuple(self._snapshots)
        gaps = tuple(self._gaps)
        if not snapshots and self._look is not None and self._look.processes:
            snapshots = (self._look.snapshot(),)
            gaps = (
                *gaps,
                Gap("collect", "the target", "interrupted during the first look", "Let it finish."),
            )
        target = Target(
            asked=self._asked.asked,
            pid=self._asked.asked_pid,
            start_ticks=_start_of(self._asked),
            root_pid=self._asked.root,
        )
        tool = Tool(
            __version__, self._plan.knowledge_revision, self._program.version if self._program else None
        )
        pids = [process.pid for process in snapshots[-1].processes] if snapshots else []
        return Capture(tool, target, (host.read_host(_tier(snapshots), pids),), snapshots, gaps)


def _start_of(tree: Tree) -> int | None:
    pid = tree.root if tree.asked_pid is None else tree.asked_pid
    return next((member.start_ticks for member in tree.members if member.pid == pid), None)


def _tier(snapshots: tuple[Snapshot, ...]) -> str | None:
    """What the kernel allowed, judged by what it gave: kernel stacks, system calls, or neither."""
    threads = [
        thread for snapshot in snapshots for process in snapshot.processes for thread in process.threads
    ]
    if not threads:
        return None
    if any(thread.kernel_stack for thread in threads):
        return "root"
    return "attach" if any(thread.syscall for thread in threads) else "none-attach"


def _age_gaps(program: PySpy) -> list[Gap]:
    if not program.is_old:
        return []
    reason = f"py-spy {program.version} at {program.path} is old: it may fail, or leave a target stopped with --native"
    return [Gap("py-spy", "this machine", reason, "pip install -U 'py-spy>=0.4.1'")]


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM acts like Ctrl-C while looks are taken, where nobody else handles it."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
