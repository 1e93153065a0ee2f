"""Slabs that are part of a row of outputs, and have the whole rows of the input in L1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.records import replace
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling
from npusim.language import FP16
from npusim.problem.axis import Axis
from npusim.problem.reference import conv_forward, conv_input_grad, relative_error

pytestmark = pytest.mark.compiled

#: Part of a row, with all planes of a layer of 48 channels in one load of the input.
PART = Tiling(base_m=16, base_n=16, base_k=48, step_planes=3, step_columns=27)

LAYERS = [
    {"stride": 1, "padding": 1},
    {"stride": 2, "padding": 1},
    {"stride": 3, "padding": 0},  # pixels remain behind the last window
    {"stride": 1, "padding": 2, "dilation": 2},
    {"stride": 1, "padding": (0, 1, 2, 0)},
]


def moves(result: Any, name: str) -> int:
    """Loads of a kernel into L1 and elsewhere."""
    run = next(run for run in result.runs if run.name == name)
    lines = run.timeline
    return sum(lines.ops[op] == "data_move" for op in lines.op)


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("step_m", [1, 2])
def test_forward_numbers_are_right(layer: dict[str, Any], device: str, step_m: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (2, 48, 3, 131)).astype(np.float16)
    w = rng.uniform(-1, 1, (32, 48, 3, 3)).astype(np.float16)
    tiling = replace(PART, whole_rows=True, step_m=step_m)
    result = npusim.ops.convolution(
        x, w, None, device=device, tiling={"conv_forward": tiling}, **layer
    )
    pads = layer["padding"]
    pads = (pads[:2], pads[2:]) if isinstance(pads, tuple) else ((pads, pads), (pads, pads))
    stride = (layer["stride"], layer["stride"])
    dilation = (layer.get("dilation", 1), layer.get("dilation", 1))
    y = conv_forward(x, w, stride=stride, padding=pads, dilation=dilation, groups=1)
    assert result.outputs is not None
    assert result.outputs[0] is not None
    assert relative_error(result.outputs[0], y) < 1e-3
    assert "whole rows" in str(result.tilings["conv_forward"])


@pytest.mark.parametrize("device", ["ascend910", "ascend910b2"])
def test_gradients_of_the_input_are_right(device: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (2, 32, 3, 131)).astype(np.float16)
    w = rng.uniform(-1, 1, (48, 32, 3, 3)).astype(np.float16)
    dy = rng.uniform(-1, 1, (2, 48, 3, 131)).astype(np.float16)
    tiling = replace(PART, whole_rows=True)
    result = npusim.ops.convolution_backward(
        dy, x, w, None, 1, 1, device=device, output_mask=(True, False, False),
        tiling={"conv_backprop_input": tiling},
    )  # fmt: skip
    sizes: dict[str, Any] = {"stride": (1, 1), "dilation": (1, 1), "groups": 1}
    sizes["padding"] = ((1, 1), (1, 1))
    assert result.grad_input is not None
    assert relative_error(result.grad_input, conv_input_grad(dy, w, x.shape, **sizes)) < 1e-3


def test_all_planes_come_with_one_move() -> None:
    """Without whole rows each of the three planes is a move of its own."""
    x = npusim.spec((1, 48, 3, 131), FP16)
    w = npusim.spec((32, 48, 3, 3), FP16)
    counts = [
        moves(
            npusim.ops.convolution(
                x, w, None, 1, 1, device="ascend910",
                tiling={"conv_forward": replace(PART, resident=True, whole_rows=whole)},
            ),
            "conv_forward",
        )
        for whole in (False, True)
    ]  # fmt: skip
    slabs = 2 * 3 * 9  # twice, as both tiles along N load them
    assert counts[0] - counts[1] == 2 * slabs


def test_whole_rows_are_left_where_nothing_is_cut() -> None:
    """A slab of whole rows has them anyway, and reports do not say so."""
    x = npusim.spec((1, 48, 3, 131), FP16)
    w = npusim.spec((32, 48, 3, 3), FP16)
    tiling = replace(PART, base_m=262, whole_rows=True)
    result = npusim.ops.convolution(
        x, w, None, 1, 1, device="ascend910", tiling={"conv_forward": tiling}
    )
    assert "whole rows" not in str(result.tilings["conv_forward"])


def test_runs_of_an_axis_that_is_read_as_a_whole() -> None:
    """Seven outputs of stride 2 in runs of three, of 15 inputs with one before them."""
    runs = Axis(size=15, out=7, kernel=3, stride=2, before=1).runs(3, whole=True)
    assert runs.first.tolist() == runs.offset.tolist() == [0, 3, 6]
    assert runs.count.tolist() == [3, 3, 1]
    assert set(runs.size.tolist()) == {15}
    assert set(runs.before.tolist()) == {1}
    assert set(runs.first_real.tolist()) == {0}
