"""Which jobs the demo can start and what the right answer to each is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hangdoctor.report import Cause, Kind

WORLD_SIZE = 4
CULPRIT = 2
"""Neither the first nor the last rank, so that a lucky default does not look like a diagnosis."""


class Backend(str, Enum):
    """What the ranks of a demo job meet in."""

    GLOO = "gloo"
    """``torch.distributed`` on the CPU."""
    BARRIER = "barrier"
    """``multiprocessing.Barrier``: needs nothing but Python."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One stuck, slow or idle job and the verdict it deserves."""

    name: str
    title: str
    kind: Kind
    cause: Cause
    culprit: int | None = CULPRIT
    """The rank that holds the others up; ``None`` where nobody does."""


DEFAULT_SCENARIO = "laggard"

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "laggard",
            "one rank waits for a file that never comes, the others wait for it in a collective",
            Kind.HUNG,
            Cause.LAGGARD,
        ),
        Scenario(
            "deadlock",
            "two threads of one rank took two locks in opposite order",
            Kind.HUNG,
            Cause.LOCK_CYCLE,
        ),
        Scenario(
            "gil",
            "one rank sleeps in C code and keeps the GIL",
            Kind.HUNG,
            Cause.GIL_HELD,
        ),
        Scenario(
            "stopped",
            "one rank was stopped by a signal",
            Kind.HUNG,
            Cause.STOPPED_PROCESS,
        ),
        Scenario(
            "dead",
            "one rank was killed, the others wait for it to join",
            Kind.HUNG,
            Cause.DEAD_PROCESS,
        ),
        Scenario(
            "slow-load",
            "one rank reads its weights from slow storage: not hung",
            Kind.SLOW,
            Cause.LOADING,
        ),
        Scenario(
            "dequantize",
            "one rank unpacks 4-bit weights on the CPU without a word: not hung",
            Kind.SLOW,
            Cause.DEQUANTIZING,
        ),
        Scenario(
            "compile",
            "one rank compiles kernels, the others wait for its lock file: not hung",
            Kind.SLOW,
            Cause.COMPILING,
        ),
        Scenario(
            "idle",
            "every rank waits for requests: healthy",
            Kind.READY,
            Cause.IDLE,
            culprit=None,
        ),
    )
}
