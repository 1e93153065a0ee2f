"""From a row to its device and its simulation, and what is said where there is none."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from npusim.base.errors import CapacityError
from npusim.machine.device.spec import Device
from npusim.silicon import simulate
from npusim.silicon.rows import CallRow, Declined, KernelRow, Row, SimulatedRow, Unreadable
from npusim.silicon.simulate import CHIPS, RowOutcome, RowWorkers, device_name, simulate_row

ROOT = Path(__file__).parents[2]


def row(chip: str, cores: int | None = None, **columns: Any) -> KernelRow:
    return KernelRow(id="r", chip=chip, op=columns.pop("op", "add"), cores=cores, **columns)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Device]]:
    """The devices that simulations were asked for, by kind of row; every answer is 7 us."""
    found: list[tuple[str, Device]] = []

    def fake(kind: str) -> Callable[[object, Device], SimulatedRow]:
        def answer(_: object, device: Device) -> SimulatedRow:
            found.append((kind, device))
            return SimulatedRow(7.0, {}, ("k",), ("said",))

        return answer

    for kind in ("gemm", "stream", "call"):
        monkeypatch.setattr(simulate, f"simulate_{kind}_row", fake(kind))
    return found


@pytest.mark.parametrize(
    ("chip", "cores", "name"),
    [*((chip, None, name) for chip, name in CHIPS.items()),
     ("910B", 24, "ascend910b1"), ("910B", 25, "ascend910b1"), ("910B", 20, "ascend910b3"),
     ("910B", 40, "ascend910b3"), ("910B", None, "ascend910b1"), ("tiny", None, "tiny")],
)  # fmt: skip
def test_the_device_of_a_chip(chip: str, cores: int | None, name: str) -> None:
    found, notes = device_name(row(chip, cores))
    assert found == name
    assert bool(notes) == (chip == "910B")
    if notes:
        assert name.removeprefix("ascend") in notes[0].lower()


def test_a_chip_of_ones_own_is_a_device_file(
    tmp_path: Path, asked: list[tuple[str, Device]]
) -> None:
    text = (ROOT / "configs/devices/tiny.yaml").read_text(encoding="utf-8")
    own = tmp_path / "own.yaml"
    own.write_text(text.replace("name: tiny", "name: own"), encoding="utf-8")
    assert simulate_row(row(str(own)), {}).simulated is not None
    assert asked[0][1].name == "own"


def test_rows_go_where_they_are_understood(asked: list[tuple[str, Device]]) -> None:
    for op in ("gemm", "batch_gemm", "add", "conv2d_fwd", "gemm_gelu"):
        simulate_row(row("A3", op=op), {})
    simulate_row(CallRow(id="c", chip="910B2", call="matmul"), {})
    assert [kind for kind, _ in asked] == ["gemm", "gemm", "stream", "stream", "gemm", "call"]
    assert [device.name for _, device in asked] == ["ascend910c"] * 5 + ["ascend910b2"]


def test_figures_are_changed_and_notes_are_kept(asked: list[tuple[str, Device]]) -> None:
    outcome = simulate_row(row("910B", 20), {"clock": "1GHz"})
    assert outcome.simulated is not None
    assert outcome.simulated.notes == (
        "the bin of this 910B is not known: simulated as 910B3",
        "said",
    )
    assert (outcome.reason, asked[0][1].clock_hz) == (None, 10**9)


def test_unknown_words_and_chips_are_named(asked: list[tuple[str, Device]]) -> None:
    word = simulate_row(row("A3", switches=("unit_flag", "warp_speed")), {})
    assert (word.simulated, word.failed) == (None, False)
    assert word.reason == "switches: the word 'warp_speed' is not known"
    chip = simulate_row(row("TPUv3"), {})
    assert chip.reason is not None
    assert chip.reason.startswith("chip 'TPUv3' has no device; known are 310, 310P, 910, 910B1,")
    bad = Unreadable(id="r", chip="A3", reason="file.csv:3: M: expected ...")
    assert simulate_row(bad, {}) == RowOutcome(bad, reason="file.csv:3: M: expected ...")
    assert asked == []


@pytest.mark.parametrize(
    ("error", "reason", "failed"),
    [
        (Declined("op: topk is not simulated"), "op: topk is not simulated", False),
        (CapacityError("L1 is full"), "CapacityError: L1 is full", True),
        (ZeroDivisionError("oh"), "ZeroDivisionError: oh", True),
    ],
)
def test_an_exception_is_an_outcome(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, failed: bool
) -> None:
    def broken(_: KernelRow, __: Device) -> SimulatedRow:
        raise error

    monkeypatch.setattr(simulate, "simulate_stream_row", broken)
    one = row("A3")
    assert simulate_row(one, {}) == RowOutcome(one, reason=reason, failed=failed)


@dataclass(frozen=True)
class Deadly(Unreadable):
    """Ends the process that receives it."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (1,)


def test_a_process_that_dies_costs_its_own_row_and_no_other() -> None:
    rows: list[Row | Unreadable] = [
        row("TPUv3"),
        Deadly(id="d", chip="", reason=""),
        row("A3", switches=("nonsense",)),
    ]
    seen: list[tuple[int, int]] = []
    with RowWorkers(2) as workers:
        tasks = [(one, dict[str, str]()) for one in rows]
        outcomes = workers.outcomes(tasks, lambda done, total: seen.append((done, total)))
    assert [outcome.row for outcome in outcomes] == rows
    assert [outcome.failed for outcome in outcomes] == [False, True, False]
    assert outcomes[1].reason == (
        "the process that simulated it was ended from outside; is memory short?"
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
