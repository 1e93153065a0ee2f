"""Options of the whole suite."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from npusim.base import workers
from npusim.machine.timing.fast.library import SWITCH, levels, name
from tests import sampled

#: What ``make test`` compiles once, for its processes and theirs.
ENGINE = Path(__file__).parents[1] / "build" / "engine" / name(levels()[0])


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
    parser.addoption(
        "--slow",
        action="store_true",
        help="run tests marked slow, and those that draw examples with all of them",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Nothing is compiled in the background: `make test` has a library, else tests compile.
    compiled = ENGINE.is_file() and not config.getoption("--quick")
    os.environ.setdefault(SWITCH, str(ENGINE) if compiled else "numba")
    if config.getoption("--quick"):
        config.option.markexpr = "not slow and not compiled"
        sys.meta_path.insert(0, NoCompiler())
    if config.getoption("--slow"):
        config.option.markexpr = "slow or drawn"
    sampled.ALL = (
        config.getoption("--slow")
        or config.getoption("--update-replay")
        or config.option.markexpr == "replay"
    )


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stores of the tests' own: what the user keeps is neither read nor written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPUSIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_process() -> Iterator[None]:
    """Work is done in the test's own process where it does not say in how many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "processors", lambda: 1)
        yield


@pytest.fixture(autouse=True)
def no_error_of_another_test() -> None:
    """``aclGetRecentErrMsg`` remembers a thread's last error until it is asked for."""
    runtime = sys.modules.get("npusim.compat.acl_runtime")
    if runtime is not None:
        runtime.aclGetRecentErrMsg()


@pytest.fixture(params=[pytest.param("fast", marks=pytest.mark.compiled), "simpy"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn; in ``make quick`` the readable one alone."""
    name: str = request.param
    return name
