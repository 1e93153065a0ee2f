"""The depth-wise gradients of the tensor compiler: float64, their sisters, layouts, both forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import FP16, FP32
from npusim.base.errors import ArgumentError, RuleError
from npusim.cli.main import main
from npusim.compat.tbe import dsl, tvm
from npusim.layout import from_5hd, to_5hd, to_fracz_3d
from npusim.ops import depthwise_conv2d_backprop_filter, depthwise_conv2d_backprop_input
from npusim.results import Result

Array = np.ndarray[Any, Any]


def para_of(case: Any, **more: Any) -> dict[str, Any]:
    usual = {
        "strides": list(case.stride),
        "padding": [p for pair in case.pads for p in pair],
        "dilations": [1, 1, *case.dilation],
    }
    return usual | more


def fractals(case: Any, w: Array) -> Array:
    """FRACTAL_Z by hand: row (c1, kh, kw), and channel c on the diagonal of its fractal."""
    blocks, (kh, kw) = -(-case.cin // 16), case.kernel
    packed = np.zeros((blocks, kh, kw, 16, 16), w.dtype)
    for c in range(case.cin):
        packed[c // 16, :, :, c % 16, c % 16] = w[c, 0]
    return packed.reshape(-1, 1, 16, 16)


def filter_gradient(case: Any, x: Array, dy: Array, device: str, **options: Any) -> Array:
    """The filter's gradient (C, 1, KH, KW), after a look at what lies off the diagonals."""
    blocked = to_5hd(x, 16), to_5hd(dy, 16)
    sizes, para = case.shapes[2], para_of(case)
    usual: dict[str, Any] = {"device": device, "timeline": False, "rules": "hardware"}
    result = depthwise_conv2d_backprop_filter(*blocked, sizes, para, **usual | options)
    return plain_filter(case, result)


