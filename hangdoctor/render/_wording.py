"""The words all formats share: durations, rates, places in code, folded ranks, and captured text made harmless.

Nothing here knows a format. What a format has to escape (HTML, Markdown) it escapes itself, after `clean`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import lru_cache

from hangdoctor.model import Frame
from hangdoctor.report import Progress, ProgressClass

_DIGITS = re.compile(r"(\d+)")
# Package roots: what follows is the name a reader knows (`vllm/v1/worker/gpu_worker.py`, `threading.py`).
_PACKAGE_ROOT = re.compile(r".*/(?:site-packages|dist-packages|python3\.\d+t?)/")
_LONGEST_PATH = 4096  # the kernel's own limit
_CALLER = " ◂ "
_MORE = re.compile(r"(\d{1,9}) more")
_PROGRESS_WORDS = {
    ProgressClass.PROOF: "moves",
    ProgressClass.WEAK: "seems to move",
    ProgressClass.ACTIVITY: "busy, no proof of progress",
    ProgressClass.NONE: "no progress seen",
}
_ASCII = str.maketrans(
    dict(zip("—–─▶►◂▸·•█░×‘’“”\u00a0", "--->><>|*#.x''\"\" ", strict=True))
    | {"→": "->", "←": "<-", "…": "...", "≥": ">=", "≤": "<="}
)


def clean(text: str) -> str:
    """Make captured text printable on one line: control, format and undecodable characters become escapes.

    An ESC in a thread name would otherwise recolour a terminal, a right-to-left override would turn a path round,
    and a lone surrogate (a non-UTF-8 file name) could not be encoded at all.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character.isprintable() and unicodedata.category(character) not in ("Cf", "Mn", "Me"):
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: the byte that could not be decoded
        return f"\\x{code - 0xDC00:02x}"
    if unicodedata.category(character) in ("Mn", "Me") and code < 0x0370:
        return character  # ordinary combining accents of decomposed Latin text
    return {"\n": "\\n", "\t": " ", "\r": "\\r"}.get(
        character, f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    )


def to_ascii(text: str) -> str:
    """Our own arrows and bars in ASCII of the same width where possible; anything else becomes an escape."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def to_entities(text: str) -> str:
    """Markup in ASCII: what is beyond it as character references, which browsers show as themselves."""
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def clip(text: str, limit: int) -> str:
    """Clean captured text, cut it where it is over-long and say how much is missing."""
    # Cleaning never makes a text shorter, so of a very long one only the beginning needs to be cleaned.
    cleaned = clean(text[:limit])
    if len(cleaned) <= limit and len(text) <= limit:
        return cleaned
    kept = cleaned[: max(0, limit - 24)]
    return f"{kept} … ({len(text) - min(len(kept), len(text)):,} more characters)"


def fold_labels(labels: Iterable[str], limit: int | None = None) -> str:
    """Fold rank labels as ClusterShell folds node names: ``TP0,2-7``, ``DP0-1 TP0-3``, ``rank 0,2-6``.

    Equal labels without a number are counted (``2 × detokenizer``). `limit` is a length in characters beyond which
    the list is cut at a comma and the rest is counted.
    """
    shapes: dict[tuple[str, ...], set[tuple[int, ...]]] = defaultdict(set)
    total = 0
    plain: Counter[str] = Counter()
    for label in labels:
        total += 1
        parts = _DIGITS.split(label)
        # A number with leading zeros ("node01") is part of a name, not a coordinate.
        if any(part.startswith("0") and len(part) > 1 for part in parts[1::2]):
            parts = [label]
        if len(parts) == 1:
            plain[label] += 1
        else:
            shapes[tuple(parts[0::2])].add(tuple(int(part) for part in parts[1::2]))
    texts = [text for shape, points in sorted(shapes.items()) for text in _fold_shape(shape, points)]
    texts += [label if times == 1 else f"{times} × {label}" for label, times in plain.items()]
    folded = ", ".join(texts)
    if limit is None or len(folded) <= limit:
        return folded
    head, comma, _ = folded[:limit].rpartition(",")
    return f"{head}, … ({total:,} in all)" if comma else clip(folded, limit)


def _fold_shape(shape: tuple[str, ...], points: set[tuple[int, ...]]) -> list[str]:
    # One axis at a time, innermost first: points that differ only on that axis become one point with a range there.
    rows: set[tuple[int | str, ...]] = set(points)
    for axis in reversed(range(len(shape) - 1)):
        along: dict[tuple[int | str, ...], list[int]] = defaultdict(list)
        for row in rows:
            value = row[axis]
            assert isinstance(value, int)
            along[row[:axis] + row[axis + 1 :]].append(value)
        rows = {(*rest[:axis], _ranges(values), *rest[axis:]) for rest, values in along.items()}
    ordered = sorted(rows, key=lambda row: [int(_DIGITS.findall(str(value))[0]) for value in row])
    return ["".join(_interleave(shape, row)) for row in ordered]


def _interleave(shape: tuple[str, ...], row: tuple[int | str, ...]) -> Iterable[str]:
    for index, text in enumerate(shape):
        yield text
        if index < len(row):
            yield str(row[index])


def _ranges(values: list[int]) -> str:
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def fold_values(values: Mapping[str, str]) -> str:
    """Rank label -> value, by value: ``mlx5_2 on TP3; mlx5_0 on TP0-2,4-6``, the rarest value first."""
    ranks: dict[str, list[str]] = defaultdict(list)
    for rank, value in values.items():
        ranks[value].append(rank)
    rarest = sorted(ranks.items(), key=lambda pair: (len(pair[1]), pair[0]))
    shown = (
        f"{clean(value) or 'empty'} on {clean(fold_labels(labels, limit=60))}" for value, labels in rarest[:8]
    )
    more = f"; {len(rarest) - 8:,} more values" if len(rarest) > 8 else ""
    return "; ".join(shown) + more


def duration(seconds: float) -> str:
    """``12 ms``, ``3.4 s``, ``34 s``, ``5 min 12 s``, ``2 h 3 min``, ``3 d 4 h``; bare ``0 s`` for nothing."""
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 0.0005:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, small, small_size in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def amount(value: float) -> str:
    """Bytes in decimal units, as disks and networks are sold: ``1.2 GB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 999.5 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 99.5 else f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def rate(value: float, unit: str | None) -> str:
    """A rate at a scale a person can watch: ``1.2 GB/s``, ``3.4 layers/s``, ``5 layers/min``."""
    if unit == "bytes/s":
        return f"{amount(value)}/s"
    if unit is not None and unit.endswith("/s") and 0 < value < 0.5:
        scale, per = (60, "min") if value * 60 >= 0.5 else (3600, "h")
        return f"{value * scale:.3g} {unit[:-2]}/{per}"
    return f"{value:.3g} {unit}" if unit else f"{value:.3g}"


