"""``ps`` and ``top``: processes and threads with their kernel states, with or without the header line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hangdoctor.model import Thread
from hangdoctor.parsers.findings import Finding, Sighting, Where
from hangdoctor.parsers.formats.py_spy_text import split_command
from hangdoctor.parsers.registry import BlockFormat, Opening

_COLUMNS = {
    "PID": "pid", "PPID": "ppid", "TID": "tid", "LWP": "tid", "SPID": "tid", "STAT": "state", "S": "state",
    "STATE": "state", "WCHAN": "wchan", "TIME": "time", "TIME+": "time", "CPUTIME": "time", "COMMAND": "command",
    "CMD": "command", "ARGS": "command", "COMM": "comm", "UCMD": "comm", "%CPU": "cpu", "PCPU": "cpu", "RSS": "rss",
    "RSZ": "rss", "RES": "res", "USER": "-", "UID": "-", "UNAME": "-", "%MEM": "-", "VSZ": "-", "VIRT": "-",
    "SHR": "-", "TTY": "-", "TT": "-", "START": "-", "STIME": "-", "STARTED": "-", "C": "-", "PSR": "-", "P": "-",
    "NI": "-", "PR": "-", "PRI": "-", "CLS": "-", "RTPRIO": "-", "NLWP": "-", "F": "-", "ADDR": "-", "SZ": "-",
    "PGID": "-", "SID": "-", "SESS": "-", "ELAPSED": "-", "ETIME": "-", "ETIMES": "-", "MAJFL": "-", "MINFL": "-",
    "THCNT": "-", "WIDE-WCHAN-COLUMN": "wchan",
}  # fmt: skip
_AUX = re.compile(
    r"\S{1,64}\s+(?P<pid>\d{1,10})\s+(?P<cpu>\d{1,6}(?:\.\d)?)\s+\d{1,3}(?:\.\d)?\s+\d{1,15}\s+(?P<rss>\d{1,15})\s+\S{1,16}\s+"
    r"(?P<state>[RSDTtZXI][<NLsl+]{0,5})\s+\S{1,12}\s+(?P<time>\d{1,6}:\d\d(?::\d\d)?)\s+(?P<command>\S.*)$"
)
_SHORT = re.compile(
    r"(?P<pid>\d{1,10})\s+(?P<cpu>[~\d.\-–]{1,12})\s+(?P<state>[RSDTtZXI][<NLsl+]{0,5})(?:\s+(?P<command>\S.*))?$"
)
_STATE = re.compile(r"[RSDTtZXIPW][<NLsl+]{0,6}$")
_CPU_TIME = re.compile(r"(?:(\d{1,5})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d\d)(?:\.(\d\d))?$")
_FOREST = re.compile(r"[ |`]*\\?_? ?")
_MOST_ROWS = 20_000
# A listing of a whole machine has hundreds of processes that no hang is about.
_RELEVANT = re.compile(
    r"python|sglang|vllm|torch|ray|deepspeed|accelerate|megatron|trtllm|tritonserver|lmdeploy|text-generation|dynamo"
    r"|nvcc|cicc|ptxas|ninja|cudafe|fatbinary|nvlink|\bgcc\b|\bg\+\+|cc1plus|\bcc1\b|clang|\bld\b|\bcmake\b|mpirun|srun"
    r"|mooncake|nccl|nvidia|dcgm|scheduler_|EngineCore|Worker_",
    re.IGNORECASE,
)
_TOOLS = re.compile(r"(?:\S*/)?(?:ps|grep|top|py-spy|gdb|strace|awk|sed|less|watch|htop)\b")


class PsReader:
    """Reads the header, if any, and the rows below it."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._columns: _Columns | None = None
        self._rows: list[tuple[dict[str, str], int]] = []

    def take(self, text: str, number: int) -> bool:
        """Whether a line belongs to the table."""
        body = text.strip()
        if not body:
            return not self._rows
        header = _header(text)
        if header is not None:
            if self._rows:
                return False
            self._columns = header
            return True
        row = self._row(text)
        if row is None or len(self._rows) >= _MOST_ROWS:
            return False
        self._rows.append((row, number))
        return True

    def _row(self, text: str) -> dict[str, str] | None:
        if self._columns is not None:
            return self._columns.read(text)
        body = text.strip()
        for pattern in (_AUX, _SHORT):
            found = pattern.match(body)
            if found is not None:
                return {name: value for name, value in found.groupdict().items() if value is not None}
        return None

    def close(self) -> Iterable[Finding]:
        """One sighting a process; threads of one process together."""
        processes: dict[int, Sighting] = {}
        threads: dict[int, list[Thread]] = {}
        is_long = len(self._rows) > 40
        for row, number in self._rows:
            pid = int(row["pid"])
            if not _is_wanted(row, is_long):
                continue
            if "tid" in row:
                threads.setdefault(pid, []).append(_thread(row))
                if pid in processes and int(row["tid"]) != pid:
                    continue
            processes[pid] = self._sighting(row, pid, number)
        for pid, sighting in processes.items():
            found = tuple(threads.get(pid, ()))
            yield sighting if not found else _with_threads(sighting, found)

    def _sighting(self, row: Mapping[str, str], pid: int, number: int) -> Sighting:
        opening = self._opening
        return Sighting(
            source="ps",
            where=Where(opening.where.file, number),
            pid=pid,
            labels=opening.labels if len(self._rows) == 1 else (),
            host=opening.host,
            taken_at=opening.taken_at,
            command=split_command(row.get("command", "")),
            comm=row.get("comm") or _as_comm(row.get("command")),
            state=row["state"][0] if "state" in row else None,
            ppid=_whole(row.get("ppid")),
            cpu_ticks=_ticks(row.get("time")),
            rss_bytes=rss * 1024 if (rss := _whole(row.get("rss"))) is not None else None,
        )


