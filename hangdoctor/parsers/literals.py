"""A quick "surely not" for log lines: 150 literals need not be searched in every line.

A literal that contains a word with something that ends it on both sides can only occur in a line that has this
very word. The words of a line are found once and looked up; what has no such word is searched as before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORD = re.compile(r"\w+")
_INNER_WORD = re.compile(r"(?<=[^\w])\w+(?=[^\w])")


class LiteralIndex:
    """Says whether any of the literals might occur in a line."""

    def __init__(self, literals: Iterable[str]) -> None:
        words: set[str] = set()
        loose: list[str] = []
        for literal in literals:
            inner = _INNER_WORD.findall(literal)
            if inner:
                words.add(max(inner, key=len))
            else:
                loose.append(literal)
        self._words = frozenset(words)
        self._loose = tuple(loose)

    def may_hold(self, line: str) -> bool:
        """``False``: none of the literals is in ``line``."""
        if not self._words.isdisjoint(_WORD.findall(line)):
            return True
        return any(literal in line for literal in self._loose)
