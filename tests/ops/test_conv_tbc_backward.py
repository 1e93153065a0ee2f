"""conv_tbc_backward: against float64 and against the same layer with channels first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32, DType
from npusim.base.errors import RuleError
from npusim.compat import aclnn
from npusim.ops.conv_tbc_backward import conv_tbc_backward
from npusim.results import Result
from tests.tables import rows

Array = np.ndarray[Any, Any]


def turned(dy: Array, x: Array, w: Array) -> tuple[Array, Array, Array]:
    """Channels-first operands as (T, N, C) and (K, Cin, Cout)."""
    return dy.transpose(2, 0, 1), x.transpose(2, 0, 1), w.transpose(2, 1, 0)


def run(dy: Array, x: Array, w: Array, pad: int, **options: Any) -> Result:
    operands = turned(dy, x, w)
    bias = np.zeros(dy.shape[1], dy.dtype)
    return conv_tbc_backward(*operands, bias, pad, timeline=False, **options)


def gradients(result: Result) -> list[Array]:
    """The three results with channels first."""
    dx, dw, db = result.outputs or ()
    assert dx is not None
    assert dw is not None
    assert db is not None
    return [dx.transpose(1, 2, 0), dw.transpose(2, 1, 0), db]


@pytest.mark.parametrize(("kind", "cube_math_type"), [(FP16, 0), (FP32, 1), (FP32, 2)])
def test_it_has_the_bits_of_the_layer_with_channels_first(
    layer: Any, kind: DType, cube_math_type: int
) -> None:
    case = layer(n=2, cin=20, cout=24, spatial=(11,), kernel=(3,), stride=(1,), pads=((1, 1),),
                 dilation=(1,))  # fmt: skip
    dy, x, w = case.operands((kind,) * 3)
    options: dict[str, Any] = {"device": "ascend910b2", "cube_math_type": cube_math_type}
    first = npusim.ops.convolution_backward(dy, x, w, (24,), padding=1, timeline=False, **options)
    last = run(dy, x, w, 1, **options)
    for got, want in zip(gradients(last), first.outputs or (), strict=True):
        np.testing.assert_array_equal(got, want)
    kernels = [one.name for one in last.runs]
    assert kernels.count("transpose") == 5
    assert [name for name in kernels if name != "transpose"] == [one.name for one in first.runs]


SHAPES = {"grad_output": (11, 2, 24), "input": (11, 2, 20), "weight": (3, 20, 24), "bias": (24,)}


def call(device: str, pad: Any = 1, kind: str = "fp16", **shapes: Any) -> Result:
    dy, x, w, bias = (npusim.spec(shape, kind) for shape in (SHAPES | shapes).values())
    return conv_tbc_backward(dy, x, w, bias, pad, device=device)


@rows("tests/data/mistakes/ops.yaml", "refusals", "changes, parameter, status")
def test_refusals(changes: dict[str, Any], parameter: str, status: int | None) -> None:
    with pytest.raises(RuleError) as caught:
        call("ascend910", **changes)
    assert (caught.value.parameter, caught.value.status) == (parameter, status)


def test_the_c_call_writes_three_gradients_and_has_its_own_refusals() -> None:
    stream = aclnn.aclrtCreateStream(device="ascend910b2")
    rng = np.random.default_rng(0)
    arrays: Any = [rng.integers(-3, 4, shape).astype(np.float16) for shape in SHAPES.values()]
    outs = [np.zeros(SHAPES[name], np.float16) for name in ("input", "weight", "bias")]
    handles = [aclnn.aclCreateTensor(one) for one in (*arrays, *outs)]
    plan: Any = aclnn.aclnnConvTbcBackwardGetWorkspaceSize
    status, size, executor = plan(*handles[:4], 1, 0, *handles[4:])
    assert status == 0, aclnn.aclGetRecentErrMsg()
    assert aclnn.aclnnConvTbcBackward(aclnn.aclrtMalloc(size), size, executor, stream) == 0
    dy, x, w, bias = arrays
    direct = conv_tbc_backward(dy, x, w, bias, 1, device="ascend910b2")
    for got, want in zip(outs, direct.outputs or (), strict=True):
        np.testing.assert_array_equal(got, want)
    wrong = aclnn.aclCreateTensor(np.zeros((23,), np.float16))
    for status, text, arguments in (
        (161001, "self is null", (None, *handles[1:4], 1, 0, *handles[4:])),
        (161001, "gradBias is null", (*handles[:4], 1, 0, *handles[4:6], None)),
        (161002, "self.shape is (11, 2, 24)", (*handles[:4], 0, 0, *handles[4:])),
        (161002, "gradBias.shape is (23,)", (*handles[:4], 1, 0, *handles[4:6], wrong)),
        (161002, "cubeMathType is 4", (*handles[:4], 1, 4, *handles[4:])),
    ):
        assert plan(*arguments) == (status, 0, None)
        assert text in str(aclnn.aclGetRecentErrMsg())
