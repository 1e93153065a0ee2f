"""Clearing what a dense filter gradient holds between groups that share fractals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16, FP32, DType
from npusim.base.errors import ArgumentError
from npusim.kernels.vector.clear_blocks import PIECE_BYTES, ClearBlocks
from npusim.machine.isa.operands import Tensor
from npusim.problem.layouts import GroupPlan, group_plan
from tests.sampled import examples

Array = np.ndarray[Any, Any]


def shape(plan: GroupPlan, taps: int) -> tuple[int, ...]:
    return plan.real_groups, plan.cin1_g * taps, plan.cout_g, plan.c0


def cleared(dw: Array, plan: GroupPlan, taps: int) -> Array:
    """Element by element: input channel and output channel of one group, or zero."""
    kept = np.zeros_like(dw)
    for real, column, q, lane in np.ndindex(*dw.shape):
        c = column // taps * plan.c0 + lane
        group = real * plan.mag_factor + q // plan.cout_per_group
        mine = c // plan.cin_per_group == q // plan.cout_per_group < plan.mag_factor
        if mine and group < plan.groups:
            kept[real, column, q, lane] = dw[real, column, q, lane]
    return kept


def kernel(plan: GroupPlan, taps: int) -> ClearBlocks:
    return ClearBlocks(Tensor("dw", shape(plan, taps), FP32, "inout"), plan)


def run(plan: GroupPlan, taps: int, device: str, **options: Any) -> tuple[Array, npusim.Result]:
    dw = np.random.default_rng(plan.cout).standard_normal(shape(plan, taps), dtype=np.float32)
    dw[0, 0, 0, -1], dw[-1, -1, -1, 0] = np.inf, np.nan  # what a product may well leave
    result = npusim.simulate(kernel(plan, taps), device, dw, **options)
    (got,) = result.outputs or ()
    assert got is not None
    np.testing.assert_array_equal(got, cleared(dw, plan, taps))
    return got, result


PLANS = {
    "depthwise": (group_plan(24, 24, 24, 16), 9),
    "one block a group": (group_plan(32, 32, 2, 16), 1),
    "odd channels": (group_plan(21, 33, 3, 16), 4),
    "last real group not full": (group_plan(40, 40, 5, 16), 6),
    "output channels of several rows": (group_plan(64, 8, 4, 16), 2),
    "one group": (group_plan(20, 36, 1, 16), 3),
    "columns larger than a piece": (group_plan(2, 600, 2, 16), 2),
}


@pytest.mark.parametrize("device", ["tiny", "ascend310", "ascend910", "ascend910b2", "ascend950pr"])
@pytest.mark.parametrize("name", PLANS)
def test_only_diagonal_blocks_stay(name: str, device: str) -> None:
    plan, taps = PLANS[name]
    _, result = run(plan, taps, device)
    moved = {(row.src, row.dst): row.bytes for row in result.runs[0].traffic if row.operand}
    size = int(np.prod(shape(plan, taps))) * 4
    assert moved == {("GM", "UB"): size, ("UB", "GM"): size}  # everything, once each way


@examples(30)
@given(
    per_group=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    groups=st.integers(1, 6),
    taps=st.integers(1, 5),
    cores=st.integers(1, 4),
)
def test_any_grouping(per_group: tuple[int, int], groups: int, taps: int, cores: int) -> None:
    cin, cout = (channels * groups for channels in per_group)
    run(group_plan(cin, cout, groups, 16), taps, "tiny", cores=range(cores))


def test_all_cores_work_on_one_large_gradient() -> None:
    plan = group_plan(512, 512, 64, 16)
    _, result = run(plan, 9, "ascend910b2")
    assert result.runs[0].cores == 48
    assert result.runs[0].tiling == f"piece up to {PIECE_BYTES} B"


@pytest.mark.parametrize(
    ("size", "dtype"),
    [((1, 1, 16, 16), FP16), ((2, 1, 16, 16), FP32), ((1, 1, 32, 16), FP32), ((16, 16), FP32)],
)
def test_other_tensors_are_refused(size: tuple[int, ...], dtype: DType) -> None:
    with pytest.raises(
        ArgumentError, match=re.escape("it must be fp32 of (1, a multiple of 1, 16")
    ):
        ClearBlocks(Tensor("dw", size, dtype), group_plan(16, 16, 2, 16))
