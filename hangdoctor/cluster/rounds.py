"""All hosts at once through ClusterShell's task, and the moment at which they begin together.

Fan-out, time-outs of commands, trees of gateways and the choice of a worker are ClusterShell's. What is added is the
meeting: every host prepares as far as it can (connects, unpacks, finds its processes), says that it is ready, and is
told a moment a little ahead, by its own clock. Whoever is not ready in time is left behind.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangdoctor.cluster.answers import Answer, explain_silence, trouble
from hangdoctor.cluster.hosts import Via, load
from hangdoctor.cluster.parcel import parcels_for
from hangdoctor.cluster.talks import Talk, Writer, program, script
from hangdoctor.errors import HangdoctorError

LEAD_S = 0.15
"""Between the last "ready" and the start: a line to every host must have arrived by then."""
LINGER_S = 1.0
"""For a connection whose far end has said everything."""


@dataclass(frozen=True, slots=True)
class Errand:
    """What every host is asked for."""

    words: Callable[[str, str | None], Sequence[str]]
    """The command line for a host, given the address at which the job meets (once it is known)."""
    waits_for_start: bool
    first: str | None = None
    """The host that has to find the target before the others can look for the rest of it."""
    work_s: float = 60.0
    """How long the program may take there from the start on."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for hosts, in seconds, and how many to ask at once."""

    connect_s: float = 10.0
    ready_s: float = 20.0
    fanout: int | None = None
    """``None``: all at once, for looks are to be taken at the same time."""


def ask_hosts(
    hosts: Sequence[str],
    via: Via,
    errand: Errand,
    patience: Patience,
    *,
    python: str | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Answer, ...]:
    """Ask every host, in the order of ``hosts``; a host that fails costs its own answer and bounded time only.

    Raises HangdoctorError without ClusterShell and for a template it cannot read; KeyboardInterrupt passes through
    after all connections are cut (the far ends then remove what they were sent).
    """
    a_round = _Round(hosts, errand, patience, tell)
    a_round.run(via, python)
    return tuple(talk.answer() for talk in a_round.talks)


class _Round:
    """One errand to all hosts."""

    def __init__(
        self, hosts: Sequence[str], errand: Errand, patience: Patience, tell: Callable[[str], None]
    ) -> None:
        self._mark = f"@{secrets.token_hex(6)}"
        self._errand = errand
        self._patience = patience
        self._tell = tell
        self._meeting: str | None = None
        self._task: Any = None
        self.talks = [Talk(host, self._mark, self) for host in hosts]

    def run(self, via: Via, python: str | None) -> None:
        self._task = task = _new_task(via, self._patience, len(self.talks))
        limit = self._patience.connect_s + self._patience.ready_s + self._errand.work_s
        command = via.command(script(self._mark, python))
        worker_error = load("Worker.Worker").WorkerError
        is_tree = via.name == "ssh" and _has_tree(task)
        # Below a gateway all hosts hear what is written (ClusterShell 1.10 has one standard input a gateway), and
        # nobody can be left behind alone; without gateways each host has a connection of its own.
        groups = [self.talks] if is_tree else [[talk] for talk in self.talks]
        handler = _make_handler(limit)
        try:
            for talks in groups:
                nodes = ",".join(talk.host for talk in talks)
                worker = task.shell(
                    command,
                    nodes=nodes,
                    handler=handler(self, talks),
                    timeout=limit,
                    stderr=True,
                    tree=is_tree,
                )
                worker.write(program(self._mark))
                writer = _Party(worker, talks) if is_tree else worker
                delivered: set[str] = set()
                for talk in talks:
                    talk.open(writer, delivered)
            task.resume()
        except worker_error as error:
            raise HangdoctorError(
                f"--via {via.words}: {error}", hint="%h is the host; any other % is written %%"
            ) from error
        except BaseException:
            task.abort(kill=True)
            raise

    # -- the meeting -----------------------------------------------------------------------------------

    def picked_up(self, talk: Talk) -> None:
        """Its command was started now; later than others' where the fan-out is narrow."""
        talk.begin()
        self._after(self._patience.connect_s + 2.0, lambda: self._give_up_silent(talk))
        self._after(self._patience.ready_s + self._patience.connect_s, lambda: self._give_up_unready(talk))

    def introduced(self, talk: Talk) -> None:
        """Order at once, unless it must first be known what to look for."""
        version = str((talk.hello or {}).get("python") or "0")
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < (3, 10):
            remedy = "--remote-python PYTHON names another one; 3.10 or newer is needed"
            talk.fail(trouble(talk.host, f"its Python is {version}", remedy))
        elif self._errand.first in (None, talk.host) or self._meeting is not None or self._is_first_over():
            self._order(talk)

    def _order(self, talk: Talk) -> None:
        hello = talk.hello or {}
        has = hello.get("has")
        try:
            parcels = parcels_for(
                str(has) if has else None, bool(hello.get("py_spy")), str(hello.get("machine") or "")
            )
        except HangdoctorError as error:
            talk.fail(trouble(talk.host, error.message, error.hint))
            return
        if self._errand.first not in (None, talk.host) and self._meeting is None:
            remedy = (
                "say what to look for on every host: --name PATTERN, --port N or --rendezvous ADDRESS:PORT"
            )
            reason = f"what to look for is not known: host {self._errand.first} gave no address at which the job meets"
            talk.fail(trouble(talk.host, reason, remedy))
            return
        talk.order(
            self._errand.words(talk.host, self._meeting),
            parcels,
            self._errand.work_s + self._patience.ready_s,
        )

    def came_ready(self, talk: Talk) -> None:
        """The first one's address sets the others going; the last one's readiness starts them all."""
        if talk.host == self._errand.first:
            address = (talk.ready or {}).get("rendezvous")
            self._meeting = str(address) if address else None
            self._order_waiting()
        self._start_if_all_are_ready()

    def ended(self, talk: Talk) -> None:
        """One less to wait for."""
        if talk.host == self._errand.first:
            self._order_waiting()
        self._start_if_all_are_ready()
        self._after(LINGER_S, talk.cut)

    def _is_first_over(self) -> bool:
        return any(
            talk.host == self._errand.first and (talk.ready is not None or not talk.is_open)
            for talk in self.talks
        )

    def _order_waiting(self) -> None:
        for talk in self.talks:
            if talk.is_open and talk.hello is not None and talk.clock is not None and not talk.is_ordered:
                self._order(talk)

    def _start_if_all_are_ready(self) -> None:
        """Of those that were begun: with a narrow fan-out the next wave starts for itself."""
        if not self._errand.waits_for_start:
            return
        begun = [talk for talk in self.talks if talk.is_open and talk.began_at is not None]
        waiting = [talk for talk in begun if talk.start_at is None]
        if not waiting or any(talk.ready is None for talk in waiting):
            return
        slowest = max((talk.clock.uncertainty_s for talk in waiting if talk.clock), default=0.0)
        moment = time.time() + LEAD_S + 2 * slowest
        self._tell(f"{len(waiting)} of {len(self.talks)} hosts are ready and begin together")
        for talk in waiting:
            talk.start(moment)

    def _give_up_silent(self, talk: Talk) -> None:
        if talk.is_open and talk.hello is None:
            talk.fail(explain_silence(talk.host, self._patience.connect_s + 2.0, has_answered=False))

    def _give_up_unready(self, talk: Talk) -> None:
        if talk.is_open and self._errand.waits_for_start and talk.ready is None:
            seconds = self._patience.ready_s + self._patience.connect_s
            talk.fail(explain_silence(talk.host, seconds, has_answered=True))

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._task.timer(seconds, handler=_make_timer(action), autoclose=True)


