"""From a capture to a diagnosis. Pure: no file, process or clock is touched here."""

from __future__ import annotations

import gc

from hangdoctor.analysis.assemble import write_report
from hangdoctor.analysis.build import build_case
from hangdoctor.knowledge import Knowledge
from hangdoctor.model import Capture
from hangdoctor.report import Report


def diagnose(capture: Capture, knowledge: Knowledge) -> Report:
    """Say whether the job in ``capture`` is hung, slow, ready or cannot be told, and who holds it up."""
    # A case has no cycles either, and looking for some costs more the larger the capture is.
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return write_report(build_case(capture, knowledge), knowledge)
    finally:
        if is_collecting:
            gc.enable()


__all__ = ["build_case", "diagnose", "write_report"]
