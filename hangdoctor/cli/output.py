"""Where a report goes, and what the stream there can show."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from hangdoctor.cli.exit_codes import CANNOT_TELL, DONE, HUNG
from hangdoctor.cli.options import ReportChoice
from hangdoctor.cli.streams import silence_stdout
from hangdoctor.errors import HangdoctorError, WrongUsage
from hangdoctor.render import RENDERERS, RenderOptions
from hangdoctor.render._issue import issue_command
from hangdoctor.render._wording import to_ascii
from hangdoctor.report import Kind, Report

_CODES = {Kind.HUNG: HUNG, Kind.UNKNOWN: CANNOT_TELL}


def exit_code(report: Report) -> int:
    """3 for hung, 4 for cannot tell, 0 otherwise."""
    return _CODES.get(report.verdict.kind, DONE)


def refuse_overwriting(path: str | None, *, force: bool) -> None:
    """Raise WrongUsage when `path` is there already: before the work, not after it."""
    if path not in (None, "-") and not force and Path(path).is_file():
        raise WrongUsage(f"{path} is there already", hint="--force overwrites it")


def write_report(report: Report, choice: ReportChoice) -> None:
    """Render and write. A file appears only when it is complete; raises HangdoctorError when it cannot be written."""
    name = _format(choice)
    renderer = RENDERERS[name]
    is_stdout = choice.output in (None, "-")
    options = (
        _options(name, choice, sys.stdout, os.environ) if is_stdout else RenderOptions(detail=choice.detail)
    )
    try:
        text = renderer.render(report, options)
    except ImportError as error:
        raise HangdoctorError(
            f"--format {name} needs {error.name}, which is not installed",
            hint=f"pip install {error.name}, or take another form: -f markdown, -f json",
        ) from error
    if is_stdout:
        _print(text)
    else:
        write_file(Path(choice.output or ""), text.encode())


def print_issue_command(
    report: Report, choice: ReportChoice, sources: Sequence[str], *, strict: bool
) -> None:
    """Print the command that opens an issue; its text comes from the file just written, else from ``sources``.

    Raises HangdoctorError where there is neither: the capture could not be saved.
    """
    body = choice.output if choice.is_file and _format(choice) == "markdown" else None
    if body is None and not sources:
        raise HangdoctorError("the capture was not saved, so no issue can be made of it", hint="-o report.md")
    words = [*sources, *(["--redact", "strict"] if strict else []), *(["--detail"] if choice.detail else [])]
    command = issue_command(report, body, words)
    _print(to_ascii(command) if is_ascii_only(sys.stdout) else command)


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()  # `| head` has seen enough; the verdict still decides on the exit code.
    except OSError as error:
        silence_stdout()
        raise HangdoctorError(f"the report could not be written: {error.strerror}", hint="-o FILE") from error


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file or none. What is no regular file (/dev/stderr, a FIFO) is written in place."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            # A report is meant to be passed on: the permissions that any new file would get, not mkstemp's 0600.
            mask = os.umask(0)
            os.umask(mask)
            temporary.chmod(0o666 & ~mask)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise HangdoctorError(
            f"{path} could not be written: {error.strerror}",
            hint="name another place with -o FILE, or '-o -'",
        ) from error


def _format(choice: ReportChoice) -> str:
    if choice.json:
        return "json"
    if choice.format is not None:
        return choice.format
    if choice.output in (None, "-"):
        return "terminal"
    # The longest extension that fits: x.speedscope.json is no report in JSON.
    path = (choice.output or "").lower()
    fitting = [name for name in RENDERERS if path.endswith(f".{RENDERERS[name].extension}")]
    return max(fitting, key=lambda name: len(RENDERERS[name].extension), default="terminal")


def _options(name: str, choice: ReportChoice, stream: TextIO, environ: Mapping[str, str]) -> RenderOptions:
    return RenderOptions(
        width=page_width(stream, environ),
        color=name == "terminal" and not choice.no_color and wants_color(stream, environ),
        detail=choice.detail,
        ascii=is_ascii_only(stream),
    )


def page_width(stream: TextIO, environ: Mapping[str, str]) -> int:
    """Columns of the terminal; 80 where there is none, unless COLUMNS says otherwise."""
    if stream.isatty() or environ.get("COLUMNS"):
        return shutil.get_terminal_size().columns
    return 80


def wants_color(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """NO_COLOR forbids (no-color.org), FORCE_COLOR demands, else a terminal that is not dumb."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and environ.get("TERM") != "dumb"


def is_ascii_only(stream: TextIO) -> bool:
    """Whether the stream's encoding lacks arrows, bars and the letters of the world."""
    try:
        "─▶█é模".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False
