"""Errors as small documents: what happened, why it usually happens, what to type.

Collectors never raise these for a single process (that is a :class:`hangdoctor.model.Gap`); they are for the
cases in which there is nothing to report on.
"""

from __future__ import annotations


class HangdoctorError(Exception):
    """Base of everything a user can cause. ``hint`` is the remedy, ``exit_code`` as in CONTRACT.md."""

    exit_code = 5

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class WrongUsage(HangdoctorError):
    """Options that contradict each other, or an argument that cannot be meant."""

    exit_code = 2


class TargetNotFound(HangdoctorError):
    """No such process, nothing matched, or more than one server to choose from."""


class NotPermitted(HangdoctorError):
    """The kernel refuses to show the process to us."""


class NothingCollected(HangdoctorError):
    """Every collector failed; the message lists why."""


class UnreadableInput(HangdoctorError):
    """A file that is no bundle and no dump, is damaged, or was made by a newer major version."""
