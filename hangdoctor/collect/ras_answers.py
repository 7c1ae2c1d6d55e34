"""The answers of NCCL's RAS service, as JSON (2.28.7 and newer) and as text (2.24 and newer), and cut-off ones.

Formats: src/ras/client_support.cc of NCCL 2.24.3 to 2.30.7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from hangdoctor.model import RasAnswer, RasCommunicator, RasCount, RasRank


class NotAnAnswer(Exception):
    """The text holds nothing that could be read."""


DAMAGED = "NCCL's answer holds a communicator of size 0 with ranks out of the blue; it was left out"
"""Seen with NCCL 2.28.9 while one rank was stopped: 257 "missing ranks", most of them ASCII text read as numbers."""


def _sound(communicators: list[RasCommunicator]) -> tuple[tuple[RasCommunicator, ...], tuple[str, ...]]:
    """Without what cannot be: communicators of nobody, and missing ranks outside their communicator."""
    sound = []
    for one in communicators:
        if one.size == 0:
            continue
        missing = tuple(r for r in one.missing if r.rank >= 0 and (one.size is None or r.rank < one.size))
        sound.append(replace(one, missing=missing))
    return tuple(sound), (DAMAGED,) if len(sound) < len(communicators) else ()


# ---- JSON ----------------------------------------------------------------------------------------------------------

_MISSING_COMMA = re.compile(r'("nvml_dev"\s*:\s*-?\d+)(\s*")')
"""2.28.7 to 2.28.9 print no comma after nvml_dev in missing_ranks (client_support.cc:1963 of v2.28.9-1)."""

NCCL_SUCCESS, NCCL_IN_PROGRESS = 0, 7
"""ncclResult_t in nccl.h."""


def read_json(text: str, *, address: str, is_partial: bool, took_s: float | None = None) -> RasAnswer:
    """A JSON answer; of a cut-off one, the communicators that are whole. Raises :class:`NotAnAnswer`."""
    text = _MISSING_COMMA.sub(r"\1,\2", text)
    try:
        whole = json.loads(text)
    except ValueError:
        whole, is_partial = _salvage(text), True
    if not isinstance(whole, dict) or not ("communicators" in whole or "nccl_version" in whole):
        raise NotAnAnswer(
            f"its answer is no status: {text[:60].strip()!r}" if text.strip() else "its answer is empty"
        )
    service = _table(whole.get("ras"))
    communicators, warnings = _sound([_communicator(item) for item in _tables(whole.get("communicators"))])
    return RasAnswer(
        address=address,
        nccl_version=_text(whole.get("nccl_version")),
        communicators=communicators,
        is_partial=is_partial,
        format="json",
        timeouts=_int(service.get("timeouts_count")) or 0,
        took_s=took_s,
        warnings=warnings,
    )


def _salvage(text: str) -> dict[str, object]:
    found: list[object] = []
    version = re.search(r'"nccl_version"\s*:\s*"([^"]*)"', text)
    start = re.search(r'"communicators"\s*:\s*\[', text)
    place = start.end() if start else len(text)
    decoder = json.JSONDecoder()
    while (opening := text.find("{", place)) >= 0:
        try:
            item, place = decoder.raw_decode(text, opening)
        except ValueError:
            break
        found.append(item)
    salvaged: dict[str, object] = {"nccl_version": version[1]} if version else {}
    return {**salvaged, "communicators": found} if start else salvaged


def _communicator(item: Mapping[str, object]) -> RasCommunicator:
    ranks = tuple(_rank(entry) for entry in _tables(item.get("ranks")))
    missing = tuple(_rank(entry) for entry in _tables(item.get("missing_ranks")))
    states = {rank.status for rank in ranks if rank.status is not None}
    problems = []
    if _int(item.get("missing_ranks_count")):
        problems.append("INCOMPLETE")
    if any(state.startswith("error") for state in states):
        problems.append("ERROR")
    if len(states) > 1 or len({tuple(sorted(rank.counts.items())) for rank in ranks}) > 1:
        problems.append("MISMATCH")
    return RasCommunicator(
        id=(_text(item.get("hash")) or "?").removeprefix("0x"),
        size=_int(item.get("size")),
        ranks=ranks,
        missing=missing,
        missing_count=_int(item.get("missing_ranks_count")) or len(missing),
        status=next(iter(states)) if len(states) == 1 else None,
        problems=tuple(problems),
    )


def _rank(item: Mapping[str, object]) -> RasRank:
    status = _table(item.get("status"))
    cuda, nvml = _int(item.get("cuda_dev")), _int(item.get("nvml_dev"))
    counts = _table(item.get("collective_counts"))
    return RasRank(
        rank=_number(item, "rank"),
        host=_text(item.get("host")),
        pid=_int(item.get("pid")),
        gpu=str(nvml) if cuda in (nvml, None) else f"{nvml} (CUDA {cuda})",
        counts={name: count for name, value in counts.items() if (count := _int(value)) is not None},
        status=_state(status) if "init_state" in status else None,
        is_unresponsive=_flag(status.get("unresponsive")),
        is_dead=_flag(status.get("considered_dead")),
    )


def _state(status: Mapping[str, object]) -> str:
    init, later = _int(status.get("init_state")), _int(status.get("async_error"))
    if status.get("abort_flag") is True:
        return "ABORT"
    if init == NCCL_IN_PROGRESS:
        return "INIT"
    if init not in (NCCL_SUCCESS, None):
        return f"error {init} in initialisation"
    if later not in (NCCL_SUCCESS, NCCL_IN_PROGRESS, None):
        return f"error {later}"
    if status.get("finalize_called") is True or status.get("destroy_flag") is True:
        return "FINALIZE"
    return "RUNNING"


def _number(item: Mapping[str, object], key: str) -> int:
    value = _int(item.get(key))
    return -1 if value is None else value


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _tables(value: object) -> Iterator[Mapping[str, object]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


# ---- text ----------------------------------------------------------------------------------------------------------

_VERSION = re.compile(r"NCCL version (?P<version>\S+)")
_GROUP = re.compile(
    r"\s*(?P<group>\d+)\s+(?P<comms>\d+)\s+\d+\s+\d+(?:-\d+)?\s+(?P<size>\d+)\s+\d+\s+"
    r"(?P<status>[A-Z]+)\s+(?P<errors>[A-Z,]+)\s*$"
)
_HEAD = re.compile(r"#(?P<group>\d+)-\d+ \((?P<hash>[0-9a-f]+)\) (?P<problem>[A-Z]+)")
_DIFFERENT = re.compile(r"  Communicator ranks have different (?P<what>\S+)")
_MANY = re.compile(
    r"  (?P<n>\d+) ranks have (?P<what>launched up to operation (?P<count>\d+)|not launched|status (?P<s>\w+))"
)
_ONE = re.compile(
    r"  Rank (?P<rank>-?\d+)(?: has (?:launched up to operation (?P<count>\d+)|(?P<none>not launched any operations)"
    r"|status (?P<status>\w+))| reported (?P<error>.+?))? -- "
    r"(?:GPU (?P<gpu>.+?) managed by process (?P<pid>\d+) on node (?P<host>\S+)|\[process)"
)
_PROCESS = re.compile(r"  Process (?P<pid>\d+) on node (?P<host>\S+) managing GPUs? (?P<gpu>.+)")
_MISSING = re.compile(r"  Missing communicator data from (?P<n>\d+) (?P<of>rank|job)")
_DEAD = re.compile(r"  (?P<n>\d+) job process(?:es)? (?:is|are) considered dead")
_TIMEOUTS = re.compile(r"  Encountered (?P<n>\d+) communication timeouts?")


@dataclass(slots=True)
class _Reading:
    """Where the reader of a text answer is, and what it has found."""

    communicators: dict[str, RasCommunicator] = field(default_factory=dict)
    groups: dict[str, RasCommunicator] = field(default_factory=dict)
    current: str | None = None
    section: str = ""
    operation: str | None = None
    last_count: RasCount | None = None
    lost: list[RasRank] = field(default_factory=list)
    dead_count: int = 0
    timeouts: int = 0
    warnings: list[str] = field(default_factory=list)


def read_text(text: str, *, address: str, is_partial: bool, took_s: float | None = None) -> RasAnswer:
    """A text answer (``ncclras``, pasted or asked for). Raises :class:`NotAnAnswer`."""
    version = _VERSION.search(text)
    if version is None:
        raise NotAnAnswer(
            f"its answer is no status: {text[:60].strip()!r}" if text.strip() else "its answer is empty"
        )
    reading = _Reading()
    for line in text.splitlines():
        _take_line(reading, line)
    detailed = {communicator.status for communicator in reading.communicators.values()}
    quiet = [group for number, group in reading.groups.items() if number not in detailed]
    found = [
        replace(one, status=reading.groups[one.status].status if one.status in reading.groups else None)
        for one in reading.communicators.values()
    ]
    communicators, damaged = _sound([*found, *quiet])
    return RasAnswer(
        address=address,
        nccl_version=version["version"],
        communicators=communicators,
        is_partial=is_partial,
        format="text",
        lost=tuple(reading.lost),
        dead_count=reading.dead_count,
        timeouts=reading.timeouts,
        took_s=took_s,
        warnings=(*reading.warnings, *damaged),
    )


def _take_line(reading: _Reading, line: str) -> None:
    if group := _GROUP.match(line):
        problems = tuple(word for word in group["errors"].split(",") if word != "OK")
        name = f"group {group['group']} of {group['comms']} communicator{'s' * (group['comms'] != '1')}"
        reading.groups[group["group"]] = RasCommunicator(
            id=name, size=int(group["size"]), status=group["status"], problems=problems
        )
    elif head := _HEAD.match(line):
        _begin(reading, head)
    elif line.startswith(("INCOMPLETE", "DEAD", "TIMEOUT")):
        reading.section, reading.current, reading.last_count = line.strip(), None, None
    elif different := _DIFFERENT.match(line):
        word = different["what"]
        reading.operation = {"status": None, "collective": "collective"}.get(word, word)
        reading.last_count = None
    elif reading.current is not None:
        _take_detail(reading, reading.current, line)
    else:
        _take_job_line(reading, line)


def _begin(reading: _Reading, head: re.Match[str]) -> None:
    """A communicator with something to say; its group's number is kept in ``status`` until the end."""
    key = head["hash"]
    size = reading.groups[head["group"]].size if head["group"] in reading.groups else None
    known = reading.communicators.get(key, RasCommunicator(id=key, size=size, status=head["group"]))
    reading.communicators[key] = replace(known, problems=(*known.problems, head["problem"]))
    reading.current, reading.section = key, head["problem"]
    reading.operation, reading.last_count = None, None


