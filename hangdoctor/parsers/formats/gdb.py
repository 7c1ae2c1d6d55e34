"""gdb and eu-stack: ``bt``, ``thread apply all bt``, with or without python-gdb's Python frames, and ``py-bt``.

gdb breaks long lines, also inside an argument list; a line that begins with white space continues the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from hangdoctor.model import Frame, Method, Stack, Thread
from hangdoctor.parsers.findings import Finding, Sighting
from hangdoctor.parsers.native_stack import join_python
from hangdoctor.parsers.registry import BlockFormat, Opening

_THREAD = re.compile(
    r"(?:[#=*\s]*)Thread (?P<number>\d{1,6})(?:\.\d+)? \((?:Thread (?P<id>0x[0-9a-f]+) )?"
    r"(?P<inner>[^()]*?)\(?(?:LWP|lwp|process) (?P<lwp>\d{1,10})\)?(?: \"?(?P<name>[^\")]*)\"?)?\)?"
)
_TID = re.compile(r"TID (?P<tid>\d{1,10}):$")
_PROCESS = re.compile(r"PID (?P<pid>\d{1,10}) - (?:process|core)$")
_FRAME = re.compile(r"#(?P<number>\d{1,6})\s+(?:0x[0-9a-fA-F]{4,16} +(?:in )?)?(?P<rest>\S.*)$", re.DOTALL)
_PLACE = re.compile(
    r" (?:at (?P<file>\S+?):(?P<line>\d{1,9})|from (?P<library>\S+)|\((?P<paren>/\S+)\)|- (?P<dso>/\S+))$"
)
_PYTHON = re.compile(
    r"Frame 0x[0-9a-f]+, for file (?P<file>[^,]+), line (?P<line>\d{1,9}), in (?P<function>[^ (]+)"
)
_PY_BT = re.compile(r"File \"(?P<file>[^\"]*)\", line (?P<line>\d{1,9}), in (?P<function>.+)$")
_BUILT_IN = re.compile(r"<built-in method (?P<name>\w+) of")
_ATTACH = re.compile(r"(?:Attaching to (?:program: .*, )?process |process )(?P<pid>\d{1,10})\b")
_NOISE = re.compile(
    r"\[(?:New|Switching|Thread|Inferior)|Using host lib|warning:|Reading symbols|Download failed"
    r"|\(gdb\)|Missing separate|To enable execution|0x[0-9a-f]+ in |Attaching to|Type \"apropos|\(No symbols"
)
_INFO_THREAD = re.compile(r"(?:\* )?\d{1,6} +Thread 0x[0-9a-f]+ \(LWP \d+\)")
_PYTHON_CALL = re.compile(r"_?PyEval_|PyEval_EvalFrame")
_MOST_CONTINUED = 16_000


class _Draft:
    def __init__(self, header: re.Match[str] | None, lwp: int | None = None) -> None:
        self.lwp = int(header["lwp"]) if header else lwp
        self.name = (header["name"] or "").strip() or None if header else None
        self.pthread = header["id"] if header else None
        self.number = int(header["number"]) if header else 1
        if header is not None and self.name is None:
            self.name = header["inner"].strip(" ,") or None
        self.native: list[Frame] = []
        self.python: list[Frame] = []


class GdbReader:
    """Reads all threads of one process."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._drafts: dict[object, _Draft] = {}
        self._draft: _Draft | None = None
        self._pending = ""
        self._pid: int | None = None
        self._expects_code = False

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the output."""
        body = text.strip()
        if self._pending and text[:1] in (" ", "\t") and body[:1] not in ("", "#", "F", "<", "T"):
            if len(self._pending) < _MOST_CONTINUED:
                self._pending += " " + body
            return True
        if self._begin_thread(body):
            return True
        if body.startswith("#"):
            found = _FRAME.match(body)
            if found is None or (" from /" in body and re.search(r"\.py:\d+$", body)):
                return False
            return self._begin_frame(found, body)
        if not body:
            self._flush()
            return True
        if self._take_python(body):
            return True
        process = _PROCESS.match(body)
        if process is not None and not self._drafts:
            self._pid = int(process["pid"])
            return True
        attach = _ATTACH.search(body)
        if attach is not None and body.startswith(("Attaching", "[Inferior", "process")):
            self._pid = int(attach["pid"])
        if self._pending and text[:1] in " \t":
            if len(self._pending) < _MOST_CONTINUED:
                self._pending += " " + body
            return True
        return bool(_NOISE.match(body) or _INFO_THREAD.match(body) or body.startswith("Id "))

    def _begin_thread(self, body: str) -> bool:
        header, tid = _THREAD.match(body), _TID.match(body)
        if header is None and tid is None:
            return False
        self._flush()
        draft = _Draft(header, int(tid["tid"]) if tid is not None else None)
        # `py-bt` after `bt` visits the same threads again.
        self._draft = self._drafts.setdefault(draft.lwp, draft)
        return True

    def _begin_frame(self, found: re.Match[str], body: str) -> bool:
        self._flush()
        if self._draft is None:
            self._draft = self._drafts.setdefault(None, _Draft(None))
        if found["number"] == "0" and self._draft.native and self._draft.lwp is None:
            # The next thread of a paste without headers.
            self._draft = self._drafts.setdefault(len(self._drafts), _Draft(None))
        self._pending = body
        return True

    def _take_python(self, body: str) -> bool:
        if self._draft is None:
            return False
        found = _PY_BT.match(body)
        if found is not None:
            self._flush()
            self._draft.python.append(Frame(found["function"], found["file"], int(found["line"]) or None))
            self._expects_code = True
            return True
        if body.startswith("Traceback (most recent call first)"):
            self._flush()
            self._draft.python = []
            return True
        built_in = _BUILT_IN.match(body)
        if built_in is not None or body.startswith("(unable to read python frame"):
            return True
        if self._expects_code:
            self._expects_code = False
            return not body.startswith(("#", "Thread "))
        return False

    def _flush(self) -> None:
        body, self._pending = self._pending, ""
        found = _FRAME.match(body) if body else None
        if found is not None and self._draft is not None:
            self._draft.native.append(read_gdb_frame(found["rest"]))

    # -- result ------------------------------------------------------------------------------------

    def close(self) -> Iterable[Finding]:
        """One sighting."""
        self._flush()
        drafts = [draft for draft in self._drafts.values() if draft.native or draft.python]
        if sum(len(d.native) + len(d.python) for d in drafts) < 2 and all(d.lwp is None for d in drafts):
            return  # "#7 fixes it (again)" is no stack
        threads = [_thread(draft) for draft in drafts]
        pid = self._pid if self._pid is not None else self._opening.pid
        if pid is None:
            # gdb numbers the first thread 1: its LWP is the process.
            pid = next((d.lwp for d in self._drafts.values() if d.lwp is not None and d.number == 1), None)
        yield Sighting(
            source="gdb",
            where=self._opening.where,
            pid=pid,
            labels=self._opening.labels,
            host=self._opening.host,
            taken_at=self._opening.taken_at,
            command=self._opening.command,
            threads=tuple(
                replace(t, name="MainThread") if pid is not None and t.tid == pid else t for t in threads
            ),
        )


def _thread(draft: _Draft) -> Thread:
    frames = join_python(draft.native, draft.python)
    return Thread(tid=draft.lwp, comm=draft.name, stack=Stack(frames, Method.GDB))


def read_gdb_frame(rest: str) -> Frame:
    """One frame without its number: a C function, or the Python function that python-gdb shows in its place."""
    python = _PYTHON.search(rest)
    if python is not None:
        return Frame(python["function"], python["file"], int(python["line"]) or None)
    rest = rest[:4096]
    place = _PLACE.search(rest)
    file, line, library = "", None, None
    if place is not None:
        rest = rest[: place.start()]
        file, library = place["file"] or "", place["library"] or place["paren"] or place["dso"]
        line = int(place["line"]) if place["line"] else None
    return Frame(_function(rest), file or library or "", line or None, library, is_native=True)


def _function(text: str) -> str:
    """The name without gdb's argument list, which is the last balanced pair of parentheses."""
    text = text.strip()
    text = re.sub(r" \[clone [^\]]*\]", "", text)
    if not text.endswith(")"):
        cut = text.find(" (")
        return (text[:cut] if cut > 0 else text)[:512]
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        if text[index] == ")":
            depth += 1
        elif text[index] == "(":
            depth -= 1
            if depth == 0:
                return (text[:index].rstrip() or text)[:512]
    return text[:512]


FORMATS = (
    BlockFormat(
        name="gdb",
        summary="gdb bt and thread apply all bt, with or without py-bt; eu-stack",
        first="#=*TA[P",
        opens=re.compile(
            r"(?:[#=*\s]*)Thread \d{1,6}(?:\.\d+)? \((?:Thread 0x[0-9a-f]+ )?[^()]*\(?(?:LWP|lwp|process) \d+"
            r"|#\d{1,6}\s+(?:0x[0-9a-fA-F]{4,16} in |[A-Za-z_]\w{2,200}$"
            r"|(?:\?\?|~?[A-Za-z_][\w:<>,~]{0,400}) ?\(|[^\n]{1,2000}\) (?:at|from) )"
            r"|#\d{1,6} +0x[0-9a-fA-F]{4,16} +\S|Attaching to process \d+|\[New LWP \d+\]"
            r"|TID \d{1,10}:$|PID \d{1,10} - (?:process|core)$"
        ),
        reader=GdbReader,
        order=30,
    ),
)
