"""Measured training steps: the settings that a row stands for, its parts, and what is declined."""

from __future__ import annotations

from pathlib import Path

import pytest

import npusim
from npusim.base.records import replace
from npusim.networks.rules.training import training
from npusim.silicon.rows import PARTS, NetworkRow
from npusim.silicon.simulate import RowOutcome, simulate_row
from npusim.workloads import load_workload
from npusim.workloads.repetition import for_batch
from tests.tables import rows
from tests.texts import text_of

#: Two classifiers behind one part, as networks with an auxiliary one have them.
NET = text_of("network.yaml")


@pytest.fixture
def row(tmp_path: Path) -> NetworkRow:
    file = tmp_path / "net.yaml"
    file.write_text(NET, encoding="utf-8")
    return NetworkRow(id="a", chip="910", network=str(file), mode="graph", batch=4, cards=1)


def simulated_us(row: NetworkRow) -> float:
    found = simulate_row(row, {})
    assert found.simulated is not None, found.reason
    return found.simulated.time_us


def test_a_row_is_a_step_with_the_settings_of_its_mode(row: NetworkRow) -> None:
    found = simulate_row(row, {}).simulated
    assert found is not None
    step = npusim.step(row.network, device="ascend910", mode="graph", batch=4)
    assert found.time_us == step.time_us
    assert tuple(found.busy_us) == PARTS
    parts = {name: us or 0.0 for name, us in found.busy_us.items()}
    assert min(parts.values()) > 0
    split = step.split
    convolutions = [us for kind, us in split.items() if kind.startswith("convolution")]
    norms = [us for kind, us in split.items() if kind.startswith("normalisation")]
    gradients = parts["filter_gradients"] + parts["input_gradients"]
    assert parts["forward"] + gradients == pytest.approx(sum(convolutions))
    assert parts["normalisation"] == pytest.approx(sum(norms))
    assert sum(parts.values()) < step.time_us  # poolings and classifiers are none of them


@rows("tests/data/rows/validation.yaml", "every_setting_has_its_time", "other")
def test_every_setting_has_its_time(row: NetworkRow, other: dict[str, str]) -> None:
    assert simulated_us(replace(row, **other)) > simulated_us(row)


@rows("tests/data/mistakes/validation.yaml", "what_a_step_cannot_have_is_declined", "other, reason")
def test_what_a_step_cannot_have_is_declined(
    row: NetworkRow, other: dict[str, str], reason: str
) -> None:
    found: RowOutcome = simulate_row(replace(row, **other), {})
    assert found.simulated is None
    assert not found.failed
    assert (found.reason or "").startswith(reason)


def test_an_auxiliary_classifier_is_trained_too(row: NetworkRow) -> None:
    step = training(for_batch(load_workload(row.network), 4))
    written = {name for one in step.operations for name in one.writes}
    assert {"side.w.gradient", "fc.w.gradient"} <= written
    assert [one.name for one in step.operations if one.kind == "loss"] == ["side.loss", "loss"]
    assert {"labels"} == {name for name in step.values if name.endswith("labels")}
