"""Rows of chains that no kind of layer of a workload file has, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.base.dtypes import FP16, FP32, DType
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.networks.rules.table import chain_of
from npusim.networks.rules.values import Operation
from npusim.networks.run.chains import elementwise

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]

DEVICES = ("ascend310", "ascend910", "ascend910b2")

ROWS, WIDTH = 37, 48


def ran(
    row: str, reads: Mapping[str, Array], numbers: Mapping[str, float], dtype: DType, device: str
) -> Array:
    """What a row writes, of operands in a type."""
    result = "dx" if row.endswith("_gradient") else "y"
    names = {name: name for name in (*reads, result)}
    settings = {"width": WIDTH, "1/w": 1 / WIDTH, **numbers}
    chain = chain_of(row, names, "chain", 1, settings, dtype)
    call = Call(row, Options(device=device), timing_only=False)
    tensors = {
        name: call.input(name, reads[name].astype(dtype.numpy), dtype) for name in chain.reads
    }
    tensors[result] = call.output(result, (ROWS, WIDTH), dtype)
    call.launch_spread(elementwise(Operation("", row, "", chain=chain), tensors, call))
    return np.asarray(call.arrays[result], np.float64)


def erf(x: Array) -> Array:
    """The error function by its series, of which 80 terms are exact in float64 below 4."""
    term, total = x.copy(), x.copy()
    for n in range(1, 80):
        term = -term * x * x / n
        total = total + term / (2 * n + 1)
    return np.asarray(np.clip(2 / np.sqrt(np.pi) * total, -1, 1))


def celu(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.minimum(0, 1.5 * np.expm1(x / 1.5)))


def gelu(x: Array) -> Array:
    return x * (1 + erf(x / np.sqrt(2))) / 2


def normalized(x: Array) -> Array:
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 0.5))


def normalized_gradient(dy: Array, x: Array) -> Array:
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    y = normalized(x)
    along = np.where(norm > 0.5, (dy * y).sum(1, keepdims=True), 0)
    return np.asarray((dy - y * along) / np.maximum(norm, 0.5))


#: Functions with their slopes; whether they take positive numbers alone; numbers of the row.
FUNCTIONS: dict[str, tuple[Function, Function, bool, dict[str, float]]] = {
    "neg": (lambda x: -x, lambda x: -np.ones_like(x), False, {}),
    "abs": (np.abs, np.sign, False, {}),
    "exp": (np.exp, np.exp, False, {}),
    "log": (np.log, lambda x: 1 / x, True, {}),
    "sqrt": (np.sqrt, lambda x: 0.5 / np.sqrt(x), True, {}),
    "rsqrt": (lambda x: x**-0.5, lambda x: -0.5 * x**-1.5, True, {}),
    "reciprocal": (lambda x: 1 / x, lambda x: -(x**-2), True, {}),
    "square": (lambda x: x**2, lambda x: 2 * x, False, {}),
    "cube": (lambda x: x**3, lambda x: 3 * x**2, False, {}),
    "power": (lambda x: x**1.7, lambda x: 1.7 * x**0.7, True, {"exponent": 1.7}),
    "celu": (
        celu,
        lambda x: np.where(x > 0, 1, np.exp(np.minimum(x, 0) / 1.5)),
        False,
        {"share": 1.5, "inverse": 1 / 1.5},
    ),
    "gelu_erf": (
        gelu,
        lambda x: (1 + erf(x / np.sqrt(2))) / 2 + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi),
        False,
        {},
    ),
}


def operands(dtype: DType, *, positive: bool) -> tuple[Array, Array]:
    """Numbers and gradients that the type has."""
    rng = np.random.default_rng(11)
    x, dy = rng.standard_normal((2, ROWS, WIDTH))
    if positive:
        x = np.abs(x) + 0.25
    else:
        x[0, :4] = 0, -0.0, 3.5, -3.5
    return x.astype(dtype.numpy).astype(np.float64), dy.astype(dtype.numpy).astype(np.float64)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [FP16, FP32], ids=str)
@pytest.mark.parametrize("row", FUNCTIONS)
def test_functions_and_their_gradients(row: str, dtype: DType, device: str) -> None:
    function, slope, positive, numbers = FUNCTIONS[row]
    x, dy = operands(dtype, positive=positive)
    close: Any = {"rtol": 2e-3, "atol": 1e-3} if dtype is FP16 else {"rtol": 2e-5, "atol": 2e-6}
    y = function(x)
    np.testing.assert_allclose(ran(row, {"x": x}, numbers, dtype, device), y, **close)
    given = {"dy": dy, "x": x, "y": y}
    found = ran(f"{row}_gradient", given, numbers, dtype, device)
    np.testing.assert_allclose(found, dy * slope(x), **close)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [FP16, FP32], ids=str)
def test_rows_of_norm_one_and_those_too_small_for_it(dtype: DType, device: str) -> None:
    x, dy = operands(dtype, positive=False)
    x[3:9] *= 2.0**-7  # with a norm below epsilon, the last of them 0
    x[8] = 0
    numbers = {"epsilon": 0.5}
    close: Any = {"rtol": 2e-3, "atol": 1e-3} if dtype is FP16 else {"rtol": 2e-5, "atol": 2e-6}
    y = ran("normalize_rows", {"x": x}, numbers, dtype, device)
    np.testing.assert_allclose(y, normalized(x), **close)
    dx = ran("normalize_rows_gradient", {"dy": dy, "x": x}, numbers, dtype, device)
    np.testing.assert_allclose(dx, normalized_gradient(dy, x), **close)


def test_the_form_with_erf_is_nearer_to_it_than_fp16() -> None:
    x, _ = operands(FP32, positive=False)
    found = ran("gelu_erf", {"x": x}, {}, FP32, "ascend910b2")
    assert np.abs(found - gelu(x)).max() < 2e-6