def plain_filter(case: Any, result: Result) -> Array:
    (dw,) = result.outputs or ()
    assert dw is not None
    blocks, (kh, kw) = -(-case.cin // 16), case.kernel
    assert (dw.shape, dw.dtype.name) == ((blocks, kh * kw, 16, 16), "float32")
    plain = np.array([dw[c // 16, :, c % 16, c % 16] for c in range(case.cin)])
    assert np.count_nonzero(dw) == np.count_nonzero(plain)
    return plain.reshape(case.cin, 1, kh, kw)


def input_gradient(case: Any, w: Array, dy: Array, device: str, para: Any = None) -> Result:
    sizes = case.shapes[2], [case.n, case.cin, *case.spatial]
    return depthwise_conv2d_backprop_input(
        fractals(case, w), to_5hd(dy, 16), *sizes, para_of(case, **para or {}),
        device=device, timeline=False, rules="hardware",
    )  # fmt: skip


def plain_input(case: Any, result: Result) -> Array:
    (dx,) = result.outputs or ()
    assert dx is not None
    blocks, size = -(-case.cin // 16), case.spatial
    whole = from_5hd(dx.reshape(case.n, blocks, *size, 16), blocks * 16)
    assert not whole[:, case.cin :].any()
    return whole[:, : case.cin]


@pytest.fixture
def small(layer: Any) -> Any:
    """20 channels, uneven padding and strides."""
    return layer(
        n=2, cin=20, cout=20, spatial=(5, 6), kernel=(2, 3), stride=(1, 2), pads=((0, 1), (2, 0)),
        groups=20,
    )  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_any_layer_matches_float64(drawn: Any, layer: Any, close: Any, data: st.DataObject) -> None:
    shape, channels = drawn(data, 2), data.draw(st.integers(1, 40))
    names = ("n", "spatial", "kernel", "stride", "pads", "dilation")
    same = {name: getattr(shape, name) for name in names}
    case = layer(**same, cin=channels, cout=channels, groups=channels)
    device = data.draw(st.sampled_from(("ascend310", "ascend910", "ascend910b2", "ascend950pr")))
    dy, x, w = case.operands((FP16,) * 3)
    dx, dw = case.reference(dy, x, w)
    close("dw", filter_gradient(case, x, dy, device), dw, (FP16,), FP32)
    close("dx", plain_input(case, input_gradient(case, w, dy, device)), dx, (FP16,), FP16)


def test_they_are_the_gradients_of_as_many_groups_as_channels(small: Any) -> None:
    dy, x, w = (np.round(one * 4) for one in small.operands((FP16,) * 3))
    packed = fractals(small, w)
    np.testing.assert_array_equal(packed, to_fracz_3d(w[:, :, None], 20, 16))
    dx = input_gradient(small, w, dy, "ascend910")
    usual: dict[str, Any] = {"device": "ascend910", "timeline": False}
    sizes, size = small.shapes[2], [2, 20, 5, 6]
    blocked = to_5hd(x, 16), to_5hd(dy, 16)
    sister = npusim.ops.conv2d_backprop_input(
        packed, blocked[1], sizes, size, para_of(small), **usual
    )
    assert (dx.cycles, dx.problem) == (sister.cycles, sister.problem)
    dw = depthwise_conv2d_backprop_filter(*blocked, sizes, para_of(small), **usual)
    sister = npusim.ops.conv2d_backprop_filter(*blocked, sizes, para_of(small, groups=20), **usual)
    assert (dw.cycles, [one.name for one in dw.runs][-1]) == (sister.cycles, "clear_blocks")


def test_the_fp32_result_is_not_rounded(small: Any) -> None:
    dy, x, w = small.operands((FP16,) * 3)
    dy, w = (np.round(dy * 64) + 300).astype(dy.dtype), (np.round(w * 64) + 101).astype(w.dtype)
    result = input_gradient(small, w, dy, "ascend910", {"res_dtype": "float32"})
    want = small.reference(dy, x, w)[0]
    np.testing.assert_array_equal(plain_input(small, result), want)
    assert np.abs(want).max() > 65504


def test_the_functions_of_the_tensor_compiler(small: Any) -> None:
    dy, x, w = (np.round(one * 4) for one in small.operands((FP16,) * 3))
    feeds = {"x": to_5hd(x, 16), "w": fractals(small, w), "dy": to_5hd(dy, 16)}
    x_gm, w_gm, dy_gm = (
        tvm.placeholder(one.shape, name=name, dtype="float16") for name, one in feeds.items()
    )
    sizes, para = list(small.shapes[2]), para_of(small, kernel_name="mine")
    want = small.reference(dy, x, w)
    usual: dict[str, Any] = {"device": "ascend910", "timeline": False}
    dx = dsl.depthwise_conv2d_backprop_input(w_gm, dy_gm, sizes, [2, 20, 5, 6], para)
    assert (dx.name, dx.shape, dx.dtype) == ("mine", (2, 2, 30, 16), "float16")
    made = dx.run({"w": feeds["w"], "dy": feeds["dy"]}, **usual)
    np.testing.assert_array_equal(plain_input(small, made), want[0])
    dw = dsl.depthwise_conv2d_backprop_filter(x_gm, dy_gm, sizes, para)
    assert (dw.name, dw.shape, dw.dtype) == ("mine", (2, 6, 16, 16), "float32")
    made = dw.run({"x": feeds["x"], "dy": feeds["dy"]}, **usual)
    np.testing.assert_array_equal(plain_filter(small, made), want[1])
    with pytest.raises(RuleError, match="one filter for each channel"):
        dsl.depthwise_conv2d_backprop_filter(x_gm, dy_gm, [20, 2, 2, 3], para)


@pytest.mark.parametrize("key", ["groups", "group_dict", "stride"])
def test_groups_are_not_stated(small: Any, key: str) -> None:
    dy, x, w = small.operands((FP16,) * 3)
    with pytest.raises(ArgumentError, match=f"unknown key '{key}'"):
        input_gradient(small, w, dy, "ascend910", {key: 20})
    blocked = to_5hd(x, 16), to_5hd(dy, 16)
    sizes, para = small.shapes[2], para_of(small, **{key: 20})
    with pytest.raises(ArgumentError, match=f"unknown key '{key}'"):
        depthwise_conv2d_backprop_filter(*blocked, sizes, para, device="ascend910")


def test_a_command_line_states_channels_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "depthwise_conv2d_backprop_input", "--device", "ascend910"]
    assert main([*words, "--cin", "20", "--size", "5x6", "--kernel", "3", "--check"]) == 0
    assert "groups 20" in capsys.readouterr().out
    assert main([*words, "--layer", "resnet50/res4_3x3"]) == 2
    told = capsys.readouterr().err
    assert "has 256 -> 256 channels in 1 groups" in told
    assert "conv2d_backprop_input takes any" in told
    assert main([*words, "--cin", "20", "--size", "5x6"]) == 2
    assert "missing: --kernel" in capsys.readouterr().err
