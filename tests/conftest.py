"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-replay",
        action="store_true",
        help="write tests/data/replay*.csv anew instead of comparing with them",
    )
