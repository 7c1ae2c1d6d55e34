"""What watching keeps on disk: the last looks in one bundle, and a folder a report. Both bounded, both always whole."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hangdoctor import bundle
from hangdoctor.errors import HangdoctorError
from hangdoctor.model import Capture, Snapshot
from hangdoctor.redact import Redactor
from hangdoctor.render import RENDERERS, RenderOptions
from hangdoctor.report import Report
from hangdoctor.watching.triggers import Reason

ROLLING = "watch.hang"
MOST_REPORTS = 20
_PART = ".part"


@dataclass(frozen=True, slots=True)
class Filed:
    """A report on disk."""

    folder: Path

    @property
    def report(self) -> Path:
        return self.folder / "report.md"

    @property
    def bundle(self) -> Path:
        return self.folder / "capture.hang"


class Store:
    """The folder of one watch."""

    def __init__(self, folder: Path, keep: int, redactor: Redactor) -> None:
        """Raises HangdoctorError when the folder cannot be made."""
        self.folder = folder
        self._keep = keep
        self._redactor = redactor
        self._writer: bundle.BundleWriter | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for left in folder.glob(f"*{_PART}"):
                shutil.rmtree(left, ignore_errors=True)
        except OSError as error:
            raise HangdoctorError(
                f"{folder} cannot be made: {error.strerror}", hint="name another folder with -o DIR"
            ) from error

    @property
    def rolling(self) -> Path:
        """The bundle of the last looks."""
        return self.folder / ROLLING

    def begin(self, head: Capture) -> None:
        """Make a bundle without looks. Raises HangdoctorError when it cannot be written."""
        head = self._redactor.capture(replace(head, snapshots=()))
        self._writer = bundle.BundleWriter(
            self.rolling, tool=head.tool, target=head.target, hosts=head.hosts, keep=self._keep
        )
        self._writer.open()

    def add(self, snapshot: Snapshot) -> None:
        """Keep one more look (redacted already) and forget the oldest beyond the limit. Raises HangdoctorError."""
        assert self._writer is not None
        self._writer.add(snapshot)

    def file(self, capture: Capture, report: Report, reason: Reason) -> Filed:
        """Write a report with its capture (redacted already) and the looks before it. Raises HangdoctorError."""
        folder = self._free_name(reason)
        part = folder.with_name(folder.name + _PART)
        filed = Filed(folder)
        try:
            part.mkdir(mode=0o700)
            bundle.write(capture, part / filed.bundle.name)
            with suppress(FileNotFoundError):
                # The rolling bundle is replaced, never written in place: a second name keeps it as it is.
                _link(self.rolling, part / "before.hang")
            # The folder may be somebody's home, which a strict report does not name.
            shown = filed.bundle.name if "home folders" in report.redacted else str(filed.bundle)
            for name, file in (("json", "report.json"), ("markdown", filed.report.name)):
                text = RENDERERS[name].render(replace(report, bundle=shown), RenderOptions())
                (part / file).write_text(text, encoding="utf-8")
            part.rename(folder)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise HangdoctorError(f"{folder} cannot be written: {error.strerror}") from error
        self._prune()
        return filed

    def _free_name(self, reason: Reason) -> Path:
        stem = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{reason.value}"
        names = [stem, *(f"{stem}-{number:03}" for number in range(2, 1000))]
        return next(path for name in names if not (path := self.folder / name).exists())

    def _prune(self) -> None:
        """The first report shows how it began and is kept; after it the newest are."""
        filed = sorted(self.folder.glob("*/report.md"), key=lambda path: path.stat().st_mtime_ns)
        for old in filed[1 : 1 - MOST_REPORTS]:
            shutil.rmtree(old.parent, ignore_errors=True)

    def size_bytes(self) -> int:
        """Everything in the folder."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # file systems without hard links
        shutil.copyfile(source, target)


def hook_environment(filed: Filed, report: Report, reason: Reason, text: str) -> Mapping[str, str]:
    """What the user's command is told."""
    verdict = report.verdict
    return {
        "HANGDOCTOR_REPORT": str(filed.report.absolute()),
        "HANGDOCTOR_BUNDLE": str(filed.bundle.absolute()),
        "HANGDOCTOR_VERDICT": verdict.kind.value,
        "HANGDOCTOR_CAUSE": verdict.cause.value if verdict.cause else "",
        "HANGDOCTOR_TRIGGER": reason.value,
        "HANGDOCTOR_SUMMARY": f"{text}: {verdict.summary}".replace("\0", ""),
    }
