"""Ask the rules in order, then put the first answer into words with its culprits, victims and evidence."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hangdoctor.analysis.chains import tell_chain
from hangdoctor.analysis.charges import SLOW_CAUSES
from hangdoctor.analysis.describe import doing, name_member, name_thread
from hangdoctor.analysis.edges import find_edges
from hangdoctor.analysis.evidence import EvidenceBook, cite_suspect, cite_victims
from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.analysis.gpu import read_gpu_snapshots
from hangdoctor.analysis.log_moves import LogMove, log_progress
from hangdoctor.analysis.rules import all_rules
from hangdoctor.analysis.standing import is_dead, is_stopped
from hangdoctor.analysis.suspects import find_suspects
from hangdoctor.analysis.timers import alarm_of
from hangdoctor.analysis.waits import Node, build_graph
from hangdoctor.case import Case, Key, Member, ThreadTrack, naming_frame
from hangdoctor.knowledge import Knowledge
from hangdoctor.model import Rank
from hangdoctor.report import Confidence, Culprit, Kind, Verdict, Victim

_MOST_CULPRITS = 8
_REFUTES_SLOW = "the same numbers, lines and build steps again in a longer look"


def assess(case: Case, knowledge: Knowledge) -> Situation:
    """Everything the rules look at."""
    graph = build_graph(find_edges(case))
    suspects, is_waited_for = find_suspects(case, graph)
    snapshots = case.capture.snapshots
    return Situation(
        case, graph, suspects, is_waited_for, _read_log(case, knowledge), read_gpu_snapshots(snapshots)
    )


def _read_log(case: Case, knowledge: Knowledge) -> LogMove:
    """What the log did, and which phase its newest line speaks of."""
    move = log_progress(case.capture.snapshots)
    message = knowledge.read_log_line(move.text, case.server) if move.text else None
    phase = knowledge.phases.get(message.fields.get("phase", "")) if message is not None else None
    return replace(move, cause=phase.cause) if phase is not None else move


def decide(situation: Situation) -> tuple[Rule, Finding, tuple[tuple[Rule, Finding], ...]]:
    """The first rule that speaks, and the others that would have spoken too."""
    spoken = [(rule, finding) for rule in all_rules() if (finding := rule.check(situation)) is not None]
    (rule, finding), *others = spoken
    return rule, _hardened(situation, finding), tuple(others)


def _hardened(situation: Situation, finding: Finding) -> Finding:
    """What one look leaves open is a hang all the same when a timer of the job has run out meanwhile."""
    alarm = alarm_of(situation.case) if finding.kind is Kind.UNKNOWN else None
    if alarm is None or situation.case.look_count > 1 or finding.cause in SLOW_CAUSES:
        return finding
    because = f"{finding.because}; {alarm.text}"
    return replace(finding, kind=Kind.HUNG, because=because, needs_no_second_look=True)


def write_verdict(situation: Situation, book: EvidenceBook) -> tuple[Verdict, Finding]:
    """The verdict in words. Evidence is added to ``book`` in the order it is cited."""
    rule, finding, others = decide(situation)
    culprits = tuple(_culprit(situation, book, s) for s in finding.suspects[:_MOST_CULPRITS])
    culprits += tuple(_absentee(rank) for rank in finding.absent[: _MOST_CULPRITS - len(culprits)])
    victims = _victims(situation, finding)
    if victims:
        cite_victims(book, fold_labels(m.label for m in victims), victims)
    chain = tell_chain(situation, finding) if victims else None
    if chain is not None:
        book.cite("who waits for whom", "wait-for graph", chain)
    confidence = finding.confidence
    if finding.kind is Kind.HUNG and situation.case.look_count < 2 and not _needs_one_look(finding):
        confidence = Confidence.POSSIBLE
    verdict = Verdict(
        kind=finding.kind,
        confidence=confidence,
        cause=finding.cause,
        summary=summarize(finding, victims),
        culprits=culprits,
        victims=_victim_rows(situation, victims),
        progress=finding.progress,
        refuted_by=(_REFUTES_SLOW if finding.kind is Kind.SLOW else rule.refuted_by,),
        alternatives=tuple(
            f"{f.kind.value} ({f.confidence.value}): {summarize(f, ())}"
            for r, f in others
            if r.id != "undecided" and not _is_about_the_same(f, finding)
        ),
        rule=rule.id,
    )
    return verdict, finding


def _is_about_the_same(other: Finding, finding: Finding) -> bool:
    """A second rule that accuses the same processes of the same, or of part of it, is no alternative."""
    accused = {s.member.key for s in finding.suspects}
    return other.kind is finding.kind and {s.member.key for s in other.suspects} <= accused


def _needs_one_look(finding: Finding) -> bool:
    if finding.needs_no_second_look:
        return True
    return all(is_stopped(s.member) or is_dead(s.member) for s in finding.suspects)


def summarize(finding: Finding, victims: tuple[Member, ...]) -> str:
    """One sentence: who does what, why that decides, who waits."""
    suspects = finding.suspects
    if not suspects or finding.because.startswith(fold_labels(s.member.label for s in suspects)):
        text = finding.because[:1].upper() + finding.because[1:]
    elif len(suspects) == 1:
        text = (
            f"{name_member(suspects[0].member)} {_thread(suspects[0])}{doing(suspects[0])}: {finding.because}"
        )
    elif len({s.member.key for s in suspects}) == 1:
        text = f"{name_member(suspects[0].member)}: {finding.because}"
    else:
        text = (
            f"{fold_labels(s.member.label for s in suspects)} {_doing_together(suspects)}: {finding.because}"
        )
    if victims and (suspects or finding.absent):
        verb = "waits" if len(victims) == 1 else "wait"
        whom = "it" if len({s.member.key for s in suspects}) + len(finding.absent) == 1 else "them"
        text += f"; {fold_labels(m.label for m in victims)} {verb} for {whom}"
    return text


def _thread(suspect: Suspect) -> str:
    """Names the thread when it is not the one that speaks for its process."""
    track = suspect.track
    if track is None or (track is suspect.member.lead and _is_main(suspect.member, track)):
        return ""
    return f"thread {name_thread(track)} "


def _is_main(member: Member, track: ThreadTrack) -> bool:
    name = track.last.thread.name
    return name in (None, "MainThread") or track.tid == member.pid


def _doing_together(suspects: tuple[Suspect, ...]) -> str:
    """What several suspects have in common, as a clause after their names."""
    phases = {s.member.phase.title for s in suspects if s.member.phase is not None}
    if len(phases) == 1:
        return f"are {phases.pop()}"
    frames = {s.member.frame.function for s in suspects if s.member.frame is not None}
    return f"are in {frames.pop()}" if len(frames) == 1 else "hold things up"


def _victims(situation: Situation, finding: Finding) -> tuple[Member, ...]:
    """Members that reach a culprit along wait edges; supervisors after ranks."""
    guilty = {s.member.key for s in finding.suspects}
    nodes: list[Node] = []
    for suspect in finding.suspects:
        nodes += situation.graph.waiters_on(suspect.node)
    keys = ({node.key for node in nodes} | {m.key for m in finding.waiting}) - guilty
    found = [m for m in situation.case.members if m.key in keys]
    return tuple(sorted(found, key=lambda m: (m.kind.value != "rank", m.label)))


def _culprit(situation: Situation, book: EvidenceBook, suspect: Suspect) -> Culprit:
    member, track = suspect.member, suspect.track
    view = track.last if track else None
    return Culprit(
        pid=member.last.known_pid,
        tid=track.tid if track else None,
        thread=name_thread(track),
        role=member.role.id,
        rank=member.rank,
        phase=view.match.phase.id if view and view.match else None,
        frame=naming_frame(view) if view else None,
        doing=doing(suspect),
        evidence=cite_suspect(book, situation.case, suspect),
        stack=view.thread.stack.frames if view and view.thread.stack else (),
        host=member.key.host,
    )


def _absentee(rank: Rank) -> Culprit:
    return Culprit(None, None, None, None, rank, None, None, "was not seen")


def _victim_rows(situation: Situation, victims: tuple[Member, ...]) -> tuple[Victim, ...]:
    pids: dict[Key, dict[int, None]] = defaultdict(dict)
    for edge in situation.graph.edges:
        holder = edge.holder.key if edge.holder is not None else None
        if holder is not None and holder != edge.waiter.key and holder.pid > 0:
            pids[edge.waiter.key][holder.pid] = None
    return tuple(
        Victim(
            pid=member.last.known_pid,
            role=member.role.id,
            rank=member.rank,
            waits_for=tuple(pids[member.key]),
            phase=member.phase.id if member.phase else None,
            frame=member.frame,
            host=member.key.host,
        )
        for member in victims
    )
