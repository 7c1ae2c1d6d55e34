"""Options of the whole test suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden``: write the golden files of the report formats anew; review the difference."""
    parser.addoption("--update-golden", action="store_true", default=False, help="write tests/golden anew")
