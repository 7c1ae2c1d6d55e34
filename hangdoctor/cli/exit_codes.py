"""What the exit codes mean; they are part of the contract with scripts."""

from __future__ import annotations

DONE, BUG, USAGE, HUNG, CANNOT_TELL, COULD_NOT_LOOK, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

EXIT_CODES = (
    ("0", "not hung: ready, or slow but moving"),
    ("1", "a bug in hangdoctor"),
    ("2", "wrong usage"),
    ("3", "hung"),
    ("4", "cannot tell"),
    ("5", "could not look: no such process, not permitted, unreadable file"),
    ("130", "interrupted; what was collected is saved"),
)
OTHER_EXIT_CODES = (("0", "done"), *(pair for pair in EXIT_CODES if pair[0] in ("1", "2", "5", "130")))
"""Of commands that give no verdict."""
