"""The float64 reference against worked examples, brute force, adjointness and PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.base.errors import ArgumentError
from npusim.problem.convolution import output_sizes
from npusim.problem.reference import (
    conv_bias_grad,
    conv_filter_grad,
    conv_forward,
    conv_input_grad,
    relative_error,
)
from tests.sampled import examples

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One convolution; ``window`` is what all reference functions take last."""

    batch: int
    cin: int
    cout: int
    groups: int
    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    @property
    def window(self) -> tuple[Any, ...]:
        """Stride, padding, dilation and groups, in the order the reference takes them."""
        return self.stride, self.padding, self.dilation, self.groups

    def arrays(self) -> tuple[Array, Array, Array]:
        """Return small random integers for x, w and dy, so that sums are exact in float64."""
        rng = np.random.default_rng(7)
        out = output_sizes(self.spatial, self.kernel, *self.window[:3])
        shapes = (
            (self.batch, self.cin, *self.spatial),
            (self.cout, self.cin // self.groups, *self.kernel),
            (self.batch, self.cout, *out),
        )
        x, w, dy = (rng.integers(-4, 5, shape).astype(np.float64) for shape in shapes)
        return x, w, dy


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a tiny convolution of any form that has an output."""
    dims = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(dims))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(dims))
    padding = tuple((draw(st.integers(-1, 3)), draw(st.integers(-1, 3))) for _ in range(dims))
    spatial = []
    for k, d, (before, after) in zip(kernel, dilation, padding, strict=True):
        least = max(1, d * (k - 1) + 1 - before - after)
        spatial.append(draw(st.integers(least, least + 3)))
    return Case(
        batch=draw(st.integers(1, 2)),
        cin=groups * draw(st.integers(1, 2)),
        cout=groups * draw(st.integers(1, 2)),
        groups=groups,
        spatial=tuple(spatial),
        kernel=kernel,
        stride=tuple(draw(st.integers(1, 4)) for _ in range(dims)),
        padding=padding,
        dilation=dilation,
    )


def brute_force(case: Case) -> tuple[Array, Array, Array]:
    """Return y, dx and dw by visiting every product there is."""
    x, w, dy = case.arrays()
    y, dx, dw = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(w)
    cg, og = w.shape[1], case.cout // case.groups
    for n, q, c in product(range(case.batch), range(case.cout), range(cg)):
        channel = q // og * cg + c
        for o, k in product(np.ndindex(dy.shape[2:]), np.ndindex(w.shape[2:])):
            place = [
                oo * s - before + kk * d
                for oo, kk, s, (before, _), d in zip(
                    o, k, case.stride, case.padding, case.dilation, strict=True
                )
            ]
            if all(0 <= i < size for i, size in zip(place, case.spatial, strict=True)):
                at_x, at_w, at_y = (n, channel, *place), (q, c, *k), (n, q, *o)
                y[at_y] += x[at_x] * w[at_w]
                dx[at_x] += dy[at_y] * w[at_w]
                dw[at_w] += dy[at_y] * x[at_x]
    return y, dx, dw


@examples(60)
@given(cases())
def test_against_brute_force(case: Case) -> None:
    x, w, dy = case.arrays()
    y, dx, dw = brute_force(case)
    np.testing.assert_array_equal(conv_forward(x, w, *case.window), y)
    np.testing.assert_array_equal(conv_input_grad(dy, w, x.shape, *case.window), dx)
    np.testing.assert_array_equal(conv_filter_grad(x, dy, case.kernel, *case.window), dw)


def image(rows: list[list[int]]) -> Array:
    """Return a one-image, one-channel array."""
    return np.array([[rows]], np.float64)


@pytest.mark.parametrize(("batch", "cin"), [(0, 3), (2, 0)])
def test_empty_tensors_give_zeros(batch: int, cin: int) -> None:
    x, w, dy = np.zeros((batch, cin, 5)), np.zeros((2, cin, 3)), np.ones((batch, 2, 3))
    window = ((1,), ((0, 0),), (1,), 1)
    assert conv_input_grad(dy, w, x.shape, *window).shape == x.shape
    dw = conv_filter_grad(x, dy, (3,), *window)
    assert dw.shape == w.shape
    assert not dw.any()
    assert conv_bias_grad(dy).tolist() == [batch * 3] * 2


def test_narrow_inputs_are_computed_in_float64() -> None:
    x = np.full((1, 1, 300), 300, ml_dtypes.bfloat16)
    dw = conv_filter_grad(x, x, (1,), (1,), ((0, 0),), (1,), 1)
    assert dw.dtype == np.float64
    assert dw.tolist() == [[[300.0 * float(x[0, 0, 0]) ** 2]]]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_against_torch(dims: int, groups: int) -> None:
    torch = pytest.importorskip("torch")
    case = Case(
        batch=2,
        cin=4,
        cout=6,
        groups=groups,
        spatial=(7, 6, 5)[:dims],
        kernel=(3, 2, 3)[:dims],
        stride=(2, 1, 3)[:dims],
        padding=((1, 1), (0, 0), (2, 2))[:dims],
        dilation=(2, 1, 1)[:dims],
    )
    x, w, dy = case.arrays()
    dx, dw, db = torch.ops.aten.convolution_backward(
        *(torch.from_numpy(a) for a in (dy, x, w)),
        [case.cout],
        case.stride,
        [before for before, _ in case.padding],
        case.dilation,
        False,
        [0] * dims,
        groups,
        [True, True, True],
    )
    np.testing.assert_array_equal(conv_input_grad(dy, w, x.shape, *case.window), dx.numpy())
    np.testing.assert_array_equal(conv_filter_grad(x, dy, case.kernel, *case.window), dw.numpy())
    np.testing.assert_array_equal(conv_bias_grad(dy), db.numpy())


def test_relative_error() -> None:
    want = np.array([[3.0, 0.0], [0.0, 4.0]])
    assert relative_error(want, want) == 0
    assert relative_error(want + np.array([[0, 0.3], [0.4, 0]]), want) == pytest.approx(0.1)
    assert relative_error(want.astype(ml_dtypes.bfloat16), want) == 0
    assert relative_error(np.zeros(2), np.zeros(2)) == 0
    assert relative_error(np.ones(2), np.zeros(2)) == float("inf")
    assert np.isnan(relative_error([float("nan")], [1.0]))
    unlike = np.array([np.inf, -np.inf, np.nan, 4.0])
    assert relative_error(unlike, unlike) == 0
    assert np.isnan(relative_error(unlike[:2], unlike[1::-1]))
    assert np.isnan(relative_error(unlike, [np.inf, -np.inf, np.inf, 4.0]))
    with pytest.raises(ArgumentError, match=r"shapes differ, \(2,\) and \(3,\)"):
        relative_error(np.ones(2), np.ones(3))


X, W, DY = np.zeros((1, 4, 5, 5)), np.zeros((6, 4, 3, 3)), np.zeros((1, 6, 3, 3))
PLAIN = ((1, 1), ((0, 0), (0, 0)), (1, 1))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (conv_input_grad, (DY[:, :, :2], W, X.shape, *PLAIN, 1)),
        (conv_filter_grad, (X, DY[..., :2], (3, 3), *PLAIN, 1)),
        (conv_forward, (X, W, *PLAIN, 2)),
        (conv_forward, (X[..., 0], W, *PLAIN, 1)),
        (conv_filter_grad, (X, DY, (3, 3), *PLAIN, 4)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(function: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"reshape|matmul|zip"):
        function(*arguments)
