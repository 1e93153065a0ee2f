"""Weighted sums along an axis against float64, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32, INT8
from npusim.base.errors import ArgumentError
from npusim.isa.operands import Tensor
from npusim.kernels.blend import Blend

DEVICES = ("ascend910", "ascend910b2", "ascend950pr")

#: Planes, inputs, elements of a row, outputs: many planes, long rows cut, one of everything.
SHAPES = ((6, 7, 48, 14), (3, 9, 4112, 17), (130, 28, 16, 56), (1, 1, 16, 5), (2, 400, 256, 1))


def blend(shape: tuple[int, int, int, int], dtype: Any = FP16, **changed: Any) -> Blend:
    """Every output rests on none to three inputs, some at even steps and of equal weights."""
    planes, inputs, row, outputs = shape
    rng = np.random.default_rng(7)
    terms = []
    for at in range(outputs):
        begin = at * inputs // outputs
        some = sorted({begin, *rng.integers(0, inputs, at % 3)})[: at % 4 or 3]
        terms.append(tuple((int(i), (0.25, 0.5, -1.5)[(at + i) % 3]) for i in some))
    if outputs > 3:
        terms[3] = ()
    given = {
        "read": Tensor("x", (planes, inputs, row), dtype, "in"),
        "out": Tensor("y", (planes, outputs, row), dtype, "out"),
        "terms": tuple(terms),
    }
    return Blend(**{**given, **changed})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [FP16, FP32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_match_float64(shape: tuple[int, int, int, int], dtype: Any, device: str) -> None:
    kernel = blend(shape, dtype)
    x = np.random.default_rng(0).standard_normal(kernel.read.shape).astype(dtype.numpy)
    result = npusim.simulate(kernel, device, x, timeline=False)
    weights = np.zeros((shape[3], shape[1]))
    for at, terms in enumerate(kernel.terms):
        for i, weight in terms:
            weights[at, i] += weight
    want = np.einsum("oi,piq->poq", weights, x.astype(np.float64))
    assert result.outputs is not None
    (found,), close = result.outputs, 1e-3 if dtype is FP16 else 1e-5
    assert found is not None
    np.testing.assert_allclose(found, want, rtol=close, atol=close)


def test_one_instruction_has_a_term_in_all_planes() -> None:
    terms = ((0, 1.0),), ((0, 0.5), (1, 0.5)), (), ((1, 1.0),)
    kernel = blend((6, 2, 32, 4), FP32, terms=terms)
    (run,) = npusim.simulate(kernel, "ascend910b2", cores=1).runs
    # On both vector cores a load and a store, a product for each term, a sum, and zeros.
    assert run.instructions == 2 * (2 + 4 + 1 + 1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"terms": ()}, "they must be"),
        ({"terms": (((7, 1.0),),) * 14}, "inputs up to 7"),
        ({"out": Tensor("y", (6, 14, 48), FP32, "out")}, "one float type"),
        ({"read": Tensor("x", (6, 7, 48), INT8, "in")}, "one float type"),
    ],
)
def test_other_operands_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        blend(SHAPES[0], **changed)
