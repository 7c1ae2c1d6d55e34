"""Patterns for frames: ``NAME @ FILE, FILE < OUTER | OUTER``.

``NAME`` is a function, with or without its class; ``/…/`` is a regular expression for the bare function name; with
``::`` it is a native symbol. ``FILE`` is the end of a path, or a folder ending in ``/``; several are alternatives;
without any, every file will do. ``< A | B`` asks that a function A or B encloses the frame, ``!< A | B`` that none
does, ``<< A | B`` that one of them calls it directly. A leading ``^`` asks that it is the innermost Python frame.

Names come in three spellings, which all must match: py-spy 0.4.3 prints ``Class.method`` and ``f.<locals>.g`` for
Python 3.11 and later, only ``method`` before; files are absolute, or cut on the left to what lies inside the package
(``engine.py`` for sglang/srt/entrypoints/engine.py, because sglang/srt has no ``__init__.py``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from hangdoctor.model import Frame

_PATTERN = re.compile(
    r"^(?P<top>\^)?(?P<name>/[^/]+/|[^@<!\s]+|<module>)(?:\s+@\s+(?P<files>[^!]+?))?"
    r"(?:\s+(?P<how>!<|<<|<)\s+(?P<outer>[\w.|\s]+))?$"
)
_STDLIB_FOLDER = re.compile(r"(^|/)(python3(\.\d+)?t?|Lib|<frozen [^>]*>)$")
_PACKAGES = frozenset(
    (
        "asyncio",
        "concurrent",
        "deep_gemm",
        "deepspeed",
        "fastapi",
        "filelock",
        "flashinfer",
        "huggingface_hub",
        "lmdeploy",
        "megatron",
        "mpi4py",
        "multiprocessing",
        "ray",
        "safetensors",
        "sgl_kernel",
        "sglang",
        "starlette",
        "tensorrt_llm",
        "text_generation_server",
        "torch",
        "transformers",
        "triton",
        "tvm_ffi",
        "uvicorn",
        "uvloop",
        "vllm",
        "zmq",
    )
)
"""First folders that say a relative path is whole; any other relative path may be cut on the left."""


@dataclass(frozen=True, slots=True)
class FramePattern:
    """A compiled pattern; :func:`parse` makes it, :class:`hangdoctor.knowledge.match.Matcher` applies it."""

    text: str
    name: str | None
    """Bare function name; ``None`` when ``regex`` decides."""
    owner: str | None = None
    """The class, compared only where the frame has one too."""
    regex: re.Pattern[str] | None = None
    files: tuple[str, ...] = ()
    is_top: bool = False
    inside: frozenset[str] = frozenset()
    outside: frozenset[str] = frozenset()
    called_by: frozenset[str] = frozenset()

    def fits(self, frame: Frame) -> bool:
        """Whether name and file of the frame fit; conditions on the rest of the stack are not looked at."""
        name, owner = split_name(frame.function)
        if self.regex is not None:
            if self.regex.search(name) is None:
                return False
        elif name != self.name:
            return False
        if self.owner is not None and owner is not None and owner != self.owner:
            return False
        return not self.files or any(_fits_file(pattern, frame.file) for pattern in self.files)


@lru_cache(maxsize=65536)
def split_name(function: str) -> tuple[str, str | None]:
    """``Event.wait`` → (``wait``, ``Event``); ``f.<locals>.g`` → (``g``, None); C++ loses its arguments."""
    if "::" in function:
        return _native_name(function), None
    parts = function.split(".")
    owner = parts[-2] if len(parts) > 1 and parts[-2] != "<locals>" else None
    return parts[-1], owner


def _native_name(symbol: str) -> str:
    bare = symbol.split("(", 1)[0]
    while "<" in bare:
        shorter = re.sub(r"<[^<>]*>", "", bare)
        if shorter == bare:
            break
        bare = shorter
    return bare.strip().rsplit(" ", 1)[-1]


@lru_cache(maxsize=65536)
def _fits_file(pattern: str, file: str) -> bool:
    path = file.replace("\\", "/")
    if pattern.endswith("/"):
        return f"/{pattern}" in f"/{path}" or _may_be_cut(path)
    if path == pattern or path.endswith(f"/{pattern}"):
        return "/" in pattern or "/" not in path or _STDLIB_FOLDER.search(path.rpartition("/")[0]) is not None
    return not path.startswith("/") and f"/{pattern}".endswith(f"/{path}")


def _may_be_cut(path: str) -> bool:
    """Whether folders may be missing on the left, so that a folder pattern can neither be seen nor excluded."""
    return not path.startswith(("/", "<")) and path.split("/", 1)[0] not in _PACKAGES


class StackContext:
    """What patterns ask of the rest of a stack; names are collected only when one asks."""

    def __init__(self, frames: tuple[Frame, ...]) -> None:
        self._frames = frames
        self._top = next((index for index, frame in enumerate(frames) if not frame.is_native), None)
        self._names: list[frozenset[str]] = []

    def allows(self, pattern: FramePattern, index: int) -> bool:
        """Whether the conditions of a pattern that fits frame ``index`` hold (``^``, ``<``, ``!<``, ``<<``)."""
        if pattern.is_top and index != self._top:
            return False
        if pattern.called_by and not (
            index + 1 < len(self._frames) and self._spellings(index + 1) & pattern.called_by
        ):
            return False
        if pattern.inside or pattern.outside:
            outer = [self._spellings(other) for other in range(index + 1, len(self._frames))]
            if pattern.inside and not any(names & pattern.inside for names in outer):
                return False
            if pattern.outside and any(names & pattern.outside for names in outer):
                return False
        return True

    def _spellings(self, index: int) -> frozenset[str]:
        if not self._names:
            self._names = [_spell(frame.function) for frame in self._frames]
        return self._names[index]


def _spell(function: str) -> frozenset[str]:
    name, owner = split_name(function)
    return frozenset((name, f"{owner}.{name}") if owner else (name,))


def parse(text: str) -> FramePattern:
    """Compiles a pattern; raises ``ValueError`` with what is wrong with it."""
    found = _PATTERN.match(text.strip())
    if found is None:
        raise ValueError("expected NAME [@ FILE, FILE] [< OUTER | OUTER]")
    name = found["name"]
    names = frozenset(part.strip() for part in (found["outer"] or "").split("|") if part.strip())
    bare, owner, regex = _parse_name(name)
    return FramePattern(
        text=text,
        name=bare,
        owner=owner,
        regex=regex,
        files=tuple(part.strip() for part in (found["files"] or "").split(",") if part.strip()),
        is_top=found["top"] is not None,
        inside=names if found["how"] == "<" else frozenset(),
        outside=names if found["how"] == "!<" else frozenset(),
        called_by=names if found["how"] == "<<" else frozenset(),
    )


def _parse_name(name: str) -> tuple[str | None, str | None, re.Pattern[str] | None]:
    if not name.startswith("/"):
        return (*split_name(name), None)
    try:
        return None, None, re.compile(name[1:-1])
    except re.error as problem:
        raise ValueError(f"no regular expression: {problem}") from problem


def parse_stack(text: str) -> tuple[Frame, ...]:
    """The compact stacks of the examples: ``func file | func file``, innermost first."""
    frames = []
    for part in text.split("|"):
        function, _, file = part.strip().partition(" ")
        if not function or not file.strip():
            raise ValueError(f"expected 'function file' between the bars, not {part.strip()!r}")
        frames.append(Frame(function, file.strip()))
    return tuple(frames)
