"""Weighted sums along an axis against float64, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npusim
from npusim.base.dtypes import FP16, FP32, INT8
from npusim.base.errors import ArgumentError
from npusim.kernels.vector.blend import Blend
from npusim.kernels.vector.blend_periods import BlendPeriods, Periods
from npusim.machine.device.catalog import load_device
from npusim.machine.isa.operands import Tensor
from npusim.machine.program.build import build
from tests.sampled import crossed

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


def periods(outputs: int, inputs: int, before: int, after: int, count: int) -> Periods:
    """Periods of so many outputs and inputs, each output of none to five inputs, and both ends."""
    rng = np.random.default_rng(outputs + inputs)

    def terms(first: int, reach: int, number: int) -> tuple[tuple[int, float], ...]:
        some = sorted({int(i) for i in rng.integers(first, first + reach, number % 6)})
        return tuple((i, (0.25, 0.5, -1.5)[(i + number) % 3]) for i in some)

    return Periods(
        phases=tuple(terms(1, 2 * inputs + 2, a) for a in range(1, outputs + 1)),
        times=count,
        inputs=inputs,
        before=tuple(terms(0, 3, a) for a in range(before)),
        after=tuple(terms(count * inputs, 2, a) for a in range(after)),
    )


def listed(periods: Periods) -> Any:
    """The terms of all outputs."""
    between = [
        tuple((i + j * periods.inputs, weight) for i, weight in terms)
        for j in range(periods.times)
        for terms in periods.phases
    ]
    return (*periods.before, *between, *periods.after)


#: Planes, elements of a row; outputs and inputs of a period, outputs at both ends, periods.
REPEATED = (
    (1, 16, (300, 1, 150, 150, 40)),
    (1, 16, (1, 300, 1, 1, 37)),
    (3, 16, (5, 2, 1, 4, 50)),
    (2, 32, (2, 5, 0, 0, 9)),
    (70, 16, (2, 1, 1, 1, 200)),
    (2, 48, (1, 1, 0, 3, 1)),
)


@pytest.mark.parametrize(
    ("case", "dtype", "device"), crossed(REPEATED, [FP16, FP32], DEVICES), ids=str
)
def test_periods_have_the_sums_of_their_outputs(case: Any, dtype: Any, device: str) -> None:
    planes, row, sizes = case
    repeated = periods(*sizes)
    shape = (planes, repeated.times * repeated.inputs + repeated.inputs + 3, row)
    read = Tensor("x", shape, dtype, "in")
    out = Tensor("y", (planes, repeated.outputs, row), dtype, "out")
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype.numpy)
    found = npusim.simulate(BlendPeriods(read, out, repeated), device, x, timeline=False)
    plain = npusim.simulate(Blend(read, out, listed(repeated)), device, x, timeline=False)
    assert found.outputs is not None
    assert plain.outputs is not None
    np.testing.assert_array_equal(found.outputs[0], plain.outputs[0])


def test_a_program_grows_with_the_outputs_of_a_period_and_not_with_all() -> None:
    emitted, device = [], load_device("ascend910b2")
    for count in (48 * 40, 48 * 400):
        repeated = periods(30, 1, 0, 0, count)
        shape = (1, count + 4, 16)
        read, out = Tensor("x", shape, FP16), Tensor("y", (1, repeated.outputs, 16), FP16, "out")
        program = build(BlendPeriods(read, out, repeated), device, tuple(range(device.groups)))
        emitted.append(program.emitted)
    assert emitted[1] <= 2 * emitted[0]


def test_what_does_not_fit_periods_is_refused() -> None:
    repeated = periods(3, 2, 1, 1, 5)
    read = Tensor("x", (2, 15, 16), FP16)
    with pytest.raises(ArgumentError, match=r"17 outputs in all.*\(planes, inputs, q\)"):
        BlendPeriods(read, Tensor("y", (2, 16, 16), FP16, "out"), repeated)
    with pytest.raises(ArgumentError, match="of inputs up to"):
        BlendPeriods(Tensor("x", (2, 4, 16), FP16), Tensor("y", (2, 17, 16), FP16, "out"), repeated)
    with pytest.raises(ArgumentError, match=r"rows of whole 32 B"):
        BlendPeriods(Tensor("x", (2, 15, 5), FP16), Tensor("y", (2, 17, 5), FP16, "out"), repeated)