def _take_detail(reading: _Reading, key: str, line: str) -> None:
    communicator = reading.communicators[key]
    if missing := _MISSING.match(line):
        communicator = replace(communicator, missing_count=int(missing["n"]))
    elif many := _MANY.match(line):
        if many["s"] is None and reading.operation is not None:
            count = RasCount(reading.operation, int(many["count"] or 0), int(many["n"]))
            communicator = replace(communicator, counts=(*communicator.counts, count))
            reading.last_count = count
    elif one := _ONE.match(line):
        communicator = _take_rank(reading, communicator, one)
    reading.communicators[key] = communicator


def _take_rank(reading: _Reading, communicator: RasCommunicator, one: re.Match[str]) -> RasCommunicator:
    rank = RasRank(
        rank=int(one["rank"]),
        host=one["host"],
        pid=int(one["pid"]) if one["pid"] else None,
        gpu=one["gpu"],
        status=one["status"] or one["error"],
    )
    if reading.section == "INCOMPLETE":
        return replace(communicator, missing=(*communicator.missing, rank))
    if reading.operation is None:
        return replace(communicator, ranks=_merged(communicator.ranks, rank))
    if one["count"] is None and one["none"] is None:  # one of the ranks of the line above
        counts = communicator.counts
        if reading.last_count is None or not counts:
            return communicator
        launched = counts[-1].launched
        counted = replace(counts[-1], ranks=(*counts[-1].ranks, rank.rank))
        counts = (*counts[:-1], counted)
    else:
        launched = int(one["count"] or 0)
        counts = (*communicator.counts, RasCount(reading.operation, launched, 1, (rank.rank,)))
        reading.last_count = None
    rank = replace(rank, counts={reading.operation: launched})
    return replace(communicator, counts=counts, ranks=_merged(communicator.ranks, rank))


def _merged(ranks: tuple[RasRank, ...], rank: RasRank) -> tuple[RasRank, ...]:
    """The same rank is listed once for every operation in which it differs."""
    for place, known in enumerate(ranks):
        if known.rank == rank.rank:
            merged = replace(
                known, counts={**known.counts, **rank.counts}, status=rank.status or known.status
            )
            return (*ranks[:place], merged, *ranks[place + 1 :])
    return (*ranks, rank)


def _take_job_line(reading: _Reading, line: str) -> None:
    if dead := _DEAD.match(line):
        reading.dead_count = int(dead["n"])
    elif timeouts := _TIMEOUTS.match(line):
        reading.timeouts = int(timeouts["n"])
    elif missing := _MISSING.match(line):
        reading.warnings.append(f"no communicator data from {missing['n']} job processes")
    elif (process := _PROCESS.match(line)) and reading.section in ("DEAD", "INCOMPLETE"):
        lost = RasRank(
            -1, process["host"], int(process["pid"]), process["gpu"], is_dead=reading.section == "DEAD"
        )
        reading.lost.append(lost)
