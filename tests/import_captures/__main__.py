"""Writes every recorded stage as a bundle into tests/bundles."""

from __future__ import annotations

import sys
from pathlib import Path

from hangdoctor import bundle
from tests.import_captures import find_stages

BUNDLES = Path(__file__).parent.parent / "bundles"


def main(captures: Path) -> None:
    """Import all stages below ``captures``."""
    for stage in find_stages(captures):
        path = BUNDLES / stage.name / "capture.hang"
        path.parent.mkdir(parents=True, exist_ok=True)
        bundle.write(stage.load(), path)
        path.chmod(0o644)  # public test data
        print(f"{path.stat().st_size:>8}  {stage.name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
