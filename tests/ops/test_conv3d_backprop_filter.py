"""conv3d_backprop_filter: random layers against float64, groups, refusals, the tensor compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ArgumentError, RuleError
from npusim.compat.tbe import dsl, tvm
from npusim.kernels.conv_backprop_filter import Tiling
from npusim.layout import from_fracz_3d, group_dict, group_plan, to_6hd
from npusim.ops import conv3d_backprop_filter
from npusim.results import Result

Array = np.ndarray[Any, Any]


def described(case: Any, **para: Any) -> tuple[list[int], dict[str, Any]]:
    """filter_size and para_dict of a layer."""
    usual = {
        "strides": list(case.stride),
        "pads": [p for pair in case.pads for p in pair],
        "dilations": [1, 1, *case.dilation],
        "groups": case.groups,
    }
    return list(case.shapes[2]), usual | para


def run(case: Any, x: Array, dy: Array, device: str, para: Any = None, **options: Any) -> Result:
    parts = described(case, **(para or {}))
    blocked = to_6hd(x, 16), to_6hd(dy, 16)
    return conv3d_backprop_filter(*blocked, *parts, device=device, timeline=False, **options)


def unpacked(case: Any, result: Result) -> Array:
    """The result as (Cout, Cin/groups, KD, KH, KW), after checking its shape and what is beside."""
    (dw,) = result.outputs or ()
    assert dw is not None
    plan, (kd, kh, kw) = group_plan(case.cin, case.cout, case.groups, 16), case.kernel
    assert dw.shape == (plan.real_groups, kd * plan.cin1_g * kh * kw, plan.cout_g, 16)
    assert dw.dtype == np.float32
    plain = from_fracz_3d(
        dw.reshape(-1, plan.cout_g // 16, 16, 16), case.shapes[2], case.groups, 16
    )
    if plan.mag_factor > 1:  # blocks between groups are cleared: nothing stands beside the weights
        assert np.count_nonzero(dw) == np.count_nonzero(plain)
    return plain


@pytest.fixture
def small(layer: Any) -> Any:
    """A layer of 20 to 12 channels in 4 groups, three taps deep, uneven padding."""
    return layer(
        n=2, cin=20, cout=12, spatial=(4, 5, 6), kernel=(3, 2, 3), stride=(1, 1, 2),
        pads=((1, 0), (0, 1), (2, 0)), dilation=(1, 1, 1), groups=4,
    )  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_layer_matches_float64(drawn: Any, close: Any, data: st.DataObject) -> None:
    case = drawn(data, 3)
    tiling: Any = "auto"
    if data.draw(st.booleans()):
        base_k = data.draw(st.sampled_from((16, 48)))
        tiling = Tiling(base_m=16, base_n=32, base_k=base_k, slab_k=base_k, form="taps")
    device = data.draw(st.sampled_from(("ascend310", "ascend910", "ascend910b2", "ascend950pr")))
    dy, x, w = case.operands((FP16,) * 3)
    result = run(case, x, dy, device, tiling=tiling, rules="hardware")
    close("dw", unpacked(case, result), case.reference(dy, x, w)[1], (FP16,), FP32)


def test_groups_that_share_fractals_are_cleared_at_every_depth(small: Any) -> None:
    dy, x, w = (np.round(one * 4) for one in small.operands((FP16,) * 3))
    result = run(small, x, dy, "ascend910")
    assert [one.name for one in result.runs][-1] == "clear_blocks"
    np.testing.assert_array_equal(unpacked(small, result), small.reference(dy, x, w)[1])
    assert "off-diagonal" in " ".join(result.notes)


def test_the_same_product_costs_the_same_in_two_dimensions(layer: Any) -> None:
    flat = layer(n=2, cin=32, cout=48, spatial=(7, 6), kernel=(3, 3), pads=((1, 1), (1, 1)))
    x, dy = npusim.spec((2, 2, 7, 6, 16), "fp16"), npusim.spec((2, 3, 7, 6, 16), "fp16")
    para = {"strides": [1, 1], "padding": [1] * 4, "dilations": [1] * 4}
    plane = npusim.ops.conv2d_backprop_filter(x, dy, flat.shapes[2], para, device="ascend910")
    x, dy = npusim.spec((2, 1, 2, 7, 6, 16), "fp16"), npusim.spec((2, 1, 3, 7, 6, 16), "fp16")
    para = {"strides": [1] * 3, "pads": [0, 0, 1, 1, 1, 1], "dilations": [1] * 5}
    volume = conv3d_backprop_filter(x, dy, (48, 32, 1, 3, 3), para, device="ascend910")
    assert volume.cycles == plane.cycles


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"strides": [1, 1]}, "strides"),
        ({"strides": [1, 1, 64]}, "strides"),
        ({"pads": [0] * 4}, "pads"),
        ({"pads": [0, 0, 0, 0, 0, 256]}, "pads"),
        ({"dilations": [1, 1, 2, 1, 1]}, "dilations"),
        ({"dilations": [1, 2, 1, 1, 1]}, "dilations"),
        ({"groups": 5}, "groups"),
        ({"groups": 2}, "x.shape"),
        ({"res_dtype": "float16"}, "res_dtype"),
        ({"group_dict": {"real_g": 1}}, "group_dict"),
        ({"group_dict": group_dict(group_plan(20, 12, 4, 16)) | {"real_g": 9}}, "group_dict"),
    ],
)
def test_refusals(small: Any, changes: Any, parameter: str) -> None:
    dy, x, _ = small.operands((FP16,) * 3)
    with pytest.raises(RuleError) as caught:
        run(small, x, dy, "ascend910", changes)
    assert caught.value.parameter == parameter
    with pytest.raises(ArgumentError, match="unknown key 'padding'"):
        run(small, x, dy, "ascend910", {"padding": [0] * 6})


def test_the_tensor_compilers_form(small: Any) -> None:
    dy, x, w = (np.round(one * 4) for one in small.operands((FP16,) * 3))
    blocked, gradient = to_6hd(x, 16), to_6hd(dy, 16)
    fmap = tvm.placeholder(blocked.shape, name="x", dtype="float16")
    dedy = tvm.placeholder(gradient.shape, name="dedy", dtype="float16")
    sizes, para = described(small, kernel_name="dw")
    lazy = dsl.conv3d_backprop_filter(fmap, dedy, sizes, para)
    result = lazy.run({"x": blocked, "dedy": gradient}, device="ascend910", timeline=False)
    assert (lazy.name, lazy.dtype) == ("dw", "float32")
    assert result.grad_weight is not None
    assert lazy.shape == result.grad_weight.shape
    np.testing.assert_array_equal(unpacked(small, result), small.reference(dy, x, w)[1])
    with pytest.raises(RuleError, match="pads"):
        dsl.conv3d_backprop_filter(fmap, dedy, sizes, para | {"pads": [0] * 5})
