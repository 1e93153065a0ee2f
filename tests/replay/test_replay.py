"""Calls give what they gave when ``tests/data/replay.csv`` was written, cycle by cycle, bit by bit.

``make replay`` compares every call and every measured kernel. After a change that is meant to move
figures, ``make replay UPDATE=1`` writes both files anew; their difference belongs into the commit,
and its reason into CHANGELOG.md.
"""

from __future__ import annotations

import pytest

from npusim.validation.rows import KernelRow
from npusim.validation.sheet import shipped_sheets
from npusim.validation.simulate import simulate_row
from tests.replay.calls import CALLS, pairs
from tests.replay.digests import CALLS_FILE, ROWS_FILE, Digest, Timed, digest, read, short, write

ROWS = {row.id: row for row in shipped_sheets()[0].rows if isinstance(row, KernelRow)}


def replayed(call: str, device: str) -> Digest:
    return digest(call, device, CALLS[call][0](device))


def timed(row_id: str) -> Timed:
    """A measured kernel as it is simulated; the words of a refusal are not compared."""
    outcome = simulate_row(ROWS[row_id], {})
    assert not outcome.failed, outcome.reason
    if outcome.simulated is None:
        return Timed(row_id, "declined", "-")
    busy = repr(sorted((pipe, us) for pipe, us in outcome.simulated.busy_us.items() if us)).encode()
    return Timed(row_id, repr(outcome.simulated.time_us), short([busy]))


@pytest.fixture(scope="module")
def update(request: pytest.FixtureRequest) -> bool:
    """Whether to write the files instead of comparing with them."""
    return bool(request.config.getoption("--update-replay"))


@pytest.mark.replay
def test_the_files_are_written_anew(update: bool) -> None:
    if not update:
        pytest.skip("only with --update-replay")
    write(CALLS_FILE, Digest, [replayed(*pair) for pair in pairs()])
    write(ROWS_FILE, Timed, [timed(row_id) for row_id in ROWS])


def test_every_call_and_measured_kernel_has_its_line() -> None:
    assert set(read(CALLS_FILE, Digest)) == set(pairs()), "run `make replay UPDATE=1`"
    assert set(read(ROWS_FILE, Timed)) == {(row_id,) for row_id in ROWS}


@pytest.mark.replay
@pytest.mark.parametrize(("call", "device"), pairs())
def test_call(call: str, device: str) -> None:
    assert replayed(call, device) == read(CALLS_FILE, Digest)[call, device]


@pytest.mark.replay
@pytest.mark.parametrize("row_id", ROWS)
def test_measured_kernel(row_id: str) -> None:
    assert timed(row_id) == read(ROWS_FILE, Timed)[(row_id,)]
