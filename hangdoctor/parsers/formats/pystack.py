"""``pystack remote`` and ``pystack core``: outermost frame first, Python and C frames told apart."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoctor.model import Frame, Method, Stack, Thread
from hangdoctor.parsers.findings import Finding, Sighting
from hangdoctor.parsers.registry import BlockFormat, Opening

_HEADER = re.compile(
    r"Traceback for thread (?P<tid>\d{1,10})(?: \((?P<comm>[^)]*)\))? \[(?P<status>[^\]]*)\]"
)
_FRAME = re.compile(
    r"\((?P<kind>Python|C)\) File \"(?P<file>[^\"]*)\", line (?P<line>\d{1,9}), in (?P<function>.+?)"
    r"(?: \((?P<library>/[^()]*|\?\?\?|[^() ]+\.so[^() ]*)\))?$"
)
_CORE = re.compile(r"pid: (?P<pid>\d+) ppid: (?P<ppid>\d+)")


class PystackReader:
    """Reads the threads of one process; code lines, arguments and locals are passed over."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._threads: list[Thread] = []
        self._header: re.Match[str] | None = None
        self._frames: list[Frame] = []
        self._pid: int | None = None
        self._ppid: int | None = None

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the dump."""
        body = text.strip()
        if not body:
            return True
        if body.startswith("Traceback for thread "):
            self._end_thread()
            self._header = _HEADER.match(body)
            return self._header is not None
        core = _CORE.search(body)
        if core is not None and not self._threads:
            self._pid, self._ppid = int(core["pid"]), int(core["ppid"])
            return True
        if self._header is None:
            return body.startswith(("Using executable", "Core file information", "The process died"))
        found = _FRAME.match(body)
        if found is not None:
            self._frames.append(_frame(found))
            return True
        # Code, "Arguments:", "Locals:" and their values are indented below a frame.
        return text.startswith("      ")

    def _end_thread(self) -> None:
        if self._header is None:
            return
        frames = tuple(reversed(self._frames))
        root = next((frame for frame in reversed(frames) if not frame.is_native), None)
        tid = int(self._header["tid"])
        is_main = tid == self._pid or (root is not None and root.function == "<module>")
        self._threads.append(
            Thread(
                tid=tid,
                name="MainThread" if is_main else None,
                comm=self._header["comm"],
                stack=Stack(frames, Method.PYSTACK) if frames else None,
                owns_gil="Has the GIL" in self._header["status"] or None,
            )
        )
        self._header, self._frames = None, []

    def close(self) -> Iterable[Finding]:
        """One sighting. The main thread's number is the pid; it is printed last and its root is module code."""
        self._end_thread()
        if not self._threads and self._pid is None:
            return
        main = next((t.tid for t in self._threads if t.name == "MainThread"), None)
        yield Sighting(
            source="pystack",
            where=self._opening.where,
            pid=self._pid if self._pid is not None else (main or self._opening.pid),
            ppid=self._ppid,
            labels=self._opening.labels,
            host=self._opening.host,
            taken_at=self._opening.taken_at,
            command=self._opening.command,
            threads=tuple(sorted(self._threads, key=lambda t: t.name != "MainThread")),
        )


def _frame(found: re.Match[str]) -> Frame:
    is_native = found["kind"] == "C"
    library = found["library"]
    module = library if is_native and library and library != "???" else None
    function = found["function"].removesuffix(" (inlined)")
    file = found["file"] if found["file"] != "???" else (module or "")
    return Frame(function, file, int(found["line"]) or None, module, is_native)


FORMATS = (
    BlockFormat(
        name="pystack",
        summary="pystack remote or core, with or without --native and --locals",
        first="TCU",
        opens=re.compile(
            r"Traceback for thread \d+ |Core file information:|Using executable found in the core file"
        ),
        reader=PystackReader,
        order=10,
    ),
)
