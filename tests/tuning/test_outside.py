"""Commands that measure tilings: from outside of the search, of other layers, and of proofs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from random import Random
from typing import Any

import pytest

from npusim.base.errors import ArgumentError
from npusim.device.catalog import load_device
from tests.tuning import others, outside, proofs
from tests.tuning.larger_machines import Gradient, kernel_of, layers

pytestmark = pytest.mark.compiled


def gradient(which: str) -> Gradient:
    return Gradient("res5_1x1_in", replace(layers("resnet50")["res5_1x1_in"], n=1), which)


@pytest.mark.parametrize("which", ["dx", "dw"])
def test_a_draw_changes_a_few_fields_and_none_of_the_vendors(which: str) -> None:
    kernel: Any = kernel_of(gradient(which))
    rng, old, changed = Random(0), kernel.tiling, set[str]()
    for _ in range(200):
        with suppress(ArgumentError):
            new = outside.drawn(old, rng)
            differ = {f.name for f in fields(old) if getattr(old, f.name) != getattr(new, f.name)}
            assert len(differ) <= outside.CHANGES
            assert not differ & {*outside.FIXED}
            changed |= differ
    assert {"base_k", "l1_slots", "unit_flag"} <= changed


def test_outsiders_are_legal_and_no_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "BUDGET", 2)
    device = load_device("ascend910b2")
    found = list(outside.outsiders(gradient("dw"), 3, 0, device))
    assert len(found) == 3
    assert all(one.cycles > 0 and one.differs for one in found)
    assert "res5_1x1_in" in str(found[0])
    again = next(iter(outside.outsiders(gradient("dw"), 3, 0, device)))
    assert again.cycles == found[0].cycles, "the seed decides"


def test_a_search_begins_with_the_automatic_tiling() -> None:
    row = proofs.searched(gradient("dw"), load_device("ascend910b2"), 1, 1)
    assert row["tuned"] <= row["auto"]
    assert 0 <= row["gap"] < 1
    assert 1 <= row["simulated"] <= row["of"]


def test_an_automatic_tiling_is_held_against_a_search() -> None:
    row = others.measured("ascend910", "ResNet-50", gradient("dw"), 1)
    assert row["tuned"] <= row["auto"]
    assert (row["device"], row["layer"], row["batch"]) == ("ascend910", "res5_1x1_in", 1)
