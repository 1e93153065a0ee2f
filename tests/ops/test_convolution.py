"""convolution: what it costs, refuses and writes; its numbers are held by random calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.errors import ArgumentError, CapacityError
from npusim.compat import aclnn as acl
from npusim.problem.convolution import Convolution
from npusim.problem.reference import conv_forward, conv_input_grad

Array = np.ndarray[Any, Any]


def reference(c: Convolution, x: Array, w: Array, bias: Array | None) -> Array:
    if c.transposed:
        y = conv_input_grad(x, w, c.dy_shape, c.stride, c.reads, c.dilation, c.groups)
    else:
        y = conv_forward(x, w, c.stride, c.padding, c.dilation, c.groups)
    if bias is None:
        return y
    added: Array = y + bias.astype(np.float64).reshape(-1, *(1,) * c.dims)
    return added


def test_a_layer_of_resnet_is_timed_like_the_kernel_of_a_transposed_gradient() -> None:
    c = Convolution(n=2, cin=64, cout=64, spatial=(28, 28), kernel=(3, 3), padding=((1, 1),) * 2)
    x, w = npusim.spec(c.x_shape, "fp16"), npusim.spec(c.w_shape, "fp16")
    forward = npusim.ops.convolution(x, w, padding=1, device="ascend910b2")
    behind = npusim.ops.convolution_backward(
        npusim.spec(c.x_shape, "fp16"), npusim.spec(c.dy_shape, "fp16"), w, padding=1,
        transposed=True, output_mask=(True, False, False), device="ascend910b2",
    )  # fmt: skip
    assert [run.cycles for run in forward.runs] == [run.cycles for run in behind.runs]
    assert forward.problem_us == behind.problem_us
    assert [run.computes for run in forward.runs if run.macs] == ["output"]
    assert sum(run.useful_macs for run in forward.runs) == c.useful_macs


X, W = npusim.spec((2, 16, 8, 8), "fp16"), npusim.spec((32, 16, 3, 3), "fp16")


@pytest.mark.parametrize(
    ("operands", "options", "message"),
    [
        ((X, npusim.spec((32, 8, 3, 3), "fp16")), {}, "input has 16 channels; a weight of shape"),
        ((X, npusim.spec((32, 16, 3), "fp16")), {}, "both must have 3 axes"),
        ((X, W, npusim.spec((16,), "fp16")), {}, "bias has shape (16,); the layer has (32,)"),
        ((X, W), {"stride": 0}, "stride is 0; it must be an integer of at least 1, or 2 of them"),
        ((X, W), {"padding": (1, 1, 1)}, "padding is (1, 1, 1); it must be an integer of at least"),
        ((X, W), {"groups": 0}, "groups is 0"),
        ((X, W), {"output_padding": 1}, "output_padding is [1, 1]; only transposed layers"),
        ((X, W), {"dilation": 5}, "output H would be"),
        ((npusim.spec((0, 16, 8, 8), "fp16"), W), {}, "every size must be at least 1"),
        ((npusim.spec((2, 16, 8, 8), "int8"), W), {}, "input is int8; it must be one of fp16"),
        ((X, W), {"device": "mt7004"}, "no cube unit"),
        ((X, W), {"tiling": {"conv_backprop_filter": None}}, "the kernels here are conv_forward"),
    ],
)
def test_what_does_not_fit_is_refused(
    operands: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        npusim.ops.convolution(*operands, **{"device": "ascend910b2", **options})
    assert message in str(caught.value)


def test_an_output_that_main_memory_cannot_hold_is_refused() -> None:
    x, w = npusim.spec((4096, 64, 256, 256), "fp16"), npusim.spec((64, 64, 3, 3), "fp16")
    with pytest.raises(CapacityError, match="of main memory, but tensors"):
        npusim.ops.convolution(x, w, padding=1, device="ascend910b4")


def test_the_c_call_writes_in_place() -> None:
    c = Convolution(n=2, cin=16, cout=24, spatial=(7, 6), kernel=(3, 3), padding=((1, 1),) * 2)
    rng = np.random.default_rng(3)
    x, w, b = (rng.integers(-2, 3, s).astype(np.float16) for s in (c.x_shape, c.w_shape, (24,)))
    y = np.full(c.dy_shape, 77, np.float16)
    stream: Any = acl.aclrtCreateStream(device="ascend910b2")
    phase_one: Any = acl.aclnnConvolutionGetWorkspaceSize

    def planned(output: Any, *, weight: Any = w) -> tuple[int, int, Any]:
        tensors = [None if a is None else acl.aclCreateTensor(a) for a in (x, weight, b, output)]
        one, two = acl.aclCreateIntArray([1, 1]), acl.aclCreateIntArray([0, 0])
        found: tuple[int, int, Any] = phase_one(
            *tensors[:3], one, one, one, False, two, 1, tensors[3], 0
        )
        return found

    status, size, executor = planned(y)
    assert (status, acl.aclGetRecentErrMsg()) == (acl.ACLNN_SUCCESS, None)
    assert acl.aclnnConvolution(acl.aclrtMalloc(size), size, executor, stream) == acl.ACLNN_SUCCESS
    np.testing.assert_array_equal(y.astype(np.float64), reference(c, x, w, b))
    assert planned(np.zeros((2, 24, 7, 7), np.float16))[0] == acl.ACLNN_ERR_PARAM_INVALID
    assert "output has shape (2, 24, 7, 7)" in str(acl.aclGetRecentErrMsg())
    assert planned(y, weight=None)[0] == acl.ACLNN_ERR_PARAM_NULLPTR
    assert "aclnnConvolution: weight is null" in str(acl.aclGetRecentErrMsg())
