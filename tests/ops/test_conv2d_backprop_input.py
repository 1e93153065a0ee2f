"""conv2d_backprop_input: random layers against float64, groups, types, and the tensor compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16
from npusim.base.errors import ArgumentError, RuleError
from npusim.compat.tbe import dsl, tvm
from npusim.kernels.implicit_gemm import Tiling
from npusim.layout import from_5hd, group_dict, group_plan, to_5hd, to_fracz_3d
from npusim.ops import conv2d_backprop_input
from npusim.results import Result

Array = np.ndarray[Any, Any]


def described(case: Any, **para: Any) -> tuple[list[int], list[int], dict[str, Any]]:
    """filter_sizes, input_sizes and para_dict of a layer."""
    usual = {
        "strides": list(case.stride),
        "padding": [p for pair in case.pads for p in pair],
        "dilations": [1, 1, *case.dilation],
    }
    return list(case.shapes[2]), [case.n, case.cin, *case.spatial], usual | para


def fractals(case: Any, w: Array) -> Array:
    return to_fracz_3d(w[:, :, None], case.groups, 16)


def run(case: Any, dy: Array, w: Array, device: str, para: Any = None, **options: Any) -> Result:
    parts = described(case, **(para or {}))
    w, dy = fractals(case, w), to_5hd(dy, 16)
    return conv2d_backprop_input(w, dy, *parts, device=device, timeline=False, **options)


def unpacked(case: Any, result: Result, dtype: Any = np.float16) -> Array:
    """The result as (N, Cin, H, W), after checking its shape and its padding channels."""
    (dx,) = result.outputs or ()
    assert dx is not None
    blocks, (height, width) = -(-case.cin // 16), case.spatial
    assert dx.shape == (case.n, blocks, height * width, 16)
    assert dx.dtype == dtype
    whole = from_5hd(dx.reshape(case.n, blocks, height, width, 16), blocks * 16)
    assert not whole[:, case.cin :].any()
    return whole[:, : case.cin]


@pytest.fixture
def small(layer: Any) -> Any:
    """A layer of 20 to 12 channels in 2 groups, uneven padding."""
    return layer(
        n=2, cin=20, cout=12, spatial=(5, 6), kernel=(2, 3), stride=(1, 2), pads=((0, 1), (2, 0)),
        groups=2,
    )  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_layer_matches_float64(drawn: Any, close: Any, data: st.DataObject) -> None:
    case = drawn(data, 2)
    tiling: Any = "auto"
    if data.draw(st.booleans()):
        tiling = Tiling(base_m=16, base_n=32, base_k=data.draw(st.sampled_from((16, 48))))
    device = data.draw(st.sampled_from(("ascend310", "ascend910", "ascend910b2", "ascend950pr")))
    dy, x, w = case.operands((FP16,) * 3)
    result = run(case, dy, w, device, tiling=tiling, rules="hardware")
    close("dx", unpacked(case, result), case.reference(dy, x, w)[0], (FP16,), FP16)


def test_the_fp32_result_is_not_rounded(small: Any) -> None:
    dy, x, w = small.operands((FP16,) * 3)
    dy, w = (np.round(dy * 64) + 300).astype(dy.dtype), (np.round(w * 64) + 101).astype(w.dtype)
    result = run(small, dy, w, "ascend910", {"res_dtype": "float32"})
    want = small.reference(dy, x, w)[0]
    np.testing.assert_array_equal(unpacked(small, result, np.float32), want)
    assert np.abs(want).max() > 65504
    assert result.problem.endswith("fp16 -> fp32")


def test_it_costs_what_the_same_product_costs_in_three_dimensions(small: Any) -> None:
    dy, _, w = small.operands((FP16,) * 3)
    plane = run(small, dy, w, "ascend910")
    _, (n, cin, *size), para = described(small)
    volume = npusim.ops.conv3d_backprop_input(
        fractals(small, w), to_5hd(dy, 16)[:, None], [12, 10, 1, 2, 3], [n, 1, *size, cin],
        {"strides": [1, 1, *para["strides"], 1], "pads": [0, 0, *para["padding"]],
         "dilations": [1, 1, 1, 1, 1]}, device="ascend910", timeline=False,
    )  # fmt: skip
    assert plane.cycles == volume.cycles


def test_groups_are_those_of_the_sizes(small: Any) -> None:
    dy, x, w = small.operands((FP16,) * 3)
    packing = group_dict(group_plan(20, 12, 2, 16))
    result = run(small, dy, w, "ascend910", {"group_dict": packing})
    with pytest.raises(RuleError, match=r"group_dict .* must have real_g 1"):
        run(small, dy, w, "ascend910", {"group_dict": packing | {"real_g": 2}})
    want = small.reference(dy, x, w)[0]
    assert np.abs(unpacked(small, result) - want).max() < 0.02 * np.abs(want).max()


@pytest.mark.parametrize(
    ("para", "message"),
    [
        ({"stride": 1}, "para_dict.*stride"),
        ({"strides": None}, "strides is null; .* by an assumption"),
        ({"tensor_bias": np.zeros(20)}, "tensor_bias"),
    ],
)
def test_what_para_dict_may_hold(small: Any, para: Any, message: str) -> None:
    dy, _, w = small.operands((FP16,) * 3)
    with pytest.raises(ArgumentError, match=message):
        run(small, dy, w, "ascend910", para)


def test_the_function_of_the_tensor_compiler(small: Any) -> None:
    dy, x, w = (np.round(one * 4) for one in small.operands((FP16,) * 3))
    packed, blocked = fractals(small, w), to_5hd(dy, 16)
    filters = tvm.placeholder(packed.shape, name="filters", dtype="float16")
    dedy = tvm.placeholder(blocked.shape, name="dedy", dtype="float16")
    sizes, shape, para = described(small, kernel_name="dx")
    lazy = dsl.conv2d_backprop_input(filters, dedy, sizes, shape, para)
    assert (lazy.name, lazy.shape, lazy.dtype) == ("dx", (2, 2, 30, 16), "float16")
    result = lazy.run({"filters": packed, "dedy": blocked}, device="ascend910", timeline=False)
    np.testing.assert_array_equal(unpacked(small, result), small.reference(dy, x, w)[0])
    with pytest.raises(RuleError, match="padding"):
        dsl.conv2d_backprop_input(filters, dedy, sizes, shape, para | {"padding": [0] * 3})
