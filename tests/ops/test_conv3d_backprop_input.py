"""conv3d_backprop_input: the page's example, groups, bias, refusals, random layers in float64."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from npusim.base.dtypes import FP16
from npusim.base.errors import ArgumentError
from npusim.ops import conv3d_backprop_input
from npusim.problem.layouts import from_6hd, group_dict, group_plan, to_6hd, to_fracz_3d
from npusim.results import Result

Array = np.ndarray[Any, Any]


def described(case: Any) -> tuple[list[int], list[int], dict[str, Any]]:
    """filter_size, input_size and para_dict of a layer."""
    return (
        list(case.shapes[2]),
        [case.n, *case.spatial, case.cin],
        {
            "strides": [1, *case.stride, 1],
            "pads": [p for pair in case.pads for p in pair],
            "dilations": [1, *case.dilation, 1],
            "res_dtype": "float16",
            "kernel_name": "dx",
            "group_dict": group_dict(group_plan(case.cin, case.cout, case.groups, 16)),
        },
    )


def run(case: Any, dy: Array, w: Array, device: str = "ascend910", **more: Any) -> Result:
    """Run one layer on framework operands; keywords of para_dict and of the call."""
    filter_size, input_size, para = described(case)
    own = ("tensor_bias", "group_dict", "res_dtype")
    para |= {key: more.pop(key) for key in own if key in more}
    packed = to_fracz_3d(w, case.groups, 16)
    return conv3d_backprop_input(
        packed, to_6hd(dy, 16), filter_size, input_size, para, device=device, timeline=False, **more
    )


def unpacked(case: Any, r: Result, dtype: Any = np.float16) -> Array:
    """The result as (N, Cin, D, H, W), after checking its shape and its padding channels."""
    assert r.outputs is not None
    (out,) = r.outputs
    assert out is not None
    blocks = -(-case.cin // 16)
    depth, *size = case.spatial
    assert out.shape == (case.n, depth, blocks, prod(size), 16)
    assert out.dtype == dtype
    whole = out.reshape(case.n, depth, blocks, *size, 16)
    everything = from_6hd(whole, blocks * 16)
    assert not everything[:, case.cin :].any()
    return everything[:, : case.cin]


@pytest.fixture
def small(layer: Any) -> Any:
    """A layer of 20 to 12 channels, depth stride 2."""
    return layer(
        n=2, cin=20, cout=12, spatial=(3, 4, 5), kernel=(1, 2, 2), stride=(2, 1, 1),
        pads=((0, 0), (0, 1), (1, 0)), dilation=(1, 1, 1), output_padding=(0, 0, 0),
    )  # fmt: skip


@pytest.mark.parametrize("device", ["ascend310", "ascend910", "ascend910b2", "ascend950pr"])
@pytest.mark.parametrize("biased", [False, True])
def test_the_fp32_result_is_not_rounded(small: Any, device: str, biased: bool) -> None:
    """Sums of thousands with a last bit that fp16 has no room for, and one beyond its range."""
    dy, x, w = small.operands((FP16,) * 3)
    dy, w = (np.round(dy * 64) + 300).astype(dy.dtype), (np.round(w * 64) + 101).astype(w.dtype)
    bias = np.arange(100_000, 100_020, dtype=np.float32)
    more = {"tensor_bias": bias} if biased else {}
    r = run(small, dy, w, device, res_dtype="float32", rules="hardware", **more)
    want = small.reference(dy, x, w)[0] + (bias[None, :, None, None, None] if biased else 0)
    got = unpacked(small, r, np.float32)
    np.testing.assert_array_equal(got, want)
    assert np.abs(want).max() > 65504
    assert r.problem.endswith("fp16 -> fp32")


# -- worked examples -----------------------------------------------------------------------


# -- bias, depths, arguments ---------------------------------------------------------------


def test_a_bias_is_added_after_rounding(small: Any) -> None:
    dy, _, w = small.operands((FP16,) * 3)
    bias = np.linspace(-3, 3, small.cin).astype(np.float16)
    plain, biased = run(small, dy, w), run(small, dy, w, tensor_bias=bias)
    want = unpacked(small, plain) + bias[:, None, None, None]  # fp16 plus fp16, rounded
    np.testing.assert_array_equal(unpacked(small, biased), want)
    assert list(biased.kernels["name"]) == [*plain.kernels["name"], "bias_add"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strides": None}, "strides is null"),
        ({"pads": None}, "pads is null"),
        ({"res_dtype": "bfloat16"}, "res_dtype is bf16; "),
        ({"res_dtype": "float32", "tensor_bias": np.zeros(20, np.float16)}, "must be fp32 of"),
        ({"fused": 1}, "unknown key 'fused'"),
        ({"tensor_bias": np.zeros(3, np.float16)}, "must be fp16 of"),
        ({"tensor_bias": np.zeros(20, np.float32)}, "must be fp16 of"),
    ],
)
def test_arguments_that_do_not_fit(small: Any, change: dict[str, Any], words: str) -> None:
    dy, _, w = small.operands((FP16,) * 3)
    filter_size, input_size, para = described(small)
    with pytest.raises(ArgumentError, match=words):
        conv3d_backprop_input(
            to_fracz_3d(w, 1, 16), to_6hd(dy, 16), filter_size, input_size, para | change,
            device="ascend910",
        )  # fmt: skip