def _new_task(via: Via, patience: Patience, count: int) -> Any:
    """ClusterShell's task of this thread, set up as asked. Its own files (defaults.conf, topology.conf) hold."""
    task = load("Task").task_self()
    task.set_info("fanout", patience.fanout or max(count, 1))
    task.set_info("connect_timeout", patience.connect_s)
    task.set_default("stdout_msgtree", False)
    task.set_default("stderr_msgtree", False)
    name = "Ssh" if via.name == "ssh" else "Exec"
    task.set_default("distant_worker", load(f"Worker.{name}").WORKER_CLASS)
    if via.name == "ssh" and via.options:
        task.set_info("ssh_options", via.options)
    return task


def _has_tree(task: Any) -> bool:
    """Whether ClusterShell's topology.conf lays out gateways. Raises HangdoctorError for one that cannot be read."""
    files = [path for path in task.TOPOLOGY_CONFIGS if Path(path).exists()]
    try:
        if task.topology is None and files:
            task.load_topology(files[-1])
    except load("Topology").TopologyError as error:
        hint = "CLUSTERSHELL_CFGDIR names another folder for it"
        raise HangdoctorError(f"{files[-1]} cannot be read: {error}", hint=hint) from error
    return task.topology is not None and bool(task.default("auto_tree"))


class _Party:
    """The one connection of many talks: it ends when all of them have."""

    def __init__(self, worker: Writer, talks: Sequence[Talk]) -> None:
        self._worker = worker
        self._talks = talks

    def write(self, buf: bytes) -> None:
        self._worker.write(buf)

    def set_write_eof(self) -> None:
        if not any(talk.is_open for talk in self._talks):
            self._worker.set_write_eof()

    def abort(self) -> None:
        if not any(talk.is_open for talk in self._talks):
            self._worker.abort()


def _make_handler(limit: float) -> Callable[[_Round, Sequence[Talk]], object]:
    """ClusterShell's event handler for some talks; a class made here, for its base may not be installed."""
    base: Any = load("Event").EventHandler

    class Handler(base):  # type: ignore[misc]
        def __init__(self, a_round: _Round, talks: Sequence[Talk]) -> None:
            self._round = a_round
            self._talks = {talk.host: talk for talk in talks}

        def ev_pickup(self, worker: object, node: str) -> None:
            if node in self._talks:  # a gateway's own connection is none of ours
                self._round.picked_up(self._talks[node])

        def ev_read(self, worker: object, node: str, sname: str, msg: bytes) -> None:
            talk = self._talks.get(node)
            if talk is not None and talk.is_open:
                talk.hear(msg, is_error=sname == "stderr")

        def ev_hup(self, worker: object, node: str, rc: int | None) -> None:
            talk = self._talks.get(node)
            if talk is not None:
                talk.left_with(rc)
                talk.hang_up(timed_out=False, seconds=limit)

        def ev_close(self, worker: object, timedout: bool) -> None:
            for talk in self._talks.values():
                talk.hang_up(timed_out=timedout, seconds=limit)

    return Handler


def _make_timer(action: Callable[[], None]) -> object:
    base: Any = load("Event").EventHandler

    class Timer(base):  # type: ignore[misc]
        def ev_timer(self, timer: object) -> None:
            action()

    return Timer()
