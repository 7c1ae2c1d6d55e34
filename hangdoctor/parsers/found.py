"""Everything that the inputs held, before it is put together."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from hangdoctor.model import Gap, Gpu, LogMessage, RasAnswer
from hangdoctor.parsers.findings import Finding, Sighting
from hangdoctor.parsers.labels import Heading
from hangdoctor.parsers.messages import MessageLog

_TAIL_LINES = 200
_MOST_SIGHTINGS = 50_000


@dataclass(slots=True)
class Found:
    """Everything that the inputs held."""

    sightings: list[Sighting] = field(default_factory=list)
    messages: MessageLog = field(default_factory=MessageLog)
    gaps: list[Gap] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    ras: list[RasAnswer] = field(default_factory=list)
    formats: dict[str, None] = field(default_factory=dict)
    """Names of the formats met, in order."""
    count: int = 0
    """How many findings there were."""
    dropped: int = 0
    """Sightings beyond what is kept."""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))

    @property
    def is_full(self) -> bool:
        """Whether more processes were found than are kept."""
        return self.dropped > 0

    def add(self, finding: Finding, format_name: str) -> None:
        """Sort one finding into its place."""
        if not isinstance(finding, Gap):
            self.formats[format_name] = None
            self.count += 1
        if isinstance(finding, Sighting):
            if len(self.sightings) < _MOST_SIGHTINGS:
                self.sightings.append(finding)
            else:
                self.dropped += 1
        elif isinstance(finding, LogMessage):
            self.messages.add(finding)
        elif isinstance(finding, Gap):
            self.gaps.append(finding)
        elif isinstance(finding, Gpu):
            self.gpus.append(finding)
        else:
            self.ras.append(finding)


def name_finding(finding: Finding, heading: Heading | None) -> Finding:
    """A finding with what its heading or file name adds to it."""
    if heading is None:
        return finding
    if isinstance(finding, LogMessage) and finding.process is None and len(heading.labels) == 1:
        return replace(finding, process=heading.labels[0])
    return name_sighting(finding, heading) if isinstance(finding, Sighting) else finding


def name_sighting(finding: Sighting, heading: Heading) -> Sighting:
    """The sighting with whatever it did not say itself."""
    return replace(
        finding,
        labels=finding.labels or heading.labels,
        pid=finding.pid if finding.pid is not None else heading.pid,
        host=finding.host or heading.host,
        command=finding.command or heading.command,
    )
