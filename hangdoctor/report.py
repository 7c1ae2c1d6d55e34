"""The nouns of a diagnosis: everything a renderer may read, and nothing it would have to look up.

The shapes follow the JSON report ``hangdoctor.report/1`` (docs/report.md). Every sentence that makes a claim
names the evidence it rests on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from hangdoctor.model import Frame, Gap, Rank

SCHEMA = "hangdoctor.report/1"


class Kind(str, Enum):
    """The answer."""

    HUNG = "hung"
    SLOW = "slow"
    READY = "ready"
    UNKNOWN = "unknown"


class Confidence(str, Enum):
    """How sure; every rule says what would refute it."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Strength(str, Enum):
    """How sure a wait edge is; a path is as strong as its weakest edge."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


class ProgressClass(str, Enum):
    """The strongest kind of movement seen; never a sum (DESIGN.md section 5)."""

    PROOF = "proof"
    WEAK = "weak"
    ACTIVITY = "activity"
    NONE = "none"


class Cause(str, Enum):
    """Why. The ids are part of the contract; more may be added."""

    LOCK_CYCLE = "lock-cycle"
    LOCK_HELD = "lock-held"
    GIL_HELD = "gil-held"
    LAGGARD = "laggard"
    COLLECTIVE_MISMATCH = "collective-mismatch"
    MISSING_PEER = "missing-peer"
    STOPPED_PROCESS = "stopped-process"
    DEAD_PROCESS = "dead-process"
    GPU_STUCK = "gpu-stuck"
    ALL_IN_COLLECTIVE = "all-in-collective"
    SPIN = "spin"
    IO_STUCK = "io-stuck"
    STALE_LOCK_FILE = "stale-lock-file"
    CHILD_STUCK = "child-stuck"
    LOADING = "loading"
    DEQUANTIZING = "dequantizing"
    COMPILING = "compiling"
    CAPTURING_GRAPHS = "capturing-graphs"
    ALLOCATING_KV_CACHE = "allocating-kv-cache"
    INITIALIZING_NCCL = "initializing-nccl"
    WARMING_UP = "warming-up"
    IDLE = "idle"
    SERVING = "serving"
    IMPORTING = "importing"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A pointer into the capture, with the words or numbers seen there."""

    id: str
    subject: str
    """``TP1 pid 4902 thread 4902`` …"""
    snapshot: int | None
    """Index of the look; ``None`` when it spans several."""
    source: str
    """``py-spy --nonblocking``, ``/proc``, ``nvml`` …"""
    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What moved between looks, strongest class first."""

    kind: ProgressClass
    what: str | None = None
    """``read 41 % of model-00012-of-00061.safetensors``"""
    rate: float | None = None
    unit: str | None = None
    """Unit of ``rate``: ``bytes/s``, ``steps/s`` …"""
    percent: float | None = None
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """One counter of a process over the looks, for charts."""

    name: str
    """``weights loaded``, ``CPU time`` …; equal for all processes, so that they can be laid over each other."""
    kind: ProgressClass
    """What a rise of it shows; never proof for CPU time or power."""
    unit: str
    """``%``, ``bytes``, ``s``, ``W`` or ``collectives``."""
    values: tuple[float | None, ...]
    """One per look; ``None`` where it could not be read. CPU time and bytes read count from the first look on."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The process (and thread) that everything else waits for."""

    pid: int | None
    tid: int | None
    thread: str | None
    role: str | None
    rank: Rank | None
    phase: str | None
    frame: Frame | None
    doing: str
    evidence: tuple[str, ...] = ()
    stack: tuple[Frame, ...] = ()
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that only waits."""

    pid: int | None
    role: str | None
    rank: Rank | None
    waits_for: tuple[int, ...]
    phase: str | None
    frame: Frame | None
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision, what it rests on, and what would overturn it."""

    kind: Kind
    confidence: Confidence
    cause: Cause | None
    summary: str
    culprits: tuple[Culprit, ...] = ()
    victims: tuple[Victim, ...] = ()
    progress: Progress | None = None
    refuted_by: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    rule: str | None = None
    """Id of the rule that decided (``hangdoctor explain``)."""


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """One thread as shown in details."""

    tid: int | None
    name: str | None
    state: str | None
    activity: str | None
    phase: str | None
    stack: tuple[Frame, ...]
    cpu_percent: float | None = None
    is_machinery: bool = False
    waits_on: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process of the job at the last look."""

    pid: int
    role: str | None
    rank: Rank | None
    state: str | None
    phase: str | None
    frame: Frame | None
    progress: Progress | None
    activity: str | None = None
    cpu_percent: float | None = None
    gpu: tuple[Mapping[str, float | int | str | None], ...] = ()
    threads: tuple[ThreadRow, ...] = ()
    host: str | None = None
    command: str | None = None
    phases: tuple[str | None, ...] = ()
    """The phase at each look, oldest first."""
    title: str | None = None
    """What it calls itself (setproctitle): ``sglang::scheduler_TP1``; then ``command`` is that, too."""
    series: tuple[Series, ...] = ()
    """Its counters over the looks, those that can prove progress first."""


@dataclass(frozen=True, slots=True)
class Group:
    """Processes that look alike (an equivalence class), most interesting first."""

    ranks: tuple[str, ...]
    label: str
    """Folded: ``TP0,2-7``."""
    phase: str | None
    stack: tuple[Frame, ...]
    count: int
    moved: bool | None = None
    frame: Frame | None = None
    """The frame that names what they do; usually not the innermost."""


@dataclass(frozen=True, slots=True)
class Party:
    """One end of a wait."""

    pid: int | None
    tid: int | None = None
    label: str | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """An edge of the wait-for graph."""

    waiter: Party
    holder: Party | None
    """``None``: waits for something outside what was seen."""
    reason: str
    object: str | None
    strength: Strength


@dataclass(frozen=True, slots=True)
class NcclEnv:
    """Communication environment over all ranks."""

    common: Mapping[str, str] = field(default_factory=dict)
    differs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Variable -> rank label -> value."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do now."""

    text: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """When the looks were taken and what they cost the target."""

    snapshots: tuple[float | None, ...] = ()
    """Unix times."""
    skew_s: float | None = None
    """Largest spread between ranks within one look."""
    wall_s: float | None = None
    target_paused_s: float | None = None
    clocks: Mapping[str, float] = field(default_factory=dict)
    """How far each host's clock is ahead of that of the machine which asked them all, in seconds."""
    start_skew_s: float | None = None
    """Between the first and the last host's beginning of its first look, by one clock."""


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What was diagnosed."""

    pid: int | None
    host: str | None
    server: str | None
    server_version: str | None
    started_at: float | None
    command: str | None
    world_size: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogLine:
    """The line of the target's logs that says most: a failure that nothing has overtaken, else the last that is no
    statistics."""

    text: str
    age_s: float | None
    """Before the last look; at least, for a line without a time of its own."""
    is_failure: bool
    is_newest: bool
    newest: str
    """The newest line of that log."""
    newest_age_s: float | None = None
    path: str | None = None
    """Of that log, where there are several."""
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The diagnosis, complete."""

    tool_version: str
    knowledge: str | None
    target: TargetInfo
    verdict: Verdict
    processes: tuple[ProcessRow, ...] = ()
    groups: tuple[Group, ...] = ()
    waits: tuple[Wait, ...] = ()
    nccl_env: NcclEnv = field(default_factory=NcclEnv)
    evidence: tuple[Evidence, ...] = ()
    gaps: tuple[Gap, ...] = ()
    next_steps: tuple[NextStep, ...] = ()
    matches: tuple[str, ...] = ()
    """Known hang signatures that fit; hints, never proof."""
    log_tail: tuple[str, ...] = ()
    """The last lines of the log that was written last."""
    log_line: LogLine | None = None
    timings: Timings = field(default_factory=Timings)
    bundle: str | None = None
    """Where the capture was saved."""
    redacted: tuple[str, ...] = ()
    """What was masked before the diagnosis: ``secrets``, ``user names``, ``hosts`` …"""
