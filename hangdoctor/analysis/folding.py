"""Many ranks in few words: ``TP0,2-7`` instead of seven names."""

from __future__ import annotations

from collections.abc import Iterable

_DIGITS = "0123456789"


def fold_numbers(numbers: Iterable[int]) -> str:
    """``0,2-7`` for {0, 2, 3, 4, 5, 6, 7}."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def fold_labels(labels: Iterable[str]) -> str:
    """Fold labels that differ in their last number: ``TP0,2-7``, ``rank 0-3``, ``DP0 TP0-1, DP1 TP0-1``."""
    numbered: dict[str, list[int]] = {}
    plain: dict[str, int] = {}
    for label in labels:
        stem = label.rstrip(_DIGITS)  # a third of what a regular expression takes, for a million ranks
        if len(stem) < len(label):
            numbered.setdefault(stem, []).append(int(label[len(stem) :]))
        else:
            plain[label] = plain.get(label, 0) + 1
    parts = [f"{stem}{fold_numbers(values)}" for stem, values in numbered.items()]
    parts += [label if count == 1 else f"{count} × {label}" for label, count in plain.items()]
    return ", ".join(parts)
