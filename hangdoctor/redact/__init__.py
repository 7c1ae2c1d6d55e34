"""What must not leave the machine: secrets always, and who and where it is on request.

    redact_capture(capture, knowledge.redaction)               secrets become ***
    redact_capture(capture, knowledge.redaction, strict=True)  and users, hosts and addresses user-1, host-2 …

A secret that stands in one place (a command line) is masked in every other text, too: log, path, thread name. New
names are consistent within a capture, so two ranks on one host are still on one host. Reports are made from redacted
captures and hold nothing else. Function names and source lines are code, not secrets; local variables are never read.
"""

from __future__ import annotations

from typing import TypeVar

from hangdoctor.knowledge.redaction import Redaction
from hangdoctor.model import Capture, Snapshot
from hangdoctor.redact.identities import Pseudonyms
from hangdoctor.redact.secrets import SecretMask
from hangdoctor.redact.walk import map_texts

_T = TypeVar("_T")

__all__ = ["Redactor", "redact_capture", "redacted_kinds"]


class Redactor:
    """Redacts snapshots as they come in, and remembers what it found in earlier ones."""

    def __init__(self, rules: Redaction, *, strict: bool = False) -> None:
        self._secrets = SecretMask(rules)
        self._names = Pseudonyms() if strict else None

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot without what must not leave; secrets of earlier snapshots are known."""
        snapshot = self._masked(snapshot)
        if self._names is None:
            return snapshot
        self._names.learn(snapshot)
        map_texts(snapshot, self._names)
        return map_texts(snapshot, self._names)

    def capture(self, capture: Capture) -> Capture:
        """A whole capture; a secret of the last snapshot is masked in the first, too."""
        capture = self._masked(capture)
        if self._names is None:
            return capture
        self._names.learn_hosts(capture.hosts)
        for snapshot in capture.snapshots:
            self._names.learn(snapshot)
        # As with secrets: a name first met in a log is renamed in the thread names that came before it.
        map_texts(capture, self._names)
        return map_texts(capture, self._names)

    def _masked(self, seen: _T) -> _T:
        """Twice where the first pass learned something: a value is only known as a secret once its flag was read."""
        known = self._secrets.count
        masked = map_texts(seen, self._secrets)
        return masked if self._secrets.count == known else map_texts(seen, self._secrets)


def redact_capture(capture: Capture, rules: Redaction, *, strict: bool = False) -> Capture:
    """`capture` without secrets; with `strict` also without user names, hosts, addresses and home folders."""
    return Redactor(rules, strict=strict).capture(capture)


def redacted_kinds(*, strict: bool = False) -> tuple[str, ...]:
    """What a redacted capture is free of, in words for a report."""
    return ("secrets", "user names", "hosts", "addresses", "home folders") if strict else ("secrets",)
