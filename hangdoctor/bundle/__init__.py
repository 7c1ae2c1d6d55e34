"""How a capture is kept on disk: one file, readable for ever, valid after every snapshot (docs/bundle.md).

    write(capture, "x.hang")            whole capture, atomically, mode 0600
    read("x.hang") -> Capture           this and every older format; damaged files as far as they go
    with BundleWriter("x.hang", …)      the same, snapshot by snapshot, as they are taken

``"-"`` is standard output or standard input; an open binary stream is taken too. The file is a row of gzip
members of one JSON record each (``zcat x.hang | head -1 | jq``), so the loss of some bytes loses the records
they belong to and no others.
"""

from __future__ import annotations

from hangdoctor.bundle.builders import Shared
from hangdoctor.bundle.container import LIMITS, Limits
from hangdoctor.bundle.reader import looks_like_bundle, read
from hangdoctor.bundle.version import FORMAT, FormatVersion
from hangdoctor.bundle.writer import BundleWriter, bundle_name, write

__all__ = [
    "FORMAT",
    "LIMITS",
    "BundleWriter",
    "FormatVersion",
    "Limits",
    "Shared",
    "bundle_name",
    "looks_like_bundle",
    "read",
    "write",
]
