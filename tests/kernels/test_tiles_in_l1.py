"""Several tiles of L0 for one load of L1, and blocks of them that cores share out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npusim
from npusim import spec
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling
from npusim.problem.reference import conv_forward, conv_input_grad, relative_error
from tests.sampled import crossed
from tests.tables import rows

pytestmark = pytest.mark.compiled

SIZES = (3, 64, 96, (11, 13), 3)  # batch, channels in and out, picture, filter

#: All of K in L1, 3 tiles along M for one slab and 2 along N for one load of weights.
SEVERAL = Tiling(
    base_m=32, base_n=16, base_k=48, step_planes=12, step_columns=108, step_m=3, step_n=2
)


def run(kernel: str, tiling: Tiling, chip: str, kind: str = "fp16", **layer: Any) -> Any:
    """The result for random operands, and what it should be."""
    n, cin, cout, picture, side = SIZES
    rng = np.random.default_rng(7)
    dtype = np.dtype("float16" if kind == "fp16" else "float32")
    x = rng.uniform(-1, 1, (n, cin, *picture)).astype(dtype)
    w = rng.uniform(-1, 1, (cout, cin, side, side)).astype(dtype)
    at: dict[str, Any] = {"stride": (1, 1), "padding": ((1, 1), (1, 1))}
    at |= {"dilation": (1, 1), "groups": 1}
    options: dict[str, Any] = {"device": chip, "tiling": {kernel: tiling}, **layer}
    y = conv_forward(x, w, **at)
    result: Any
    if kernel == "conv_forward":
        result = npusim.ops.convolution(x, w, None, 1, 1, **options)
        return result, result.outputs[0], y
    dy = rng.uniform(-1, 1, y.shape).astype(dtype)
    options["output_mask"] = (True, False, False)
    result = npusim.ops.convolution_backward(dy, x, w, None, 1, 1, **options)
    return result, result.grad_input, conv_input_grad(dy, w, x.shape, **at)


@pytest.mark.parametrize(
    ("kernel", "chip_and_dtype"),
    crossed(
        ["conv_forward", "conv_backprop_input"],
        [("ascend910", "fp16"), ("ascend910b2", "fp16"), ("ascend910b2", "fp32")],
    ),
)
@rows("tests/data/rows/kernels.yaml", "numbers_are_right", "changes")
def test_numbers_are_right(kernel: str, chip_and_dtype: tuple[str, str], changes: Any) -> None:
    chip, kind = chip_and_dtype
    result, got, want = run(kernel, replace(SEVERAL, **changes), chip, kind)
    assert relative_error(got, want) < 1e-3
    (ran,) = (one for one in result.runs if one.name == kernel)
    assert "x2 tiles in L1" in ran.tiling


def weight_bytes(tiling: Tiling, cores: Any = "0") -> float:
    """How often a forward pass on a core of a 910 loads its weights."""
    result, _, _ = run("conv_forward", tiling, "ascend910", cores=cores)
    (ran,) = (one for one in result.runs if one.name == "conv_forward")
    rows = (row for row in ran.traffic if row.dst == "L1" and row.operand == "weight_fractal")
    return float(sum(row.bytes for row in rows) / (96 * 64 * 9 * 2))


def test_weights_come_once_for_all_tiles_of_a_slab() -> None:
    """143 positions are 5 tiles of 2 rows, or 2 slabs of 7 rows; 3 images."""
    alone = replace(SEVERAL, step_m=1, step_n=1)
    assert weight_bytes(alone) == 3 * 6
    assert weight_bytes(SEVERAL) == 3 * 2
    assert weight_bytes(replace(SEVERAL, resident=True, n_slowest=True)) == 1


def test_cores_share_out_blocks() -> None:
    """Two cores with 48 of 96 channels each for all images and rows: each loads half."""
    share: dict[str, Any] = {"single_core_m": 143, "single_core_n": 48, "single_core_images": 3}
    halves = replace(SEVERAL, base_n=48, step_n=1, resident=True, **share)
    assert weight_bytes(halves, "0-1") == 1
    images = replace(SEVERAL, base_n=96, step_n=1, resident=True, single_core_m=143)
    assert weight_bytes(replace(images, single_core_n=96), "0-2") == 3


def test_what_has_one_tile_is_refused_more() -> None:
    with pytest.raises(ArgumentError, match="tiling step_m is 2, but only form 'window'"):
        Tiling(base_m=16, base_n=16, base_k=16, step_m=2, form="phases")
    with pytest.raises(ArgumentError, match="tiling step_m is 2, but only form 'window'"):
        Tiling(base_m=16, base_n=16, base_k=16, step_m=2, images=2)
    x, w = spec((1, 16, 4, 8, 8), "fp16"), spec((32, 16, 2, 3, 3), "fp16")
    tiling = {"conv_forward": Tiling(base_m=16, base_n=16, base_k=16, step_n=2)}
    with pytest.raises(ArgumentError, match="tiling has 1 x 2 tiles in L1, but filter depths"):
        npusim.ops.convolution(x, w, device="ascend910", tiling=tiling)
    x, w = spec((1, 16, 8, 8), "fp16"), spec((32, 16, 3, 3), "fp16")
    taps = {"conv_forward": replace(tiling["conv_forward"], form="taps")}
    with pytest.raises(ArgumentError, match="tiling has 1 x 2 tiles in L1, but single taps"):
        npusim.ops.convolution(x, w, device="ascend910", tiling=taps)
