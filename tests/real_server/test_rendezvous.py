"""Two nodes that were given different rendezvous ports: an unpatched server's most common start-up hang."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from hangdoctor.report import Kind
from tests.expectations import Expectation
from tests.real_server.installation import Installation
from tests.real_server.judging import Truth, attach_and_judge
from tests.real_server.server import free_port, serving

pytestmark = [pytest.mark.real_server, pytest.mark.slow]


def test_two_nodes_meet_at_different_ports(vllm: Installation, tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = []
        for number in (0, 1):
            options = ["--nnodes", "2", "--node-rank", str(number), "--master-addr", "127.0.0.1"]
            options += ["--master-port", str(free_port()), *(["--headless"] if number else [])]
            server = serving(vllm, options=options, environment={"VLLM_HOST_IP": "127.0.0.1"})
            nodes.append(stack.enter_context(server))
        workers = [node.titled("VLLM::Worker") for node in nodes]
        for number, node in enumerate(nodes):
            expected = Expectation(
                truth=f"node {number} of two waits at a rendezvous where the other never comes: their ports differ",
                note="Only this node is looked at, as a person on it would; who is missing is on the other node.",
                kinds=(Kind.HUNG, Kind.UNKNOWN),
                culprits=frozenset((workers[number],)),
                is_unseen=True,
                causes=("missing-peer",),
                phases=("dist-init", "rendezvous", "store-wait"),
            )
            attach_and_judge(node.pid, Truth(f"wrong-port-node{number}", expected), tmp_path)
