"""Offline input: dumps and logs that people already have become a :class:`Capture` (docs/offline.md).

    read_files(paths, knowledge) -> Capture     files, folders, "-", bundles
    read_text(text, name) -> Capture            one pasted ticket

The format is recognised by content. What could not be read is a Gap with line numbers; nothing that a file contains
raises, and nothing in it is ever evaluated or unpickled.
"""

from __future__ import annotations

from hangdoctor.parsers.log_lines import LogKnowledge
from hangdoctor.parsers.reading import describe_formats, read_files, read_text

__all__ = ["LogKnowledge", "describe_formats", "read_files", "read_text"]
