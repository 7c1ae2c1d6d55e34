"""Many hosts at once, on ClusterShell: ask each for what it sees, and make one capture of the answers.

    expand("node[1-4]") -> names          parse_via("ssh") -> Via
    ask_hosts(names, via, errand, patience) -> answers, a host each, within bounded time
    read_captures(answers) -> captures, gaps;  combine(captures, gaps, asked) -> Capture

Only this room knows ClusterShell, and imports it when it is used: it is the extra ``hangdoctor[cluster]``.
"""

from __future__ import annotations

from hangdoctor.cluster.answers import Answer, Clock
from hangdoctor.cluster.captures import combine, read_captures
from hangdoctor.cluster.hosts import Via, expand, first_named, local_among, parse_via
from hangdoctor.cluster.rounds import Errand, Patience, ask_hosts

__all__ = [
    "Answer",
    "Clock",
    "Errand",
    "Patience",
    "Via",
    "ask_hosts",
    "combine",
    "expand",
    "first_named",
    "local_among",
    "parse_via",
    "read_captures",
]