def gpu_text(values: Mapping[str, float | int | str | None]) -> str:
    """``GPU 3: 100 %, 118 of 700 W, 76 GB``."""
    share, power, limit, memory = map(
        values.get, ("utilization_percent", "power_w", "power_limit_w", "memory_bytes")
    )
    parts = []
    if isinstance(share, int | float):
        parts.append(f"{share:.0f} %")
    if isinstance(power, int | float):
        of = f" of {limit:.0f}" if isinstance(limit, int | float) else ""
        parts.append(f"{power:.0f}{of} W")
    if isinstance(memory, int | float):
        parts.append(amount(memory))
    return clean(f"GPU {values.get('index', '?')}: {', '.join(parts) or 'nothing known'}")


def bar(percent: float, width: int = 20) -> str:
    """A bar of `width` cells for 0..100."""
    filled = round(min(max(percent, 0.0), 100.0) / 100 * width)
    return "█" * filled + "░" * (width - filled)


def count(number: int, noun: str, plural: str | None = None) -> str:
    """``1 look``, ``3 looks``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def utc(unix_time: float) -> str:
    """``2026-11-29 17:43:02 UTC``, or the bare number where it is no date."""
    try:
        return datetime.fromtimestamp(unix_time, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return str(unix_time)


@lru_cache(maxsize=4096)
def short_path(path: str) -> str:
    """A source file as its package names it; at most four components where no package root is known."""
    root = _PACKAGE_ROOT.match(path)
    if root is not None:
        return clip(path[root.end() :], _LONGEST_PATH)
    parts = path.split("/")
    return clip("/".join(parts[-4:]) if len(parts) > 5 else path, _LONGEST_PATH)


def location(frame: Frame) -> str:
    """``vllm/v1/worker/gpu_worker.py:412``; the library for a native frame without a source file."""
    path = short_path(frame.file or frame.module or "")
    return f"{path}:{frame.line}" if frame.line is not None and path else path


def call(frame: Frame, *, brief: bool = False) -> str:
    """``execute_model (vllm/v1/worker/gpu_worker.py:412)``; `brief` keeps only the file's name."""
    place = location(frame)
    if brief:
        place = place.rpartition("/")[2]
    return f"{clean(frame.function)} ({place})" if place else clean(frame.function)


def without_reasons(text: str) -> str:
    """A known hang without the bracket that says why it fits: ``title (stack; log line). Meaning.``"""
    start = text.find(" (")
    depth = 0
    for index in range(start + 1, len(text)) if start > 0 else ():
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return text[:start] + text[index + 1 :]
    return text


def brief_stack(text: str, shown: int = 2) -> str:
    """Evidence that quotes a stack, with its innermost frames only: the whole stack stands below it on the screen."""
    frames = text.split(_CALLER)
    counted = _MORE.fullmatch(frames[-1])
    hidden = int(counted[1]) - 1 if counted else 0
    if len(frames) <= shown + 1:
        return text
    return _CALLER.join((*frames[:shown], f"{len(frames) - shown + hidden} more"))


def progress_text(progress: Progress) -> str:
    """``moves: 41 %, 1.2 GB/s, about 5 min left; read model-00012-of-00061.safetensors``."""
    numbers = []
    if progress.percent is not None:
        numbers.append(f"{progress.percent:.0f} %")
    if progress.rate is not None:
        numbers.append(rate(progress.rate, progress.unit))
    if progress.eta_s is not None:
        numbers.append(f"about {duration(progress.eta_s)} left")
    parts = [part for part in (", ".join(numbers), clean(progress.what or "")) if part]
    word = _PROGRESS_WORDS[progress.kind]
    return f"{word}: {'; '.join(parts)}" if parts else word
