"""The ablation finds what it switches off, and puts it back."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.base.records import replace
from npusim.call.tilings.choice import chosen
from npusim.machine.device.catalog import load_device
from tools.tilings.ablation import SWITCHES, Switch, switched
from tools.tilings.larger_machines import Gradient, kernel_of, layers

pytestmark = pytest.mark.compiled


def best(switch: Switch | None) -> Any:
    """The tiling of an input gradient whose weights stay in L1."""
    machine = load_device("ascend910b2")
    shape = replace(layers("resnet50")["res3_1x1_in"], n=32)
    kernel: Any = kernel_of(Gradient("res3_1x1_in", shape, "dx"))
    with switched(switch):
        return chosen(kernel, machine, tuple(range(machine.groups))).tiling


@pytest.mark.parametrize("name", SWITCHES)
def test_a_mechanism_is_switched_off_and_on_again(name: str) -> None:
    plain, without = best(None), best(SWITCHES[name])
    assert plain.resident
    assert not (without.resident and name == "weights that stay")
    assert best(None) == plain
