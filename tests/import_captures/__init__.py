"""Turns recordings of real servers into captures, so that the analysis can be scored on what it has never seen.

The recordings were made with other programs (py-spy, /proc readers, ss, NVML) before hangdoctor existed. What
they lack stays ``None`` with a gap that says so; what was really wrong (truth.json, the names of the stages) never
gets into a capture.

    python -m tests.import_captures ../shared/captures        writes tests/bundles/<stage>/capture.hang
"""

from __future__ import annotations

from tests.import_captures.stages import Stage, find_stages

__all__ = ["Stage", "find_stages"]
