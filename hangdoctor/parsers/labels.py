"""Names of ranks and processes in what people write around a dump: headings, prompts, file names.

``# TP1, TP2``, ``=== rank 5 (pid 4711) ===``, ``$ kubectl exec pod-3 -- py-spy dump --pid 1``,
``==> rank3.txt <==``. A sentence that merely mentions a rank is no heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

EVERYONE = "everyone"
"""Label of a heading such as ``# both``: what follows holds for all processes shown before."""
OTHERS = "others"
"""Label of a heading such as ``other ranks:``, which names nobody."""

_MOST_LABELS = 4096
_LONGEST_HEADING = 240
_DIMENSION = r"(?:ATTN_|MOE_)?(?:DP|PP|TP|EP|CP)"
_COORDINATE = re.compile(
    rf"(?<![A-Za-z0-9])(?P<dim>{_DIMENSION})[ _]?(?P<first>\d{{1,6}})"
    rf"(?:\s?(?:-|–|~|\.\.|to)\s?(?:{_DIMENSION})?(?P<last>\d{{1,6}}))?(?![A-Za-z0-9])"
)
_RANKS = re.compile(
    r"(?<![A-Za-z])ranks?[ _\-=:#]{0,3}(?P<list>\d{1,6}(?:\s{0,2}(?:-|–|~|to|,|and|&|/)\s{0,2}\d{1,6}){0,200})",
    re.IGNORECASE,
)
_ITEM = re.compile(r"(\d+)(?:\s*(?:-|–|~|to)\s*(\d+))?")
_CARD = re.compile(
    r"(?<![A-Za-z])(?:GPU|card|worker|device)[ _#:]?(\d{1,5})(?!\d)|(?<!\d)(\d{1,5})\s?卡", re.IGNORECASE
)
_EVERYONE = re.compile(
    r"\b(?:both|all (?:the )?(?:ranks|workers|processes)|every (?:rank|worker|process))\b", re.IGNORECASE
)
_OTHERS = re.compile(
    r"\b(?:others|(?:all |the )?other(?: \d+)? (?:ranks?|workers?|processes|gpus?|cards?|nodes?)"
    r"|the rest|remaining (?:ranks?|workers?|processes|\d+))\b",
    re.IGNORECASE,
)
_PID = re.compile(r"(?:\bpid[ :=#]{1,2}|(?<=\s)--pid[ =]|(?<=\s)-p ?|\bprocess )(\d{1,10})\b", re.IGNORECASE)
_TITLE = re.compile(
    r"(?:sglang|sgl_diffusion|VLLM|vllm|ray)::[\w:.]+|\bscheduler(?:_(?:ATTN_|MOE_)?[A-Z]{2}\d+)+"
    r"|\bpython3? (?:-u )?-m [\w.]+|\bWorker(?:_[A-Z]{2}\d+)+|\bEngineCore(?:_DP\d+)?\b|\bdata_parallel_controller\b"
)
_HOST = re.compile(
    r"\b(?:node|host|pod|container)(?:\s|[:=#]\s?|[-_]?(?=\d))([\w][\w.\-]{0,80})", re.IGNORECASE
)
_REMOTE = re.compile(
    r"\b(?:kubectl(?: -\S+(?: \S+)?)* exec(?: -\S+)*|docker exec(?: -\S+)*|ssh(?: -\S+)*) (?:pod/)?([\w.@\-]+)"
)
_PROMPT = re.compile(
    r"(?:[\w.\-]+@(?P<host>[\w.\-]+)[:\s][^#$]{0,200}[#$]|[$#%>]|\(gdb\)|sudo) ?(?P<command>\S.*)$"
)
_TOOL = re.compile(r"\b(?:py-spy|pyspy|pystack|gdb|strace|eu-stack|gstack|cat /proc/(\d+)|ls /proc/(\d+))\b")
_PROC_PATH = re.compile(r"/proc/(\d{1,10})(?:/task/(\d{1,10}))?")
_FILE_HEADING = re.compile(
    r"==> (.{1,400}?) <==$|(?:[-=#]{2,} )?(?:file:? )([\w./\-]{1,400}?)(?: [-=#]{2,})?$", re.IGNORECASE
)
# Whatever names somebody holds one of these; most prose is done with here.
_HINTS = (
    "rank", "tp", "dp", "pp", "ep", "cp", "pid", "proc", "gpu", "card", "worker", "device", "卡", "::", "==>", "both",
    "all ", "every ", "other", "the rest", "remaining", "-m ", "enginecore", "controller", "py-spy", "pystack", "exec ",
)  # fmt: skip
_TITLE_HINTS = ("::", "scheduler", "worker", "-m ", "enginecore", "controller")
_CARD_HINTS = ("gpu", "card", "worker", "device", "卡")
_DIGIT = re.compile(r"\d")
_LEADING = re.compile(r"[#=*\->\s|/•~+_\[(`]+")
_TRAILING = re.compile(r"[=*\-:\s#<|~+_\])`]+$")
_FILE_PID = re.compile(
    r"(?:^|/)(\d{2,8})-[a-zA-Z]|pid[-_]?(\d{1,8})(?!\d)|(?:py-?spy|stack|dump)[-_.](\d{2,7})(?!\d)"
)
_FILE_HOST = re.compile(r"(?:^|[/._-])((?:node|host)[-_]?[a-z0-9]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Heading:
    """What a line above a block says about it."""

    labels: tuple[str, ...] = ()
    pid: int | None = None
    tid: int | None = None
    host: str | None = None
    command: tuple[str, ...] = ()
    tool: str | None = None
    """The command line of the tool that wrote the block."""


def read_heading(line: str) -> Heading | None:
    """The heading in a line; ``None`` for prose, and for lines that name nobody."""
    text = line.strip()
    if not 0 < len(text) <= _LONGEST_HEADING:
        return None
    lower = text.lower()
    if not any(hint in lower for hint in _HINTS):
        return None
    file = _FILE_HEADING.match(text) if "=" in text or "--" in text or "file" in lower else None
    if file is not None:
        return heading_of_file(file[1] or file[2])
    prompt = _PROMPT.match(text) if _TOOL.search(text) else None
    if prompt is not None:
        return _of_command(prompt["command"], prompt["host"])
    start = _LEADING.match(text)
    bare = _TRAILING.sub("", text[start.end() :] if start else text)
    words = bare.count(" ") + 1
    is_decorated = bool(start and start.end()) or text.endswith((":", "："))
    if words > (14 if is_decorated else 4):
        return None
    return _of_words(bare)


def heading_of_file(path: str) -> Heading | None:
    """What a file's name and its folders say: ``node1/nccl_trace_rank_3``, ``t0/4281-EngineCore/pyspy.txt``."""
    tail = "/".join(path.split("/")[-3:])
    labels = read_labels(tail)
    pid = _FILE_PID.search(tail)
    host = _FILE_HOST.search(tail)
    if not labels and pid is None and host is None:
        return None
    number = next((g for g in pid.groups() if g), None) if pid else None
    return Heading(labels, int(number) if number else None, host=host[1] if host else None)


def read_labels(text: str) -> tuple[str, ...]:
    """The ranks that a text names: ``TP1, TP2`` → two; ``PP1 ATTN_CP0 TP0`` → one; ``ranks 0-2`` → three."""
    if _DIGIT.search(text) is None:
        return ()
    coordinates = list(_coordinates(text))
    if coordinates:
        return tuple(coordinates)
    lower = text.lower()
    ranks = _RANKS.search(text) if "rank" in lower else None
    if ranks is not None:
        return tuple(f"rank {n}" for n in _expand(ranks["list"]))
    card = _CARD.search(text) if any(hint in lower for hint in _CARD_HINTS) else None
    if card is not None:
        return (f"GPU {card[1] or card[2]}",)
    return ()


def dimensions(label: str) -> frozenset[str]:
    """The coordinates in a label or a process title, for comparing ``DP3 TP7`` with ``scheduler_DP3_TP7``."""
    return frozenset(f"{m['dim']}{int(m['first'])}" for m in _COORDINATE.finditer(label))


def _of_command(command: str, prompt_host: str | None) -> Heading | None:
    path = _PROC_PATH.search(command)
    pid = _PID.search(command)
    remote = _REMOTE.search(command)
    number = path[1] if path else pid[1] if pid else None
    host = remote[1].split("@")[-1] if remote else prompt_host
    if number is None and host is None:
        return None
    return Heading(
        read_labels(command),
        int(number) if number else None,
        int(path[2]) if path and path[2] else None,
        host,
        tool=command,
    )


def _of_words(text: str) -> Heading | None:
    lower = text.lower()  # substring tests cost a tenth of a search
    labels = read_labels(text)
    if not labels and ("both" in lower or "all " in lower or "every " in lower) and _EVERYONE.search(text):
        labels = (EVERYONE,)
    if (
        not labels
        and ("other" in lower or "the rest" in lower or "remaining" in lower)
        and _OTHERS.search(text)
    ):
        labels = (OTHERS,)
    title = _TITLE.search(text) if any(hint in lower for hint in _TITLE_HINTS) else None
    pid = _PID.search(text) if "pid" in lower or "process" in lower or "-p" in lower else None
    path = _PROC_PATH.search(text) if "/proc/" in lower else None
    if not labels and title is None and pid is None and path is None:
        return None
    host = _HOST.search(text)
    number = pid[1] if pid else path[1] if path else None
    return Heading(
        labels,
        int(number) if number else None,
        int(path[2]) if path and path[2] else None,
        host=host[1] if host else None,
        command=(title[0],) if title else (),
    )


def _coordinates(text: str) -> Iterator[str]:
    """One label a rank: a dimension that repeats begins the next rank."""
    current: list[tuple[str, int]] = []
    for count, found in enumerate(_COORDINATE.finditer(text)):
        dimension, first = found["dim"], int(found["first"])
        last = int(found["last"]) if found["last"] else first
        if current and any(name == dimension for name, _ in current):
            yield _join(current)
            current = []
        if last > first:
            for number in range(first, min(last, first + _MOST_LABELS) + 1):
                yield _join([*current, (dimension, number)])
            current = []
        else:
            current.append((dimension, first))
        if count >= _MOST_LABELS:
            break
    if current:
        yield _join(current)


def _join(parts: list[tuple[str, int]]) -> str:
    return " ".join(f"{name}{number}" for name, number in parts)


def _expand(text: str) -> list[int]:
    numbers: list[int] = []
    for found in _ITEM.finditer(text):
        first = int(found[1])
        last = int(found[2]) if found[2] else first
        numbers.extend(range(first, min(last, first + _MOST_LABELS) + 1) if last >= first else [first, last])
        if len(numbers) >= _MOST_LABELS:
            break
    return numbers[:_MOST_LABELS]
