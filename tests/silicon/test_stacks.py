"""Software stacks of measured steps: types and fusions follow from them, never from a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.base.records import replace
from npusim.kernels.matmul.measured import table
from npusim.networks.plan.fusions import chosen
from npusim.silicon.rows import Declined, NetworkRow
from npusim.silicon.sheet import shipped_steps
from npusim.silicon.simulate import simulate_row
from npusim.silicon.stacks import stack_keywords, stacks
from tests.tables import rows
from tests.texts import text_of

ROW = NetworkRow(id="a", chip="910", network="resnet18", mode="graph", batch=4)


def test_every_step_that_ships_names_a_known_stack_and_no_type() -> None:
    for row in shipped_steps().of(NetworkRow):
        assert row.dtype is None, row.id
        assert row.normalisation is None, row.id
        assert row.stack is not None, row.id
        assert row.amp is not None, row.id
        assert (row.stack, row.amp) in stacks(), row.id


def test_every_stack_says_what_it_means_and_where_that_stands() -> None:
    lines = table("stacks.csv")
    assert len({(line["stack"], line["amp"]) for line in lines}) == len(lines)
    for line in lines:
        assert line["means"], line
        assert line["source"], line
        assert line["dtype"] in ("fp16", "fp32"), line
        assert line["normalisation"] in ("", "fp32"), line
        chosen(line["fusions"] or "usual")


@rows("tests/data/rows/validation.yaml", "a_stack_has_its_types", "stack, amp, keywords")
def test_a_stack_has_its_types(stack: str, amp: str, keywords: dict[str, str]) -> None:
    assert stack_keywords(replace(ROW, stack=stack, amp=amp)) == keywords


def test_a_row_without_a_stack_states_types_itself() -> None:
    assert stack_keywords(ROW) == {}
    row = replace(ROW, dtype="fp16", normalisation="fp32")
    assert stack_keywords(row) == {"dtype": "fp16", "normalisation": "fp32"}


@rows(
    "tests/data/mistakes/validation.yaml", "a_stack_that_is_not_known_is_declined", "other, reason"
)
def test_a_stack_that_is_not_known_is_declined(other: dict[str, str], reason: str) -> None:
    with pytest.raises(Declined) as error:
        stack_keywords(replace(ROW, **other))
    assert str(error.value).startswith(reason)


def test_a_step_is_simulated_in_the_types_of_its_stack(tmp_path: Path) -> None:
    file = tmp_path / "net.yaml"
    file.write_text(text_of("network.yaml"), encoding="utf-8")
    row = replace(ROW, network=str(file))

    def us(**columns: str) -> float:
        found = simulate_row(replace(row, **columns), {})
        assert found.simulated is not None, found.reason
        return found.simulated.time_us

    kept = us(stack="mindspore", amp="O2")
    assert kept == us(dtype="fp16", normalisation="fp32")
    assert us(stack="mindspore", amp="O3") == us(dtype="fp16") < kept
    assert us(stack="mindspore", amp="O0") == us(dtype="fp32")
