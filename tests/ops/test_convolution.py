"""convolution: any layer equals float64 (and PyTorch), through both of its entrances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import npusim
from npusim.base.dtypes import BF16, FP16, FP32, DType
from npusim.base.errors import ArgumentError, CapacityError
from npusim.compat import aclnn as acl
from npusim.ops.card import LIMITS
from npusim.ops.convolution_backward import arguments
from npusim.shapes.convolution import Convolution
from npusim.shapes.reference import conv_forward, conv_input_grad, relative_error
from tests.drawn import examples

Array = np.ndarray[Any, Any]

#: Devices by what their cubes multiply.
DEVICES = {"ascend910": (FP16,), "ascend310p": (FP16,), "ascend910b2": (FP16, BF16, FP32)}


def operands(c: Convolution, kind: DType, *, bias: bool) -> list[Array | None]:
    rng = np.random.default_rng(5)
    shapes = (c.x_shape, c.w_shape, (c.cout,) if bias else None)
    return [s if s is None else rng.standard_normal(s).astype(kind.numpy) for s in shapes]


def reference(c: Convolution, x: Array, w: Array, bias: Array | None) -> Array:
    if c.transposed:
        y = conv_input_grad(x, w, c.dy_shape, c.stride, c.reads, c.dilation, c.groups)
    else:
        y = conv_forward(x, w, c.stride, c.padding, c.dilation, c.groups)
    if bias is None:
        return y
    added: Array = y + bias.astype(np.float64).reshape(-1, *(1,) * c.dims)
    return added


def check(c: Convolution, kind: DType, device: str, *, bias: bool, **options: Any) -> None:
    x, w, b = operands(c, kind, bias=bias)
    assert x is not None
    assert w is not None
    r = npusim.ops.convolution(x, w, b, **arguments(c), device=device, timeline=False, **options)
    assert r.outputs is not None
    (got,) = r.outputs
    assert got is not None
    assert (got.shape, got.dtype) == (c.dy_shape, kind.numpy)
    limit = LIMITS[kind.name] * (1 + bias)
    want = reference(c, x, w, b)
    assert relative_error(got, want) <= limit
    assert sum(run.useful_macs for run in r.runs) == c.useful_macs
    assert {run.computes for run in r.runs if run.macs} <= {"output"}


@st.composite
def layers(draw: st.DrawFn) -> Convolution:
    dims = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    groups = draw(st.sampled_from((1, 1, 1, 2, 3, 8)))
    stride, dilation, pads = each(1, 3), each(1, 2), [(p, p) for p in each(0, 2)]
    if dims == 2 and draw(st.booleans()):
        pads = list(zip(each(0, 3), each(0, 3), strict=True))
    transposed = draw(st.booleans())
    room = [max(s, d) - 1 if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    try:
        return Convolution(
            n=draw(st.integers(1, 3)),
            cin=groups * draw(st.integers(1, 40 // groups)),
            cout=groups * draw(st.integers(1, 40 // groups)),
            spatial=each(1, 10 if dims < 3 else 5),
            kernel=each(1, 4),
            stride=stride,
            padding=tuple(pads),
            dilation=dilation,
            groups=groups,
            transposed=transposed,
            output_padding=tuple(draw(st.integers(0, most)) for most in room),
        )
    except ArgumentError:  # the layer has no output
        assume(False)
        raise


@pytest.mark.compiled
@examples(60)
@given(layers(), st.sampled_from(sorted(DEVICES)), st.data(), st.booleans())
def test_any_layer_matches_float64(
    c: Convolution, device: str, data: st.DataObject, bias: bool
) -> None:
    kind = data.draw(st.sampled_from(DEVICES[device]))
    check(c, kind, device, bias=bias, cores=data.draw(st.sampled_from([None, 1, "0-2"])))


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
