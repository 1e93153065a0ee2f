"""Calls give what they gave when ``tests/data/replay.csv`` was written, cycle by cycle, bit by bit.

``make replay`` compares every call and every row of ``configs/silicon``, ``make test`` a share.
After a change that is meant to move figures, ``make replay UPDATE=1`` writes both files anew; their
difference belongs into the commit, and its reason into CHANGELOG.md.
"""

from __future__ import annotations

import pytest

from npusim.silicon.rows import CallRow, KernelRow
from npusim.silicon.sheet import shipped_sheets
from npusim.silicon.simulate import simulate_row
from tests.replay.calls import CALLS, pairs
from tests.replay.digests import CALLS_FILE, ROWS_FILE, Digest, Timed, digest, read, short, write
from tests.sampled import ALIKE, slow_if

ROWS = {
    row.id: row
    for sheet in shipped_sheets()
    for row in sheet.rows
    if isinstance(row, KernelRow | CallRow)
}

#: A network is the dearest call: one of its devices.
PAIRS = [
    slow_if(device in ALIKE or (call == "resnet50" and device != "ascend910b2"), call, device)
    for call, device in pairs()
]


def replayed(call: str, device: str) -> Digest:
    return digest(call, device, CALLS[call](device))


def timed(row_id: str) -> Timed:
    """A measured kernel or call as it is simulated; the words of a refusal are not compared."""
    outcome = simulate_row(ROWS[row_id], {})
    assert not outcome.failed, outcome.reason
    if outcome.simulated is None:
        return Timed(row_id, "declined", "-")
    found = outcome.simulated
    parts = sorted((pipe, us) for pipe, us in found.busy_us.items() if us)
    told = parts if isinstance(ROWS[row_id], KernelRow) else [*found.kernels, *found.notes]
    return Timed(row_id, repr(found.time_us), short([repr(told).encode()]))


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


@pytest.mark.replay
def test_every_call_and_measured_row_has_its_line() -> None:
    assert set(read(CALLS_FILE, Digest)) == set(pairs()), "run `make replay UPDATE=1`"
    assert set(read(ROWS_FILE, Timed)) == {(row_id,) for row_id in ROWS}


@pytest.mark.replay
@pytest.mark.parametrize(("call", "device"), PAIRS)
def test_call(call: str, device: str) -> None:
    assert replayed(call, device) == read(CALLS_FILE, Digest)[call, device]


@pytest.mark.replay
@pytest.mark.parametrize(
    "row_id", [slow_if(place % 4 > 0, name) for place, name in enumerate(ROWS)]
)
def test_measured_row(row_id: str) -> None:
    assert timed(row_id) == read(ROWS_FILE, Timed)[(row_id,)]
