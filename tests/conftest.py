"""Options of the whole suite."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest


class NoCompiler(MetaPathFinder):
    """Refuses to import Numba, which ``make quick`` has no time for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "numba":
            raise ImportError(
                "a test of `make quick` uses the compiled engine; pass engine='simpy', or mark the "
                "test with pytest.mark.compiled"
            )
        return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-replay",
        action="store_true",
        help="write tests/data/replay*.csv anew instead of comparing with them",
    )
    parser.addoption(
        "--quick",
        action="store_true",
        help="leave out tests marked slow or compiled, and do not import Numba for the others",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        config.option.markexpr = "not slow and not compiled"
        sys.meta_path.insert(0, NoCompiler())


@pytest.fixture(params=[pytest.param("fast", marks=pytest.mark.compiled), "simpy"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn; in ``make quick`` the readable one alone."""
    name: str = request.param
    return name
