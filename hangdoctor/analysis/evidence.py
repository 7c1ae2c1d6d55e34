"""The numbered evidence behind a verdict: every sentence of a report points at one of these."""

from __future__ import annotations

from hangdoctor.analysis.describe import name_member, name_stack, name_thread
from hangdoctor.analysis.findings import Suspect
from hangdoctor.analysis.progress import same_stack
from hangdoctor.analysis.recorder import DONE, current_entries
from hangdoctor.analysis.standing import is_dead
from hangdoctor.case import Case, Member, ThreadTrack
from hangdoctor.model import Method, Stack
from hangdoctor.report import Evidence, ProgressClass

_GROUPS = 4
"""Of the process groups of a rank, so many are cited."""


class EvidenceBook:
    """Collects evidence in the order in which it is cited."""

    def __init__(self) -> None:
        self._entries: list[Evidence] = []

    @property
    def entries(self) -> tuple[Evidence, ...]:
        """Everything cited so far."""
        return tuple(self._entries)

    def cite(self, subject: str, source: str, text: str, snapshot: int | None = None) -> str:
        """Add one piece (or find it again) and return its id."""
        for known in self._entries:
            if (known.subject, known.source, known.text, known.snapshot) == (subject, source, text, snapshot):
                return known.id
        entry = Evidence(f"E{len(self._entries) + 1}", subject, snapshot, source, text)
        self._entries.append(entry)
        return entry.id


def cite_suspect(book: EvidenceBook, case: Case, suspect: Suspect) -> tuple[str, ...]:
    """What was seen of a suspect: state, stack over all looks, system call, CPU, progress."""
    member, track = suspect.member, suspect.track
    subject = name_member(member)
    ids = []
    if member.is_gone:
        ids.append(book.cite(subject, "/proc", "present at an earlier look, absent at the last"))
        return tuple(ids)
    if member.last.state in ("T", "t", "Z", "D"):
        ids.append(book.cite(subject, "/proc", f"process state {member.last.state}{_tracer(member)}"))
    if track is not None and not is_dead(member):
        who = f"{subject}, {name_thread(track) or track.tid}"
        ids += _cite_track(book, case, who, track)
    if member.progress.kind in (ProgressClass.PROOF, ProgressClass.WEAK):
        ids.append(
            book.cite(subject, "diff of looks", f"{member.progress.kind.value}: {member.progress.what}")
        )
    elif case.look_count > 1:
        ids.append(
            book.cite(
                subject,
                "diff of looks",
                f"no file, byte, page or compile step moved in {case.window_s:.0f} s",
            )
        )
    for group, entry in list(current_entries(member.last.flight).items())[:_GROUPS]:
        which = "newest collective" if entry.state in DONE else "oldest collective that is not over"
        text = f"group {group}: {which} is #{entry.sequence} {entry.op} ({entry.state or '?'})"
        ids.append(book.cite(subject, "flight recorder", text))
    for child in member.compilers[:4]:
        text = f"child {child.comm} (pid {child.pid}), state {child.state}"
        ids.append(book.cite(subject, "/proc", text))
    return tuple(ids)


def _tracer(member: Member) -> str:
    return f", traced by pid {member.last.tracer_pid}" if member.last.tracer_pid else ""


def _cite_track(book: EvidenceBook, case: Case, who: str, track: ThreadTrack) -> list[str]:
    ids = []
    stack = track.last.thread.stack
    if stack is not None and stack.frames:
        text = f"{_sameness(track, stack)}: {name_stack(stack)}"
        ids.append(book.cite(who, _source_of(stack), text, None if case.look_count > 1 else 0))
    thread = track.last.thread
    if thread.syscall is not None:
        detail = thread.syscall.detail or thread.syscall.name
        ids.append(book.cite(who, "/proc syscall", detail, case.look_count - 1))
    elif thread.wchan and thread.wchan != "0":
        ids.append(book.cite(who, "/proc wchan", thread.wchan, case.look_count - 1))
    cpu = _cpu_text(track)
    if cpu:
        ids.append(book.cite(who, "/proc schedstat", cpu))
    if thread.lock is not None:
        lock = thread.lock
        holder = (
            f"held by thread {lock.owner_tid} ({lock.owner_how})" if lock.owner_tid else "holder not recorded"
        )
        if lock.readers is not None:
            holder = f"held by {lock.readers} readers, who are not recorded"
        ids.append(book.cite(who, "target memory", f"{lock.kind} at {lock.address:#x}, {holder}"))
    if thread.spin is not None:
        text = f"{100 * thread.spin.recurrence:.0f} % of {thread.spin.samples} register samples repeat"
        if thread.spin.pages is not None and thread.spin.new_pages is not None:
            new = f"{100 * thread.spin.new_pages:.0f} % of the later ones into new ones"
            text += f"; they point into {thread.spin.pages} pages, {new}"
        ids.append(book.cite(who, "perf samples", text))
    return ids


def _sameness(track: ThreadTrack, stack: Stack) -> str:
    seen = [view.thread.stack for view in track.views if view is not None and view.thread.stack is not None]
    equal = sum(1 for other in seen if same_stack(other, stack))
    frames = f"{len(stack.frames)} frame{'s' if len(stack.frames) != 1 else ''}"
    if stack.is_torn:
        return f"{frames}, not read whole"
    if len(seen) < 2:
        return f"{frames}, one look"
    return (
        f"same {frames} in {equal} of {len(seen)} looks" if equal > 1 else f"{frames}, changing between looks"
    )


def _cpu_text(track: ThreadTrack) -> str | None:
    parts = []
    share = track.cpu_share
    if share is not None:
        parts.append(f"{100 * share:.0f} % of a core")
    switches = [w.switches for w in track.windows if w.switches is not None]
    if switches:
        parts.append(f"{sum(switches)} voluntary switches in {sum(w.seconds for w in track.windows):.0f} s")
    last_ran = track.last.thread.last_ran_s
    if last_ran is not None and last_ran >= 1:
        parts.append(f"last on a CPU {last_ran:.1f} s ago")
    return ", ".join(parts) or None


def cite_victims(book: EvidenceBook, label: str, victims: tuple[Member, ...]) -> str | None:
    """One line for all that only wait."""
    first = next((m for m in victims if m.lead is not None and m.lead.last.thread.stack is not None), None)
    if first is None or first.lead is None or first.lead.last.thread.stack is None:
        return None
    stack = first.lead.last.thread.stack
    alike = f"{len(victims)} wait, the first in: " if len(victims) > 1 else ""
    return book.cite(label, _source_of(stack), f"{alike}{name_stack(stack, 4)}")


def _source_of(stack: Stack) -> str:
    """A ticket is read by people who do not know our readers."""
    return "target memory" if stack.method is Method.MEMORY else stack.method.value
