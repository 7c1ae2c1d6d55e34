"""Every rank stands in the same collective or rendezvous and nothing moves: all came, the data does not."""

from __future__ import annotations

from hangdoctor.analysis.charges import LEAST_STILLNESS_S
from hangdoctor.analysis.describe import name_frame, name_member
from hangdoctor.analysis.findings import Finding, Rule, Situation, Suspect
from hangdoctor.analysis.folding import fold_labels
from hangdoctor.analysis.standing import collective_name, in_collective, is_idle, is_settled
from hangdoctor.case import Case, Member
from hangdoctor.knowledge.catalogue import Phase
from hangdoctor.model import Activity
from hangdoctor.report import Cause, Confidence, Kind


def check(situation: Situation) -> Finding | None:
    """Fires when all ranks are in one wait for each other over all looks, and none is missing here."""
    case = situation.case
    ranks = case.ranks
    if not ranks or not all(is_settled(m.lead) and not is_idle(m) for m in ranks):
        return None
    if all(in_collective(m) for m in ranks) and len({collective_name(m) for m in ranks}) == 1:
        if len(ranks) == 1 and case.expected_world is None:
            return _alone(case, ranks[0], f"in {collective_name(ranks[0])}")
        return _statement(case, ranks, Cause.ALL_IN_COLLECTIVE, f"in {collective_name(ranks[0])}")
    if all(_is_meeting(m) for m in ranks):
        if len(ranks) == 1 and case.expected_world is None:
            return _alone(case, ranks[0], _meeting(ranks[0]))
        title = ranks[0].aspect.title if ranks[0].aspect else "meeting"
        which = "the same" if len(ranks) > 1 else "a"
        return _statement(case, ranks, Cause.MISSING_PEER, f"in {which} rendezvous ({title})")
    return None


def _is_meeting(member: Member) -> bool:
    """Waiting for peers outside collectives. Serving phases meet peers too, but computing in one is no meeting."""
    phases = [p for p in (member.aspect, member.phase) if p is not None]
    lead = member.lead
    return (
        lead is not None
        and lead.last.activity is Activity.WAIT_PEER
        and any(p.waits_for == "peers" and p.server != "python" for p in phases)
    )


def _meeting(member: Member) -> str:
    return member.aspect.title if member.aspect else "meeting its peers"


def _alone(case: Case, member: Member, where: str) -> Finding:
    """One process, and none of those that it waits for: whoever is to blame, it is not the one seen."""
    frame = f" ({name_frame(member.frame)})" if member.frame is not None else ""
    because = f"{name_member(member)} is {where}{frame} and waits for peers that were not seen"
    is_long = case.look_count > 1 and case.window_s >= max(LEAST_STILLNESS_S, _budget((member,)))
    return Finding(
        Kind.HUNG if is_long else Kind.UNKNOWN,
        Confidence.POSSIBLE,
        Cause.MISSING_PEER,
        because,
        decider="what the other ranks do: dump them, too",
        command="hangdoctor attach {pid}",
        waiting=(member,),
    )


def _incomplete(because: str, missing: int, suspects: tuple[Suspect, ...]) -> Finding:
    """Everybody here waits, and somebody is elsewhere: the one who is late may be there."""
    others = "1 more rank is" if missing == 1 else f"{missing} more ranks are"
    elsewhere = (
        "the rank elsewhere does: look at its host"
        if missing == 1
        else f"the {missing} ranks elsewhere do: look at their hosts"
    )
    return Finding(
        Kind.UNKNOWN,
        Confidence.POSSIBLE,
        Cause.MISSING_PEER,
        f"{because}; {others} expected and not seen here",
        suspects,
        decider=f"what {elsewhere} too",
    )


def _statement(case: Case, ranks: tuple[Member, ...], cause: Cause, where: str) -> Finding:
    labels = fold_labels(m.label for m in ranks)
    missing = (case.expected_world or 0) - len(ranks)
    suspects = tuple(Suspect(m, m.lead) for m in ranks)
    because = f"{labels} are all {where} and none of them moves"
    if len(ranks) == 1:
        because = f"{labels} is {where} and does not move"
    if missing > 0:
        return _incomplete(because, missing, suspects)
    if case.look_count < 2 or case.window_s < LEAST_STILLNESS_S:
        return Finding(
            Kind.UNKNOWN,
            Confidence.POSSIBLE,
            cause,
            because,
            suspects if case.look_count > 1 else (),
            decider="a second look, some seconds later",
            waiting=ranks,
        )
    if _may_take_long(ranks) and case.window_s < _budget(ranks):
        return Finding(
            Kind.UNKNOWN,
            Confidence.POSSIBLE,
            Cause.INITIALIZING_NCCL,
            f"{because} ({case.window_s:.0f} s; {_budget(ranks):.0f} s are not unusual)",
            suspects,
            decider="whether they are still there beyond that time",
            command=f"hangdoctor attach {{pid}} --interval {_budget(ranks):.0f}",
        )
    # All members of a gloo or TCP meeting are there: it ends within a second, or never.
    confidence = Confidence.LIKELY if cause is Cause.MISSING_PEER else Confidence.POSSIBLE
    if case.window_s >= _budget(ranks):
        confidence = Confidence.LIKELY
    return Finding(Kind.HUNG, confidence, cause, because, suspects)


def _phases(ranks: tuple[Member, ...]) -> list[Phase]:
    return [p for m in ranks for p in (m.aspect, m.phase) if p is not None]


def _may_take_long(ranks: tuple[Member, ...]) -> bool:
    """Communicator creation legitimately takes up to a minute on many GPUs, with every rank inside."""
    return any(p.cause == Cause.INITIALIZING_NCCL.value for p in _phases(ranks))


def _budget(ranks: tuple[Member, ...]) -> float:
    return max((p.budget_s or 0.0 for p in _phases(ranks)), default=0.0)


RULE = Rule(
    id="all-in-collective",
    order=45,
    summary="All ranks wait for each other in the same place: transport, a missing host, or different instances.",
    refuted_by="any rank leaving the collective, or the missing rank joining from another host",
    check=check,
)
