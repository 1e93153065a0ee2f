"""Products on better machines: what leads on a lesser one is a candidate, and none is slower."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from npusim.call.tilings.choice import chosen
from npusim.kernels.estimate.ladder import cores_below, l1_below
from npusim.machine.device.catalog import load_device
from tests.sampled import slow_if
from tools.tilings.better_machines import (
    BETTER,
    CHIP,
    LIMIT,
    PRODUCTS,
    compared,
    drawn,
    machine,
    table,
)
from tools.tilings.larger_machines import Product, kernel_of

pytestmark = pytest.mark.compiled

#: Of 400 drawn ones those that are slower by more than ``LIMIT``, and the worst ratio.
MOST_SLOWER, WORST = 14, 1.06

#: Those of the table that were slower by 0.8 to 3.3 % when a choice knew its own leaders alone.
WERE_SLOWER = (
    (Product(4096, 4096, 4096), "cube", "2"),
    (Product(4096, 4096, 4096), "cores", "5/4"),
    (Product(2048, 2048, 2048), "L1", "2"),
    (Product(6144, 512, 6144), "cores", "5/4"),
    (Product(6144, 512, 6144), "L1", "2"),
    (Product(3072, 1024, 3072), "cores", "5/4"),
    (Product(3072, 1024, 3072), "L1", "2"),
    (Product(8192, 1024, 2048), "cores", "5/4"),
)


@pytest.mark.parametrize(
    ("cores", "below"),
    [(1, ()), (2, (1,)), (5, (4, 3, 2, 1)), (24, (20, 16, 14)), (30, (28, 24, 20))],
)
def test_rungs_of_cores_are_the_same_from_every_machine(cores: int, below: tuple[int, ...]) -> None:
    assert cores_below(cores)[: len(below)] == below
    for rung in below:
        assert cores_below(rung) == cores_below(cores)[cores_below(cores).index(rung) + 1 :]


def test_rungs_of_l1_are_powers_of_two() -> None:
    assert l1_below(512 << 10)[:2] == (256 << 10, 128 << 10)
    assert l1_below(768 << 10)[:2] == (512 << 10, 256 << 10)


@pytest.mark.parametrize("share", ["3/2", "2"])
def test_the_leader_of_less_l1_is_a_contender(share: str) -> None:
    """A 910B2 is a rung below one with 768 KiB or 1 MiB of L1."""
    usual = load_device(CHIP)
    more = machine(usual, "L1", Fraction(share))
    for product in PRODUCTS:
        kernel: Any = kernel_of(product)
        (_, first), *_ = kernel.contenders(usual, usual.count("cube"), 8)[0]
        leaders, of_lesser = map(list, kernel.contenders(more, more.count("cube"), 8))
        assert first.tiling in {one.tiling for _, one in (*leaders[:1], *of_lesser)}, product


@pytest.mark.parametrize(
    ("product", "what", "factor"),
    [slow_if(case[0].m == 4096, *case) for case in WERE_SLOWER],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, Product) else value,
)
def test_a_better_chip_was_slower_and_is_not(product: Product, what: str, factor: str) -> None:
    found = compared(product, CHIP, what, (Fraction(1), Fraction(factor)))
    assert found is not None
    assert found.ratio <= LIMIT, str(found)


def test_a_faster_memory_changes_no_tiling_of_a_small_product() -> None:
    """1024^3 at 2 GHz takes 15.36, 15.47 and 15.53 us at 0.8, 1.2 and 1.6 TB/s with one tiling.

    The 0.7 and 1.1 % are of the same program on the machine, not of the choice; why is not known.
    """
    chip = load_device(CHIP).replace("clock", "2GHz")
    tilings = set()
    for rate in ("0.8TB/s", "1.2TB/s", "1.6TB/s"):
        device = chip.replace("main_memory.read", rate)
        best: Any = chosen(kernel_of(PRODUCTS[5]), device, tuple(range(device.groups)))
        tilings.add(best.tiling)
    assert len(tilings) == 1


def test_a_few_drawn_ones() -> None:
    """The first 20 of the 400 that the slow test goes through; one of these is slower by 1.8 %."""
    slower = [one for one in drawn(20, 0) if one.ratio > LIMIT]
    text = "\n".join(map(str, slower))
    assert len(slower) <= 1, text
    assert max((one.ratio for one in slower), default=1.0) <= 1.02, text


@pytest.mark.slow
def test_the_table() -> None:
    found = list(table())
    assert len(found) == len(PRODUCTS) * len(BETTER)
    slower = [one for one in found if one.ratio > LIMIT]
    assert not slower, "\n".join(map(str, slower))


@pytest.mark.slow
def test_drawn_ones() -> None:
    """400; docs/model/tilings.md says which are slower, by how much and why."""
    slower = [one for one in drawn(400, 0) if one.ratio > LIMIT]
    text = "\n".join(map(str, slower))
    assert len(slower) <= MOST_SLOWER, text
    assert max((one.ratio for one in slower), default=1.0) <= WORST, text