def _with_threads(sighting: Sighting, threads: tuple[Thread, ...]) -> Sighting:
    return Sighting(
        source="ps threads",
        where=sighting.where,
        pid=sighting.pid,
        labels=sighting.labels,
        host=sighting.host,
        taken_at=sighting.taken_at,
        threads=threads,
        ppid=sighting.ppid,
        # In a listing of threads state and command are those of the thread.
        state=next((t.state for t in threads if t.tid == sighting.pid), None),
        thread_count=len(threads),
    )


@dataclass(frozen=True, slots=True)
class _Columns:
    """The header line: names of the columns, and where the last ones, which may hold spaces, begin."""

    names: tuple[str, ...]
    text_starts: tuple[int, ...]

    def read(self, text: str) -> dict[str, str] | None:
        """One row; ``None`` when the line is none."""
        count = len(self.names) - len(self.text_starts)
        fields = text.split(None, count)
        if len(fields) < count:
            return None
        row = {n: v for n, v in zip(self.names, fields[:count], strict=False) if n not in ("", "-")}
        row.update(self._texts(text, fields[count] if len(fields) > count else ""))
        if not row.get("pid", "").isdecimal() or len(row["pid"]) > 10:
            return None
        if "state" in row and not _STATE.match(row["state"]):
            return None
        if "tid" in row and not (row["tid"].isdecimal() and len(row["tid"]) <= 10):
            del row["tid"]
        return row

    def _texts(self, text: str, rest: str) -> Iterator[tuple[str, str]]:
        """The columns at the end; where a wide value has pushed them to the right only the first is certain."""
        names = self.names[len(self.names) - len(self.text_starts) :]
        first = self.text_starts[0]
        if len(names) > 1 and text[first - 1 : first] == " ":
            for name, start, end in zip(names, self.text_starts, (*self.text_starts[1:], None), strict=True):
                yield name, _FOREST.sub("", text[start:end].strip(), count=1)
        elif names and rest:
            yield names[0], _FOREST.sub("", rest.strip(), count=1)


def _header(text: str) -> _Columns | None:
    words = text.split()
    if len(words) < 2 or "PID" not in words or len(words) > 40:
        return None
    names = [_COLUMNS.get(word.split(":")[0], "") for word in words]
    if names.count("") > 1 or not {"state", "command", "comm", "wchan"} & set(names):
        return None
    text_count = 0
    while text_count < len(names) and names[-1 - text_count] in ("command", "comm"):
        text_count += 1
    if text_count > 1:
        names[-text_count:-1] = ["comm"] * (text_count - 1)  # ps calls both comm and args COMMAND
    starts, position = [], len(text)
    for word in reversed(words[len(words) - text_count :]):
        position = text.rindex(word, 0, position)
        starts.append(position)
    if not starts:
        starts, names = [len(text)], [*names, "-"]
    return _Columns(tuple(names), tuple(reversed(starts)))


def _is_wanted(row: Mapping[str, str], is_long: bool) -> bool:
    command = row.get("command", row.get("comm", ""))
    if _TOOLS.match(command):
        return False
    if row.get("state", "S")[0] in "DZTt" and not command.startswith("["):
        return True
    return (not is_long and not command.startswith("[")) or bool(_RELEVANT.search(command))


def _thread(row: Mapping[str, str]) -> Thread:
    wchan = row.get("wchan")
    return Thread(
        tid=int(row["tid"]),
        comm=row.get("comm") or _as_comm(row.get("command")),
        state=row["state"][0] if "state" in row else None,
        wchan=wchan if wchan not in (None, "-", "*") else None,
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) <= 15 else None


def _as_comm(command: str | None) -> str | None:
    """ps calls both names COMMAND; a comm has at most 15 characters."""
    return command if command and len(command) <= 15 and " " not in command and "/" not in command else None


def _ticks(text: str | None) -> int | None:
    """CPU time in 1/100 s: ``1-02:03:04``, ``12:34``, ``99:59.99``."""
    found = _CPU_TIME.match(text) if text else None
    if found is None:
        return None
    days, hours, minutes, seconds, hundredths = (int(g) if g else 0 for g in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 6000 + seconds * 100 + hundredths


FORMATS = (
    BlockFormat(
        name="ps",
        summary="ps and top listings: states, command lines, threads",
        opens=re.compile(
            rf"(?:[A-Z%+:\-\d]+ +){{0,30}}PID(?: +[A-Z%+:\-\d]+)+$|{_AUX.pattern}"
            r"|\d{1,10}\s+[~\d.\-–]{1,12}\s+[RSDTtZ][<NLsl+]{0,5}(?:\s|$)"
        ),
        reader=PsReader,
        order=60,
    ),
)
