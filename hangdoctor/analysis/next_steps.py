"""What to do now, for each cause: the one or two commands worth typing."""

from __future__ import annotations

from hangdoctor.analysis.describe import name_member
from hangdoctor.analysis.findings import Finding, Situation, Suspect
from hangdoctor.report import Cause, Kind, NextStep


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
        steps += _slow(finding, pid)
    elif finding.kind is Kind.HUNG and suspect is not None:
        steps += _hung(finding, suspect)
    if finding.kind is Kind.HUNG and pid and situation.case.capture.origin == "live":
        steps.append(
            NextStep(
                "Before you restart, keep this report and its bundle: they are all that is left afterwards.",
                None,
            )
        )
    return tuple(steps[:4])


def _slow(finding: Finding, pid: int | None) -> list[NextStep]:
    eta = finding.progress.eta_s if finding.progress else None
    wait = (
        f"about {eta / 60:.0f} min more"
        if eta and eta >= 90
        else f"about {eta:.0f} s more"
        if eta
        else "a while"
    )
    command = f"hangdoctor attach {pid} --interval 30" if pid else None
    return [NextStep(f"Do not kill it: give it {wait}, then look again.", command)]


def _hung(finding: Finding, suspect: Suspect) -> list[NextStep]:
    who, pid = name_member(suspect.member), suspect.member.pid
    steps: dict[Cause, NextStep] = {
        Cause.STOPPED_PROCESS: _continue(suspect),
        Cause.DEAD_PROCESS: NextStep(
            f"Find out why {who} died: its exit status, its last log lines, an out-of-memory kill.",
            f"dmesg -T | grep -iE 'killed process {pid}|out of memory|Xid'",
        ),
        Cause.LOCK_CYCLE: NextStep(
            "Fix the order in which the named threads take their locks; restart the job."
        ),
        Cause.LOCK_HELD: NextStep(
            f"Look at the other threads of {who}: one of them holds the lock.",
            f"py-spy dump --nonblocking --pid {pid}",
        ),
        Cause.GIL_HELD: NextStep(
            f"See the native code that holds the GIL in {who} (this pauses it for a second).",
            f"py-spy dump --native --pid {pid}",
        ),
        Cause.LAGGARD: NextStep(
            f"Look at what {who} does in the named frame; the others are only its victims."
        ),
        Cause.COLLECTIVE_MISMATCH: NextStep(
            "Compare the callers of the two collectives: one rank took another branch (a flag, a shape, an early exit)."
        ),
        Cause.ALL_IN_COLLECTIVE: NextStep(
            "All ranks are there, so suspect the transport: rerun with NCCL_DEBUG=INFO, then with NCCL_P2P_DISABLE=1 "
            "or NCCL_IB_DISABLE=1, one at a time."
        ),
        Cause.MISSING_PEER: NextStep(
            "Check that every rank uses the same master address and port, and that all hosts are started and reachable."
        ),
        Cause.GPU_STUCK: NextStep(
            "Look for driver errors, and at which kernel runs on that GPU.",
            "dmesg -T | grep -i xid; nvidia-smi -q -d PERFORMANCE,POWER,UTILIZATION",
        ),
        Cause.IO_STUCK: NextStep(
            "Check the file system behind the file (NFS, FUSE, a full or failing disk).",
            f"cat /proc/{pid}/stack; mount | grep -E 'nfs|fuse|lustre|ceph'",
        ),
        Cause.STALE_LOCK_FILE: NextStep(
            "If no build runs anywhere (other hosts that share the cache included), remove the lock file and restart."
        ),
        Cause.CHILD_STUCK: NextStep(
            f"Look at the children of {who}.", f"ps --forest -o pid,stat,wchan,args -g {pid}"
        ),
        Cause.SPIN: NextStep(f"See what {who} spins on.", f"py-spy dump --native --pid {pid}"),
    }
    step = steps.get(finding.cause) if finding.cause else None
    return [step] if step else []


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
