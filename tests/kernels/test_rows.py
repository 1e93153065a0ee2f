"""Reductions of rows in element-wise kernels: numbers, sums beside them, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32, DType
from npusim.base.errors import ArgumentError, CapacityError
from npusim.base.records import replace
from npusim.kernels.vector.elementwise import Elementwise, Step
from npusim.machine.isa.operands import Tensor

Array = npt.NDArray[Any]
DEVICES = ("ascend310", "ascend910", "ascend910b2", "ascend950pr")


def normalised(rows: int, width: int, dtype: DType) -> Elementwise:
    """Rows less their mean over their largest element, with a factor; sums of them; the means."""
    share = 1 / width
    steps = (
        Step("total", "row_sum", "x", width),
        Step("mean", "muls", "total", share),
        Step("middle", "spread", "mean", width),
        Step("centred", "sub", "x", "middle"),
        Step("size", "abs", "centred"),
        Step("most", "row_max", "size", width),
        Step("some", "adds", "most", 1.0),
        Step("inverse", "rec", "some"),
        Step("scale", "spread", "inverse", width),
        Step("norm", "mul", "centred", "scale"),
        Step("y", "mul", "norm", "gamma"),
    )
    shape = (rows, width)
    return Elementwise(
        "normalised",
        steps,
        (Tensor("x", shape, dtype),),
        (Tensor("y", shape, dtype, "out"),),
        (Tensor("gamma", (width,), FP32),),
        (Tensor("sums", (width,), FP32, "inout"),),
        ("norm",),
        rows=(Tensor("mean", (rows,), FP32, "out"),),
    )


@pytest.mark.parametrize("dtype", [FP16, FP32], ids=str)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(1, 8), (3, 24), (197, 192), (700, 768), (40, 2048)], ids=str)
def test_rows_match_float64(shape: tuple[int, int], device: str, dtype: DType) -> None:
    """Races and outputs that nobody writes are searched for."""
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape).astype(dtype.numpy)
    gamma = rng.standard_normal(shape[1]).astype(np.float32)
    kernel = normalised(*shape, dtype)
    result = npusim.simulate(kernel, device, x, gamma, np.zeros(shape[1], np.float32))
    assert result.outputs is not None
    mean, y, sums = map(np.asarray, result.outputs)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    norm = centred / (1 + np.abs(centred).max(1, keepdims=True))
    np.testing.assert_allclose(mean, wide.mean(1), rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(y, norm * gamma, rtol=6e-4 if dtype is FP16 else 3e-6, atol=3e-6)
    np.testing.assert_allclose(sums, norm.sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.compiled
def test_both_engines_agree() -> None:
    kernel = normalised(197, 192, FP16)
    slow, fast = (
        npusim.simulate(kernel, "ascend910", engine=one).runs[0].cycles for one in ("simpy", "fast")
    )
    assert slow == fast


@pytest.mark.parametrize("width", [1, 2, 3, 7, 197, 1000])
def test_rows_of_any_width_without_vectors(width: int) -> None:
    steps = (
        Step("top", "row_max", "x", width),
        Step("ceiling", "spread", "top", width),
        Step("y", "sub", "x", "ceiling"),
    )
    x = np.random.default_rng(width).standard_normal((5, 3, width)).astype(np.float16)
    maps = Tensor("x", x.shape, FP16), Tensor("y", x.shape, FP16, "out")
    kernel = Elementwise("less", steps, maps[:1], maps[1:])
    outputs = npusim.simulate(kernel, "ascend910", x).outputs
    assert outputs is not None
    wide = x.astype(np.float32)
    np.testing.assert_array_equal(
        outputs[0], (wide - wide.max(-1, keepdims=True)).astype(np.float16)
    )


KERNEL = normalised(4, 16, FP32)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"steps": (Step("total", "row_sum", "x", 5), *KERNEL.steps[1:])}, "has no rows of 5"),
        ({"rows": (Tensor("mean", (3,), FP32, "out"),)}, r"mean is fp32 .*4 rows are fp32, one"),
        ({"steps": (*KERNEL.steps, Step("z", "mul", "x", "total"))}, "spread them before"),
        ({"steps": (*KERNEL.steps, Step("z", "row_sum", "mean", 16))}, "spread them before"),
        ({"steps": (*KERNEL.steps, Step("mean", "relu", "y"))}, "mean is a map, where a row"),
        ({"rows": (Tensor("much", (4,), FP32, "out"),)}, "no step makes much"),
    ],
)
def test_what_cannot_be_done_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^normalised: .*{text}"):
        replace(KERNEL, **change)


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(CapacityError, match="normalised: ascend910 has 262144 B of UB"):
        npusim.simulate(normalised(2, 40_000, FP16), "ascend910")
