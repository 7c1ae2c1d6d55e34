"""When the tests on a real server run, and what is said when they do not.

They run where scripts/real_vllm has installed a vLLM, and only when they are asked for: ``-m real_server`` (which
scripts/real_vllm test gives), or ``vllm`` in HANGDOCTOR_REQUIRE, which also makes a missing installation an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_server import installation, judging
from tests.real_server.installation import Installation
from tests.real_server.server import START_S, Server, serving

HERE = Path(__file__).parent
_skipped: list[str] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip them all, once, with the reason."""
    mine = [item for item in items if HERE in item.path.parents and item.get_closest_marker("real_server")]
    reason = _reason_to_skip(config)
    for item in mine:
        item.add_marker(pytest.mark.timeout(START_S * 2))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    if mine and reason:
        _skipped.append(f"{len(mine)} tests on a real vLLM server: {reason}")


def _reason_to_skip(config: pytest.Config) -> str:
    is_required = "vllm" in os.environ.get("HANGDOCTOR_REQUIRE", "").split(",")
    if not is_required and "real_server" not in (config.option.markexpr or ""):
        return "not asked for; scripts/real_vllm test runs them"
    if not is_required and installation.find() is None:
        return "no vLLM is installed; scripts/real_vllm install brings it"
    return ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not tested, and what the server was said to be."""
    for line in _skipped:
        terminalreporter.write_line(f"*** SKIPPED: {line}", yellow=True, bold=True)
    if judging.SAID:
        terminalreporter.section("answers about the real server")
        for line in judging.summary():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def vllm() -> Installation:
    """The installation. Fails where it is required and missing."""
    found = installation.find()
    assert found is not None, "no vLLM is installed: scripts/real_vllm install"
    return found


@pytest.fixture(scope="module")
def keeper(vllm: Installation) -> Iterator[Keeper]:
    """One server for all tests of a module."""
    keeper = Keeper(vllm)
    yield keeper
    keeper.close()


class Keeper:
    """Keeps one server for several tests, because a start costs 20 s and more; a spent one is replaced."""

    def __init__(self, vllm: Installation) -> None:
        self._vllm = vllm
        self._context = None
        self._server: Server | None = None
        self._is_warm = False
        self._options: dict[str, str] = {}

    def fresh(self, **environment: str) -> Server:
        """A server that has only just been started."""
        self.close()
        self._options = environment
        self._context = serving(self._vllm, environment=environment)
        self._server = self._context.__enter__()
        return self._server

    def ready(self, *, is_warm: bool = True, **environment: str) -> Server:
        """A server that answers; ``is_warm``: it has compiled what a first request compiles."""
        server = self._server
        if server is None or environment != self._options or server.popen.poll() is not None:
            server = self.fresh(**environment)
        server.wait_until_ready()
        if is_warm and not self._is_warm:
            server.ask().tokens(START_S)
            self._is_warm = True
        return server

    def close(self) -> None:
        """End it, if there is one."""
        if self._context is not None:
            self._context.__exit__(None, None, None)
        self._context = self._server = None
        self._is_warm = False
