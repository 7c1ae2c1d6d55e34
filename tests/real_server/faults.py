"""The faults that a running server gets over, and what must be said of each. Shared by both kinds of collectives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hangdoctor.report import Kind
from tests.expectations import Expectation
from tests.real_server.judging import Truth, attach_and_judge
from tests.real_server.server import Request, Server


@dataclass(frozen=True, slots=True)
class Bug:
    """One of the plugin's bugs: the truth, the causes that are right, the frames that a person would blame."""

    truth: str
    causes: tuple[str, ...]
    functions: frozenset[str] = frozenset()
    kinds: tuple[Kind, ...] = (Kind.HUNG,)


BUGS = {
    # The thread that keeps the lock is to blame; where the holder cannot be read, the line that waits for it.
    "lock": Bug(
        "worker 1 waits in execute_model for a Python lock that its thread page-flusher never gives back",
        ("lock-held",),
        frozenset({"reserve_page", "flush_dirty_pages"}),
    ),
    "sleep": Bug(
        "worker 1 waits in execute_model for a remote page that never comes",
        ("laggard",),
        frozenset({"fetch_remote_page"}),
    ),
    "gil": Bug(
        "worker 1 sits in a C call inside execute_model and keeps the interpreter lock",
        ("gil-held",),
        frozenset({"call_copy_engine"}),
    ),
    "nogil": Bug(
        "worker 1 sits in a C call inside execute_model, without the interpreter lock",
        ("laggard",),
        frozenset({"wait_copy_engine"}),
    ),
    "spin": Bug(
        "worker 1 loops for ever inside execute_model",
        ("spin", "laggard"),
        frozenset({"scan_free_list"}),
        # Ten seconds of the same line at full speed are what a long computation looks like too.
        (Kind.HUNG, Kind.UNKNOWN),
    ),
    "layer": Bug(
        "worker 1 sleeps in the middle of the forward pass, in a layer's MLP",
        ("laggard",),
        frozenset({"fetch_remote_page"}),
    ),
    "desync": Bug(
        "worker 1 skipped the step: it waits for the next one, and worker 0 waits for it in the collective",
        ("laggard",),
    ),
}


def check_bug(server: Server, bug: str, note: str, folder: Path, *, suffix: str = "") -> None:
    """Wedge worker 1, attach, let it go: the right answer, and then the right tokens."""
    usual = server.ask().tokens()
    expected = Expectation(
        truth=BUGS[bug].truth,
        note=note,
        kinds=BUGS[bug].kinds,
        culprits=frozenset((server.worker(1),)),
        rank="TP1",
        causes=BUGS[bug].causes,
    )
    with server.suffering(bug, rank=1) as request:
        check(server, request, Truth(f"{bug}{suffix}", expected, BUGS[bug].functions), folder)
    assert request.tokens() == usual, "the step goes on as if nothing had been"


def check_stopped(server: Server, pid: int, truth: Truth, folder: Path) -> None:
    """Stop one process, send a request, attach, continue."""
    usual = server.ask().tokens()
    with server.stopped(pid) as request:
        check(server, request, truth, folder)
    assert request.tokens() == usual


def check(server: Server, request: Request, truth: Truth, folder: Path) -> None:
    """The answer is right although /health says 200 before and after."""
    assert server.is_healthy()
    attach_and_judge(server.pid, truth, folder)
    assert request.is_pending
    assert server.is_healthy()


def stopped(name: str, who: str, pid: int, rank: str | None, note: str) -> Truth:
    """What must be said of a process that was stopped."""
    return Truth(
        name,
        Expectation(
            truth=f"{who} was stopped with SIGSTOP, then a request came",
            note=note,
            kinds=(Kind.HUNG,),
            culprits=frozenset((pid,)),
            rank=rank,
            causes=("stopped-process",),
        ),
    )
