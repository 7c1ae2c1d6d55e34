"""Keep a capture of a real incident as a test: ``record_bundle.py CAPTURE NAME [--rename FROM=TO]…``.

Writes tests/bundles/NAME/capture.hang, with every text that contains FROM rewritten (paths and hosts of the machine
it was taken on do not belong in a test), and prints what it is diagnosed as. The right answer is then written by hand
into tests/bundles/NAME/expected.toml, before anybody looks at what the tool says.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from hangdoctor import bundle
from hangdoctor.analysis import diagnose
from hangdoctor.knowledge import load_knowledge

BUNDLES = Path(__file__).parent.parent / "tests" / "bundles"


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The same value with every text rewritten."""
    if isinstance(value, str) and type(value) is str:
        for old, new in names.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, tuple):
        return tuple(renamed(item, names) for item in value)
    if isinstance(value, Mapping):
        return {key: renamed(item, names) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: renamed(getattr(value, f.name), names) for f in fields(value)})
    return value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("capture", type=Path)
    parser.add_argument("name")
    parser.add_argument("--rename", action="append", default=[], metavar="FROM=TO")
    words = parser.parse_args()
    names = dict(pair.split("=", 1) for pair in words.rename)
    capture = renamed(bundle.read(str(words.capture)), names)
    path = BUNDLES / words.name / "capture.hang"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    bundle.write(capture, str(path))
    path.chmod(0o644)  # public test data
    verdict = diagnose(capture, load_knowledge()).verdict
    print(f"{path.stat().st_size:>8}  {words.name}: {verdict.kind.value}, {verdict.summary}")


if __name__ == "__main__":
    main()
