"""How far each rank came in each process group, by the numbers that NCCL's watchdog and the recorder's files give.

The ranks here show no threads: all that is known of one is the last work it enqueued, the last that completed and
the one that ran out of time. Who enqueued least never issued the work that the others wait for. Where all have
enqueued it, the GPU or the transport of the rank that completed least is where to look; one that is ahead is not
guilty (the root of a broadcast is done early).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.analysis.recorder import DONE, by_group
from hangdoctor.analysis.timers import alarm_of
from hangdoctor.case import Case, Member
from hangdoctor.model import FlightEntry, Method, Rank
from hangdoctor.report import Cause, Confidence, Kind

_EVEN = ("allreduce", "broadcast", "allgatherbase", "reducescatterbase", "barrier")
"""Operations of which all ranks give the same sizes."""
_PAIRED = ("send", "recv", "coalesced", "unknown", "?")
"""Operations that legitimately differ between the ranks of a group at one number."""
_UNNAMED = "?"


@dataclass(frozen=True, slots=True)
class _Count:
    """One rank in one group. ``None``: the text does not say."""

    member: Member
    enqueued: int | None
    completed: int | None
    stuck: FlightEntry | None
    """The work that ran out of time, or was running when the file was written."""


def check(situation: Situation) -> Finding | None:
    """Fires when the counters of ranks without visible threads differ, or work of theirs ran out of time."""
    groups = _count(situation.case)
    if not any(count.stuck for counts in groups.values() for count in counts):
        return None
    finding = next(
        (
            found
            for question in (_mismatch, _never_issued, _silent, _behind)
            for group, counts in sorted(groups.items())
            if group != _UNNAMED and (found := question(group, counts)) is not None
        ),
        None,
    )
    return _dated(situation, finding or _nobody(groups))


def _dated(situation: Situation, finding: Finding) -> Finding:
    """Recorder files may be written at any time; only a time-out says that the work does not end."""
    alarm = alarm_of(situation.case)
    if alarm is not None:
        return replace(finding, because=f"{finding.because} ({alarm.text})", needs_no_second_look=True)
    if finding.cause is Cause.COLLECTIVE_MISMATCH:
        return finding
    return replace(finding, kind=Kind.UNKNOWN, decider="the same counters some seconds later")


def _count(case: Case) -> dict[str, list[_Count]]:
    rows: dict[str, list[_Count]] = defaultdict(list)
    for member in case.ranks:
        if _shows_where_it_stands(member):
            continue
        for group, own in by_group(member.last.flight).items():
            rows[group].append(_read(member, own))
    return rows


def _shows_where_it_stands(member: Member) -> bool:
    if member.lead is None:
        return False
    stack = member.lead.last.thread.stack
    return stack is None or stack.method not in (Method.TRACEBACK, Method.FLIGHT_RECORDER)


def _read(member: Member, entries: Sequence[FlightEntry]) -> _Count:
    done = [e.sequence or 0 for e in entries if e.state in DONE]
    stuck = min((e for e in entries if e.state == "started"), key=lambda e: e.sequence or 0, default=None)
    # A bare time-out says neither what was enqueued after it nor, strictly, that all before it is done; in
    # order on one stream the latter holds.
    reported = bool(done) or any(e.state == "scheduled" for e in entries)
    before = (stuck.sequence or 0) - 1 if stuck is not None else None
    return _Count(
        member=member,
        enqueued=max(e.sequence or 0 for e in entries) if reported else None,
        completed=max(done) if done else before,
        stuck=stuck,
    )


# -- questions to one group ------------------------------------------------------------------------


def _mismatch(group: str, counts: list[_Count]) -> Finding | None:
    """One number, two operations or sizes."""
    at: dict[int, list[tuple[Member, FlightEntry]]] = defaultdict(list)
    for count in counts:
        if count.stuck is not None and _word(count.stuck.op) not in _PAIRED:
            at[count.stuck.sequence or 0].append((count.member, count.stuck))
    for number, rows in sorted(at.items()):
        kinds: dict[str, list[Member]] = defaultdict(list)
        for member, entry in rows:
            kinds[_kind(entry)].append(member)
        if len(kinds) < 2:
            continue
        told = "; ".join(f"{fold_labels(m.label for m in own)} in {kind}" for kind, own in kinds.items())
        fewest = min(len(own) for own in kinds.values())
        is_tied = all(len(own) == fewest for own in kinds.values())
        odd = [m for own in kinds.values() if is_tied or len(own) == fewest for m in own]
        because = f"in group {group} the ranks put different work under number {number}: {told}"
        return _finding(
            Cause.COLLECTIVE_MISMATCH,
            because,
            counts,
            odd,
            Confidence.CERTAIN if is_tied else Confidence.LIKELY,
        )
    return None


def _word(op: str) -> str:
    return op.strip("_").replace("_", "").lower()


def _kind(entry: FlightEntry) -> str:
    if any(word in _word(entry.op) for word in _EVEN):
        return f"{entry.op} of {entry.input_sizes or '?'} → {entry.output_sizes or '?'}"
    return entry.op


def _never_issued(group: str, counts: list[_Count]) -> Finding | None:
    """Ranks whose last enqueued work comes before the one that the others wait in."""
    stuck = [c.stuck.sequence or 0 for c in counts if c.stuck is not None]
    awaited = max(stuck, default=0)
    short = [c for c in counts if c.enqueued is not None and c.enqueued < awaited]
    if not short or len(short) == len(counts):
        return None
    least = min(c.enqueued or 0 for c in short)
    guilty = [c.member for c in short if c.enqueued == least]
    labels = fold_labels(m.label for m in guilty)
    because = (
        f"{labels} enqueued nothing after #{least} in group {group}, and never issued #{least + 1}, which the others "
        "wait in: look for another branch, or for what they wait for elsewhere (another group, another backend)"
    )
    return _finding(Cause.COLLECTIVE_MISMATCH, because, counts, guilty, Confidence.LIKELY)


def _silent(group: str, counts: list[_Count]) -> Finding | None:
    """The sizes tell how many ranks the group has, and exactly one of them has reported nothing."""
    world = _world(counts)
    labels = [c.member.rank.global_rank for c in counts if c.member.rank is not None]
    if world is None or len(counts) != world - 1 or any(n is None or n >= world for n in labels):
        return None
    silent = next(n for n in range(world) if n not in labels)
    told = f"rank {silent} of the {world} in group {group} did not report a time-out"
    because = f"{told}; {_progress(counts)}. It waits elsewhere, or it is gone"
    found = _finding(Cause.LAGGARD, because, counts, [], Confidence.POSSIBLE)
    return replace(found, absent=(Rank(global_rank=silent),))


def _behind(group: str, counts: list[_Count]) -> Finding | None:
    """All have enqueued the work; the GPUs have not come equally far."""
    completed = {c.completed for c in counts}
    if len(counts) < 2 or None in completed or len(completed) < 2:
        return None
    least = min(c.completed or 0 for c in counts)
    guilty = [c.member for c in counts if c.completed == least]
    labels = fold_labels(m.label for m in guilty)
    because = (
        f"{labels} completed nothing after #{least} in group {group}, the others came further ({_progress(counts)}): "
        "look at the GPU and the transport there"
    )
    return _finding(Cause.LAGGARD, because + _unheard(counts), counts, guilty, Confidence.LIKELY)


def _nobody(groups: dict[str, list[_Count]]) -> Finding:
    """Nobody is behind, or it cannot be compared."""
    counts = [c for own in groups.values() for c in own]
    known = {group for group in groups if group != _UNNAMED}
    labels = fold_labels(dict.fromkeys(c.member.label for c in counts))
    if len(known) > 1 and len({c.member.key for c in counts}) > 1:
        told = "; ".join(
            f"group {group}: {fold_labels(c.member.label for c in own)} in {_stuck_at(own)}"
            for group, own in sorted(groups.items())
        )
        because = f"two groups or more wait at once, perhaps for each other ({told})"
        return _finding(Cause.COLLECTIVE_MISMATCH, because, counts, [], Confidence.POSSIBLE)
    if len({c.member.key for c in counts}) < 2:
        because = f"{labels} waits in {_stuck_at(counts)} for ranks that did not report: look at the others"
        return _finding(Cause.MISSING_PEER, because, counts, [], Confidence.LIKELY)
    if known != set(groups) and len({c.completed for c in counts}) > 1:
        because = f"{labels} stand at different numbers, and the text does not say of which group: nobody can be named"
        return _finding(Cause.MISSING_PEER, because, counts, [], Confidence.LIKELY)
    because = f"{labels} are all equally far, in {_stuck_at(counts)}: their counters name nobody"
    return _finding(Cause.ALL_IN_COLLECTIVE, because + _unheard(counts), counts, [], Confidence.LIKELY)


# -- words -----------------------------------------------------------------------------------------


def _stuck_at(counts: list[_Count]) -> str:
    stuck = next((c.stuck for c in counts if c.stuck is not None), None)
    return f"{stuck.op} #{stuck.sequence}" if stuck is not None else "a collective"


def _progress(counts: list[_Count]) -> str:
    by_number: dict[int, list[str]] = defaultdict(list)
    for count in counts:
        by_number[count.completed or 0].append(count.member.label)
    return ", ".join(f"{fold_labels(who)} completed #{number}" for number, who in sorted(by_number.items()))


def _unheard(counts: list[_Count]) -> str:
    """Which ranks of the group said nothing, as far as sizes or numbers tell."""
    numbers = [c.member.rank.global_rank for c in counts if c.member.rank is not None]
    heard = [n for n in numbers if n is not None]
    world = _world(counts)
    if world is None or len(counts) >= world:
        return ""
    if len(heard) == len(counts) and max(heard) < world:
        return f"; rank {', '.join(str(n) for n in range(world) if n not in heard)} did not report"
    return f"; {world - len(counts)} of {world} ranks did not report"


def _world(counts: list[_Count]) -> int | None:
    """How many ranks a group has: a gather makes its output, a scatter its input, that many times larger."""
    for count in counts:
        entry = count.stuck
        sizes = (entry.input_sizes, entry.output_sizes) if entry is not None else (None, None)
        if entry is None or not all(size is not None and size.isdigit() and int(size) for size in sizes):
            continue
        small, large = sorted(int(size or 0) for size in sizes)
        is_sized = any(word in _word(entry.op) for word in ("allgather", "reducescatter"))
        if is_sized and large > small and large % small == 0:
            return large // small
    return None


def _finding(
    cause: Cause, because: str, counts: list[_Count], guilty: list[Member], confidence: Confidence
) -> Finding:
    waiting = tuple({c.member.key: c.member for c in counts if c.member not in guilty}.values())
    suspects = tuple(Suspect(m, m.lead) for m in guilty)
    return Finding(Kind.HUNG, confidence, cause, because, suspects, waiting=waiting)


RULE = Rule(
    id="counters",
    order=36,
    summary="The counters of NCCL's watchdog or of recorder files say which rank is behind in a process group.",
    refuted_by="the counters being read at different times: a rank may have gone on after it reported",
    check=check,
)
