"""From inputs to one capture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

from hangdoctor import __version__, bundle
from hangdoctor.errors import HangdoctorError, UnreadableInput
from hangdoctor.model import Capture, Gap, Host, LogTail, Snapshot, Target, Tool
from hangdoctor.parsers.assemble import assemble
from hangdoctor.parsers.cutter import Cutter
from hangdoctor.parsers.findings import Where
from hangdoctor.parsers.found import Found, name_finding, name_sighting
from hangdoctor.parsers.frame_text import FrameTable
from hangdoctor.parsers.labels import heading_of_file
from hangdoctor.parsers.log_lines import LogKnowledge
from hangdoctor.parsers.merge import merge_captures
from hangdoctor.parsers.registry import BinaryFormat, formats
from hangdoctor.parsers.source import MOST_BYTES, Source, decode, find_sources, inflate

_SHOWN_FILES = 4


def read_files(paths: Sequence[str], knowledge: LogKnowledge | None = None) -> Capture:
    """One capture of everything in the files: dumps and logs of one job, or bundles (one a host).

    ``-`` is standard input; a folder stands for all files below it. Files of which nothing can be read become gaps;
    raises UnreadableInput when that is true of all of them.
    """
    reading = _Reading(knowledge)
    for source in find_sources(paths):
        if isinstance(source, UnreadableInput):
            reading.refuse(source)
        else:
            reading.take(source)
    return reading.capture(paths)


def read_text(text: str, name: str = "pasted text", knowledge: LogKnowledge | None = None) -> Capture:
    """The capture in one text; never raises for what it contains. Without any evidence it has no processes."""
    reading = _Reading(knowledge)
    reading.take_text(text, name)
    return reading.assembled((name,))


def describe_formats() -> tuple[tuple[str, str], ...]:
    """Name and summary of every format that is read."""
    rows = {form.name: form.summary for form in formats()}
    rows["server log"] = "lines of SGLang, vLLM and torch logs that say something about a hang"
    rows["hangdoctor bundle"] = "what hangdoctor itself saved; several are merged, one a host"
    return tuple(sorted(rows.items()))


class _Reading:
    """Everything read so far."""

    def __init__(self, knowledge: LogKnowledge | None) -> None:
        self._knowledge = knowledge
        self._found, self._frames = Found(), FrameTable()
        self._bundles: list[Capture] = []
        self._shared = bundle.Shared()
        self._errors: list[HangdoctorError] = []
        self._logs: list[LogTail] = []
        self._unknown: list[str] = []
        self._idle_gaps: list[Gap] = []
        """Of files that held nothing: in a folder there are hundreds."""

    def refuse(self, error: HangdoctorError) -> None:
        """Remember an input that could not be read."""
        self._errors.append(error)

    def take(self, source: Source) -> None:
        """Read one file of any kind."""
        data = source.data
        if bundle.looks_like_bundle(data[:4096]):
            try:
                self._bundles.append(bundle.read(io.BytesIO(data), shared=self._shared))
            except UnreadableInput as error:
                self.refuse(error)
            return
        if source.is_cut:
            self._gap(source.name, f"larger than {MOST_BYTES // 1_000_000} MB; the rest was not read")
        data = inflate(data)
        if not data:
            self.refuse(UnreadableInput(f"{source.name} is empty or damaged"))
            return
        for form in formats():
            if isinstance(form, BinaryFormat) and form.magic.match(data):
                heading = heading_of_file(source.name)
                for finding in form.read(data, Where(source.name)):
                    self._found.add(name_finding(finding, heading), form.name)
                return
        if _is_binary(data):
            self.refuse(UnreadableInput(f"{source.name} is neither text nor a format that is known"))
            return
        text = decode(data)
        del data
        self.take_text(text, source.name)

    def take_text(self, text: str, name: str) -> None:
        """Read one text."""
        self._found.tail.clear()
        first, count, gaps = len(self._found.sightings), self._found.count, len(self._found.gaps)
        Cutter(name, self._found, self._frames, self._knowledge).read(text)
        self._name_by_file(name, first)
        if self._found.count == count:
            self._unknown.append(name)
            self._idle_gaps.extend(self._found.gaps[gaps:])
            del self._found.gaps[gaps:]
        if self._found.tail:
            self._logs.append(LogTail(name, len(text), None, tuple(self._found.tail)))

    def _name_by_file(self, name: str, first: int) -> None:
        """``rank3.txt`` names the process in it, unless there are several."""
        heading = heading_of_file(name)
        sightings = self._found.sightings
        if heading is None:
            return
        pids = {s.pid for s in sightings[first:] if s.pid is not None}
        labels = {s.labels for s in sightings[first:] if s.labels}
        if len(pids) > 1 or len(labels) > 1:
            heading = replace(heading, labels=(), pid=None)
        sightings[first:] = [name_sighting(s, heading) for s in sightings[first:]]

    def _gap(self, subject: str, reason: str, remedy: str | None = None) -> None:
        self._found.gaps.append(Gap("parser", subject, reason, remedy))

    # -- result ------------------------------------------------------------------------------------

    def capture(self, paths: Sequence[str]) -> Capture:
        """What all inputs together hold; raises UnreadableInput when that is nothing at all."""
        is_empty = not self._found.formats
        if is_empty and not self._bundles:
            raise self._nothing(paths)
        for error in self._errors[:_SHOWN_FILES]:
            self._gap("input", error.message, error.hint)
        if len(self._errors) > _SHOWN_FILES:
            self._gap("input", f"{len(self._errors) - _SHOWN_FILES} more files could not be read")
        captures = list(self._bundles)
        if not is_empty:
            captures.append(self.assembled(paths))
        elif self._found.gaps:
            captures[0] = replace(captures[0], gaps=(*captures[0].gaps, *self._found.gaps))
        return merge_captures(captures) if len(captures) > 1 else captures[0]

    def assembled(self, paths: Sequence[str]) -> Capture:
        """The capture of everything but bundles."""
        found = self._found
        snapshots = assemble(found.sightings)
        # What logs and nvidia-smi say reaches up to the last look.
        last = replace(
            snapshots[-1],
            gpus=tuple(found.gpus),
            ras=tuple(found.ras),
            logs=tuple(self._logs),
            messages=found.messages.messages(),
        )
        if found.dropped:
            self._gap(_names(paths), f"{found.dropped:,} more processes than are kept")
        if self._frames.is_full:
            self._gap(_names(paths), "more different frames than any dump has; the rest was not read")
        if self._unknown:
            what = "holds" if len(self._unknown) == 1 else f"({len(self._unknown)} files) hold"
            self._gap(
                _names(self._unknown), f"{what} nothing that was recognised as a dump or a server's log"
            )
        if len(self._unknown) <= _SHOWN_FILES:
            found.gaps.extend(self._idle_gaps)
        return Capture(
            tool=Tool(__version__),
            target=Target(asked=_names(paths)),
            hosts=_hosts(snapshots),
            snapshots=(*snapshots[:-1], last),
            gaps=tuple(found.gaps),
            origin=", ".join(found.formats) or "nothing recognised",
        )

    def _nothing(self, paths: Sequence[str]) -> UnreadableInput:
        if len(self._errors) == 1 and len(paths) == 1:
            only = self._errors[0]
            return UnreadableInput(only.message, hint=only.hint)
        reasons = [error.message for error in self._errors[:_SHOWN_FILES]]
        reasons += [
            f"{gap.subject}: {gap.reason}" for gap in (*self._found.gaps, *self._idle_gaps)[:_SHOWN_FILES]
        ]
        detail = f" ({'; '.join(reasons)})" if reasons else ""
        return UnreadableInput(
            f"nothing in {_names(paths)} could be read{detail}",
            hint="`hangdoctor list formats` names what is read; py-spy dump --pid PID gives the best input",
        )


def _names(paths: Sequence[str]) -> str:
    shown = ["standard input" if path == "-" else path for path in paths[:_SHOWN_FILES]]
    more = f" and {len(paths) - _SHOWN_FILES} more" if len(paths) > _SHOWN_FILES else ""
    return ", ".join(shown) + more


def _hosts(snapshots: Sequence[Snapshot]) -> tuple[Host, ...]:
    names = dict.fromkeys(p.host for s in snapshots for p in s.processes if p.host)
    return tuple(Host(name) for name in names)


def _is_binary(data: bytes) -> bool:
    head = data[:8192]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return False
    # Terminal recordings hold a few control characters; NULs in number mean no text.
    return head.count(0) > len(head) // 100
