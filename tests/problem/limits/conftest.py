"""``make replay UPDATE=1`` writes the sentences of refusals anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.problem.limits import entrances
from tests.replay.digests import REFUSALS_FILE, Refusal, write


@pytest.fixture(scope="session", autouse=True)
def renewed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Write what was met, where that was asked for."""
    entrances.RENEWED = bool(request.config.getoption("--update-replay"))
    yield
    if entrances.RENEWED:
        write(REFUSALS_FILE, Refusal, sorted(entrances.MET.values()))
