"""``hangdoctor --version``: what a ticket needs to know, without loading any of it."""

from __future__ import annotations

import os
import sys

from hangdoctor import __version__


def version_text() -> str:
    """hangdoctor's version, py-spy's, the revision of the knowledge files and Python's, one a line."""
    return "\n".join(
        (
            f"hangdoctor {__version__}",
            f"py-spy {_py_spy_version() or 'not found beside hangdoctor'}",
            f"knowledge {knowledge_revision()}",
            f"python {'.'.join(map(str, sys.version_info[:3]))}",
        )
    )


def _py_spy_version() -> str | None:
    # The name of its metadata folder says it. importlib.metadata would parse mail headers (11 ms), and running
    # py-spy costs as much as all the rest.
    for entry in sys.path:
        try:
            names = os.listdir(entry or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("py_spy-") and name.endswith(".dist-info"):
                return name[len("py_spy-") : -len(".dist-info")]
    return None


def knowledge_revision() -> str:
    """The revision that `load_knowledge` computes, without parsing the files; the tests compare the two."""
    try:
        # The interpreter's own implementation: loading OpenSSL behind hashlib takes longer than hashing.
        from _sha256 import sha256  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import sha256
    folder = os.path.join(sys.modules["hangdoctor"].__path__[0], "knowledge")
    digest = sha256()
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".toml")):
        with open(os.path.join(folder, name), "rb") as file:
            digest.update(name.encode() + b"\0" + file.read() + b"\0")
    return str(digest.hexdigest()[:12])
