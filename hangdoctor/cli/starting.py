"""The moment at which a look begins, agreed on with other hosts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from hangdoctor.collect import Tree
from hangdoctor.errors import WrongUsage

MOST_S = 3600.0
"""Nobody plans a look further ahead; a larger number is a mistyped time."""


def wait_for_start(text: str, tree: Tree, say: Callable[[str], None]) -> None:
    """Return at the Unix time ``text``; with ``-`` say ``@ready {…}`` first and read the time from standard input.

    Raises WrongUsage for what is no time. A time that has passed means: now.
    """
    if text == "-":
        say(f"@ready {json.dumps({'rendezvous': tree.meeting, 'processes': len(tree.members)})}")
        text = sys.stdin.readline().strip()
        if not text:
            raise KeyboardInterrupt  # whoever should have said it has gone
    try:
        ahead = float(text) - time.time()
    except ValueError:
        raise WrongUsage(f"--start-at {text!r} is no Unix time", hint="date +%s") from None
    if not ahead <= MOST_S:
        raise WrongUsage(f"--start-at {text} is more than {MOST_S:.0f} s ahead", hint="date +%s")
    time.sleep(max(0.0, ahead))
