"""Ranks that wait for each other at different ports: a start-up that never ends, silent until a timeout of minutes."""

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


def test_two_ranks_of_one_server_meet_at_different_ports(vllm: Installation, tmp_path: Path) -> None:
    ports = f"{free_port()},{free_port()}"
    with serving(vllm, environment={"TIDEPOOL_PORTS": ports}) as server:
        workers = server.wait_for_rendezvous(2)
        expected = Expectation(
            truth="worker 1 was given another rendezvous port than worker 0",
            note="Both stacks are the same; worker 0 listens, worker 1 tries to connect where nobody listens.",
            kinds=(Kind.HUNG,),
            culprits=frozenset(workers.values()),
            causes=("missing-peer", "all-in-collective"),
            phases=("dist-init", "rendezvous", "store-wait"),
        )
        attach_and_judge(server.pid, Truth("wrong-port", expected), tmp_path)


def test_two_nodes_meet_at_different_ports(vllm: Installation, tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = []
        for number in (0, 1):
            options = ["--nnodes", "2", "--node-rank", str(number), "--master-addr", "127.0.0.1"]
            options += ["--master-port", str(free_port()), *(["--headless"] if number else [])]
            server = serving(vllm, options=options, environment={"VLLM_HOST_IP": "127.0.0.1"})
            nodes.append(stack.enter_context(server))
        for number, node in enumerate(nodes):
            worker = node.wait_for_rendezvous(1)[number]
            expected = Expectation(
                truth=f"node {number} of two waits at a rendezvous where the other never comes: their ports differ",
                note="Only this node is looked at, as a person on it would; who is missing is on the other node.",
                kinds=(Kind.HUNG, Kind.UNKNOWN),
                culprits=frozenset((worker,)),
                is_unseen=True,
                causes=("missing-peer",),
                phases=("dist-init", "rendezvous", "store-wait"),
            )
            attach_and_judge(node.pid, Truth(f"wrong-port-node{number}", expected), tmp_path)
