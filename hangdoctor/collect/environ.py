"""The environment a process really has now: what ``os.environ`` and ``setenv`` made of it.

``/proc/PID/environ`` is the memory that exec filled, and setproctitle (SGLang, vLLM, Ray) writes the
title over its start: in a titled vLLM worker exactly the variables that the user exported are gone. The
live block hangs off the C variable ``environ``; it is found through the dynamic symbols in the target's
memory, in the executable first (a copy relocation moves it there), then in libc.

Only variables the caller allows are kept; the others are never stored.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hangdoctor.collect import elf
from hangdoctor.collect.denials import explain_denial
from hangdoctor.collect.memory import Memory, Regions, read_regions
from hangdoctor.collect.namespaces import list_children
from hangdoctor.model import Gap

MAX_VARIABLES = 8192
MAX_VALUE_BYTES = 4096
MAX_BLOCK_BYTES = 4 << 20
BUDGET_BYTES = 8 << 20
_TRIES = 3
_MAX_ANCESTORS = 5
_INTACT_SHARE = 0.8
_SYMBOLS = (b"environ", b"__environ")
_LIBC = re.compile(r"libc[.-](?:so|2\.|musl)|ld-musl")
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*\Z")

IsAllowed = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class EnvironResult:
    """Allowed variables and where they were seen.

    ``source``: ``memory`` (live), ``/proc`` (as at exec, complete), or, where the target's own block is
    damaged by its title and its memory may not be read, ``resource_tracker`` or ``parent``: a relative's
    environment as at its exec, with what is left of the target's own on top. With these two a missing
    name proves nothing.
    """

    variables: Mapping[str, str]
    source: str


def read_environ(pid: int, is_allowed: IsAllowed) -> EnvironResult | Gap:
    """The environment of ``pid``: live from memory, else as at exec, else a relative's. Never raises.

    Reads ``/proc/PID/maps`` and ``/proc/PID/environ``, which block while the target's mmap lock is held for
    writing: call it behind a deadline. Cost: 0.3-4.5 ms.
    """
    try:
        variables = _read_live(pid, is_allowed)
    except (OSError, elf.NotAnImage) as error:
        refusal: OSError | elf.NotAnImage | None = error
    else:
        if variables is not None:
            return EnvironResult(variables, "memory")
        refusal = None
    own = _read_block(pid)
    if own is not None and own.is_intact:
        return EnvironResult(_keep(own.entries, is_allowed), "/proc")
    relative = _read_relative(pid)
    if relative is not None:
        source, block = relative
        kept = {**_keep(block.entries, is_allowed), **_keep(own.entries if own else (), is_allowed)}
        return EnvironResult(kept, source)
    return _explain(pid, refusal, is_readable=own is not None)


_START = "start the server with SPT_NOENV=1"


def _explain(pid: int, refusal: Exception | None, *, is_readable: bool) -> Gap:
    if isinstance(refusal, OSError) and refusal.errno in (errno.ESRCH, errno.ENOENT):
        return Gap("environ", f"pid {pid}", "the process has ended")
    denial = explain_denial(pid, is_attach=True)
    reason, remedy = f"not permitted to read its memory ({denial.cause})", f"{denial.remedy}; or {_START}"
    if not isinstance(refusal, OSError) or refusal.errno not in (errno.EPERM, errno.EACCES):
        remedy = _START
        reason = f"its memory does not show the variable environ ({refusal or 'static program'})"
    if is_readable:
        reason += ", and its title was written over /proc/PID/environ"
    return Gap(
        "environ",
        f"pid {pid}",
        reason,
        remedy=remedy,
    )


# --- live -----------------------------------------------------------------------------------------


def _read_live(pid: int, is_allowed: IsAllowed) -> dict[str, str] | None:
    """``None`` when no image of the process exports ``environ``."""
    regions = read_regions(pid)
    executable = os.path.basename(os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)"))
    for is_candidate in (lambda name: name == executable, lambda name: _LIBC.match(name) is not None):
        address = _find_variable(pid, regions, is_candidate)
        if address is not None:
            variables = _read_twice(pid, address, is_allowed)
            if variables is not None:
                return variables
    return None


def _find_variable(pid: int, regions: Regions, is_candidate: Callable[[str], bool]) -> int | None:
    found = elf.find_symbols(Memory(pid, BUDGET_BYTES), regions, _SYMBOLS, is_candidate)
    for name in _SYMBOLS:
        if name in found:
            return found[name].address
    return None


def _read_twice(pid: int, address: int, is_allowed: IsAllowed) -> dict[str, str] | None:
    """setenv reallocates the block: accept an answer only when the pointer was the same before and after."""
    for _ in range(_TRIES):
        memory = Memory(pid, BUDGET_BYTES)
        block = memory.u64(address)
        if not block:
            return None
        try:
            variables = _keep(_walk(memory, block), is_allowed)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            continue
        if int.from_bytes(memory.fresh(address, 8), "little") == block:
            return variables
    return None


def _walk(memory: Memory, block: int) -> Iterator[bytes]:
    for index in range(MAX_VARIABLES):
        entry = memory.u64(block + 8 * index)
        if not entry:
            return
        yield memory.string(entry, MAX_VALUE_BYTES)


def _keep(entries: Iterator[bytes] | tuple[bytes, ...], is_allowed: IsAllowed) -> dict[str, str]:
    """The first of two equal names wins, as in ``getenv``."""
    kept: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if not equals or not _NAME.match(name):
            continue
        text = name.decode("ascii")
        if text not in kept and is_allowed(text):
            kept[text] = value[:MAX_VALUE_BYTES].decode("utf-8", "replace")
    return kept


# --- as at exec -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Block:
    entries: tuple[bytes, ...]
    is_intact: bool


def _read_block(pid: int) -> _Block | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read(MAX_BLOCK_BYTES)
    except OSError:
        return None
    return parse_block(data)


def parse_block(data: bytes) -> _Block:
    """Entries of ``/proc/PID/environ``, and whether the block is as exec left it.

    A title leaves blanks (463 in a vLLM worker), NULs or words without ``=`` at its start. An empty block is
    damaged too: a server without a single variable does not exist.
    """
    entries = [entry for entry in data.split(b"\0") if entry]
    good = [entry for entry in entries if b"=" in entry and _NAME.match(entry.partition(b"=")[0])]
    is_whole = bool(good) and data.startswith(good[0] + b"\0")
    if is_whole and len(good) >= _INTACT_SHARE * len(entries):
        return _Block(tuple(good), is_intact=True)
    if not (entries and entries[0].isspace()):
        # Not blanks up to a NUL: the title may have left the tail of an entry ("TH=/bin") as the first.
        good = good[1:]
    return _Block(tuple(good), is_intact=False)


def _read_relative(pid: int) -> tuple[str, _Block] | None:
    """The nearest resource tracker (an untitled child of the server that inherited its environment), else
    parent.

    Both were started by the same server, so they hold what the user exported; see :class:`EnvironResult`.
    """
    family = [pid, *_ancestors(pid)]
    for member in family[:3]:
        for child in list_children(member):
            if b"multiprocessing.resource_tracker" in _read_small(f"/proc/{child}/cmdline"):
                block = _read_block(child)
                if block is not None and block.is_intact:
                    return "resource_tracker", block
    for member in family[1:]:
        block = _read_block(member)
        if block is not None and block.is_intact:
            return "parent", block
    return None


def _ancestors(pid: int) -> Iterator[int]:
    for _ in range(_MAX_ANCESTORS):
        fields = _read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
        if pid <= 1:
            return
        yield pid


def _read_small(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(65536)
    except OSError:
        return b""
