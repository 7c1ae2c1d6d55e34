"""What to do now, for each cause: the one or two commands worth typing."""

from __future__ import annotations

from hangdoctor.analysis.describe import name_member
from hangdoctor.analysis.findings import Finding, Situation, Suspect
from hangdoctor.report import Cause, Kind, NextStep

_HUNG: dict[Cause, tuple[str, str | None]] = {
    Cause.DEAD_PROCESS: (
        "Find out why {who} died: its exit status, its last log lines, an out-of-memory kill.",
        "dmesg -T | grep -iE 'killed process|out of memory|Xid'",
    ),
    Cause.LOCK_CYCLE: ("Fix the order in which the named threads take their locks; restart the job.", None),
    Cause.LOCK_HELD: (
        "Look at the threads of {who}: one of them holds the lock.",
        "py-spy dump --nonblocking --pid {pid}",
    ),
    Cause.GIL_HELD: (
        "See the native code that holds the GIL in {who} (this pauses it for a second).",
        "py-spy dump --native --pid {pid}",
    ),
    Cause.LAGGARD: ("Look at what {who} does in the named frame; the others are only its victims.", None),
    Cause.COLLECTIVE_MISMATCH: (
        "Compare the callers of the two collectives: one rank took another branch (a flag, a shape, an early exit).",
        None,
    ),
    Cause.ALL_IN_COLLECTIVE: (
        "All ranks are there, so suspect the transport: rerun with NCCL_DEBUG=INFO, then with NCCL_P2P_DISABLE=1 "
        "or NCCL_IB_DISABLE=1, one at a time.",
        None,
    ),
    Cause.MISSING_PEER: (
        "Check that every rank uses the same master address and port, and that all hosts are started and reachable.",
        None,
    ),
    Cause.GPU_STUCK: (
        "Look for driver errors, and at what runs on that GPU.",
        "dmesg -T | grep -i xid; nvidia-smi -q -d PERFORMANCE,POWER,UTILIZATION",
    ),
    Cause.IO_STUCK: (
        "Check the file system behind the file (NFS, FUSE, a full or failing disk).",
        "cat /proc/{pid}/stack; mount | grep -E 'nfs|fuse|lustre|ceph'",
    ),
    Cause.STALE_LOCK_FILE: (
        "If no build runs anywhere (other hosts that share the cache included), remove the lock file and restart.",
        None,
    ),
    Cause.CHILD_STUCK: ("Look at the children of {who}.", "ps -o pid,stat,wchan:20,args --ppid {pid}"),
    Cause.SPIN: (
        "See what {who} spins on (this pauses it for a second).",
        "py-spy dump --native --pid {pid}",
    ),
}


def next_steps(situation: Situation, finding: Finding) -> tuple[NextStep, ...]:
    """At most four steps, the most useful first."""
    steps: list[NextStep] = []
    target = situation.case.capture.target
    pid = target.root_pid or target.pid
    suspect = finding.suspects[0] if finding.suspects else None
    if finding.decider:
        command = finding.command.format(pid=pid) if finding.command and pid else None
        steps.append(NextStep(f"What would decide: {finding.decider}.", command))
    if finding.kind is Kind.SLOW:
        steps.append(_slow(finding, pid))
    elif finding.kind is Kind.HUNG and suspect is not None:
        steps += _hung(finding, suspect)
    if finding.kind is Kind.HUNG and pid and situation.case.capture.origin == "live":
        steps.append(
            NextStep(
                "Before you restart, keep this report and its bundle: they are all that is left afterwards."
            )
        )
    return tuple(steps[:4])


def _slow(finding: Finding, pid: int | None) -> NextStep:
    eta = finding.progress.eta_s if finding.progress else None
    wait = "a while"
    if eta:
        wait = f"about {eta / 60:.0f} min more" if eta >= 90 else f"about {eta:.0f} s more"
    command = f"hangdoctor attach {pid} --interval 30" if pid else None
    return NextStep(f"Do not kill it: give it {wait}, then look again.", command)


def _hung(finding: Finding, suspect: Suspect) -> list[NextStep]:
    if finding.cause is Cause.STOPPED_PROCESS:
        return [_continue(suspect)]
    if finding.cause is None or finding.cause not in _HUNG:
        return []
    text, command = _HUNG[finding.cause]
    who, pid = name_member(suspect.member), suspect.member.pid
    is_usable = command is not None and (suspect.member.last.known_pid is not None or "{pid}" not in command)
    return [NextStep(text.format(who=who), command.format(pid=pid) if command and is_usable else None)]


def _continue(suspect: Suspect) -> NextStep:
    member = suspect.member
    if member.last.tracer_pid:
        return NextStep(
            f"{name_member(member)} is held by pid {member.last.tracer_pid}: end that debugger.",
            f"ps -o pid,args -p {member.last.tracer_pid}",
        )
    return NextStep(
        f"Find out who stopped {name_member(member)}, then let it run on.", f"kill -CONT {member.pid}"
    )
