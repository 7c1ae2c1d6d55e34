"""One frame as people paste it: ``wait (threading.py:327)``, ``0x7f66 (libc.so.6)``, ``cuStreamSynchronize``."""

from __future__ import annotations

import re

from hangdoctor.model import Frame

_SOURCE_SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".cu", ".cuh", ".S", ".rs", ".s")
_LIBRARY = re.compile(r"\.so(?:\.[\w.]+)?$|^\[\w+\]$|^(?:lib)?python\d?[\d.]*t?d?$|^\?$|\.dylib$|\.pyd$")
_PLACE = re.compile(r"(.*?):(\d{1,9})$")

# A function as Python or a C++ demangler writes it. Prose ends in "(…)" too, so spaces are allowed only inside
# what a demangler puts there.
_PYTHON_NAME = re.compile(r"[\w.]*(?:<[\w ]+>[\w.]*)*$")
_NATIVE_NAME = re.compile(
    r"~?[A-Za-z_$0-9][\w:<>~$@.+*&,\-\[\]{}#]*(?:[ (][\w:<>~$@.+*&,()\[\]{}# =|!/\-]*)?$"
)
_BARE = re.compile(r"[A-Za-z_~][\w:.<>~]*(?:\(\))?$")
_PLACE_LIKE = re.compile(
    r"(?:[^()]*\.(?:py|pyx|pyi|c|cc|cpp|cxx|h|hpp|cu|cuh|S|rs)|<[^()<>]*>(?:\.\d+)?|<[^()]*|__init__)(?::\d{1,9})?$"
)


class FrameTable:
    """Turns lines into frames, each distinct line once: 64 ranks x 200 threads repeat a few hundred lines."""

    # Beyond this many distinct lines the input is no dump but noise, and memory must stay bounded.
    _MOST = 400_000
    _REST = Frame("(too many different frames)", "")

    def __init__(self) -> None:
        self._known: dict[str, Frame] = {}

    @property
    def is_full(self) -> bool:
        """Whether frames were given up."""
        return len(self._known) >= self._MOST

    def read(self, line: str) -> Frame | None:
        """The frame in a line that surely lies within a stack; ``None`` when it is none."""
        try:
            return self._known[line]
        except KeyError:
            if self.is_full:
                return self._REST if line.endswith(")") else None
            frame = read_frame(line.strip())
            if frame is not None:
                self._known[line] = frame
            return frame


def read_frame(text: str) -> Frame | None:
    """``function (place)`` or a bare symbol. Lenient: for lines within a stack."""
    if not text or len(text) > 4096:
        return None
    if text[-1] != ")":
        return _bare(text)
    start = _opening_parenthesis(text)
    if start is None:
        return None
    name, place = text[:start].rstrip(), text[start + 1 : -1].strip()
    if not name:
        return None
    if not place or text[start - 1] != " ":
        return _bare(text)
    if not _is_place(place):
        # "_local_scalar_dense_cuda (tensor.item())": a remark, not a place.
        return Frame(name, "") if _BARE.match(name) and _is_symbol(name) else None
    return _frame(name, place)


def is_frame(text: str) -> bool:
    """Strict: whether a line outside any stack can only be a frame."""
    if not text or text[-1] != ")" or len(text) > 4096 or " (" not in text:
        return False
    start = _opening_parenthesis(text)
    if start is None or start == 0 or text[start - 1] != " ":
        return False
    name, place = text[:start].rstrip(), text[start + 1 : -1].strip()
    if _PLACE_LIKE.match(place):
        return bool(_PYTHON_NAME.match(name)) or "::" in name or " " not in name
    return bool(_LIBRARY.search(place)) and place != "?" and bool(_NATIVE_NAME.match(name))


def is_symbol_line(text: str) -> bool:
    """Whether a line is nothing but one function name that prose would not contain (``ncclLocalOpAppend``)."""
    return len(text) <= 200 and bool(_BARE.match(text)) and _is_symbol(text)


def _opening_parenthesis(text: str) -> int | None:
    """Where the parenthesis that ends ``text`` was opened; names and paths may contain pairs themselves."""
    depth = 0
    for index in range(len(text) - 1, max(-1, len(text) - 1025), -1):
        char = text[index]
        if char == ")":
            depth += 1
        elif char == "(":
            depth -= 1
            if depth == 0:
                return index
    return None


def _is_place(place: str) -> bool:
    return bool(_PLACE.match(place) or _PLACE_LIKE.match(place) or _LIBRARY.search(place))


def _frame(name: str, place: str) -> Frame:
    found = _PLACE.match(place)
    if found is not None:
        file, line = found[1], int(found[2])
        return Frame(name, file, line or None, is_native=file.endswith(_SOURCE_SUFFIXES))
    if place.endswith((".py", ".pyx", ">")) or place.startswith("<"):
        return Frame(name, place)
    return Frame(name, place, module=place if place != "?" else None, is_native=True)


def _bare(text: str) -> Frame | None:
    if not _BARE.match(text) or not _is_symbol(text):
        return None
    return Frame(text.removesuffix("()"), "")


def _is_symbol(text: str) -> bool:
    """An identifier that is no word of prose: has an underscore, a scope, or a capital inside."""
    text = text.removesuffix("()")
    if len(text) < 4 or text.endswith((".", ":")):
        return False
    if "_" in text.strip("_") or "::" in text or text.startswith("__"):
        return True
    return any(c.isupper() for c in text[1:]) and any(c.islower() for c in text) and "." not in text
