"""The table of operators and devices: each cell is found by running a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

import npusim
from npusim import layout as lay
from npusim.dtypes import dtype
from npusim.errors import ArgumentError, RuleError
from npusim.limits.table import documented_operators, load_rules
from npusim.reference import (
    conv_bias_grad,
    conv_filter_grad,
    conv_forward,
    conv_input_grad,
    relative_error,
)
from npusim.torch.log import TOLERANCES


class Case(NamedTuple):
    """One row of the table of operators: what it needs and how it is computed on a device.

    ``run`` takes a device and an engine as keywords and returns pairs (result, float64 result);
    ``limit`` is the largest relative error.
    A product that refuses the row by its documentation does so for ``parameter``, and lacks
    ``word``.
    """

    role: str
    word: str
    parameter: str
    limit: float
    run: Callable[..., Iterable[tuple[Any, Any]]]


def random(shape: tuple[int, ...], kind: str) -> Any:
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return values.astype(dtype(kind).numpy)


def first(r: npusim.Result) -> Any:
    return (r.outputs or ())[0]


def layer(kind: str, dims: int) -> tuple[Any, Any, Any, tuple[Any, ...]]:
    """dy, x and w of a 16 -> 32 channel layer, kernel 3, and the reference's geometry."""
    sizes = (3, 5, 6)[3 - dims :]
    x, dy = random((2, 16, *sizes), kind), random((2, 32, *sizes), kind)
    w = random((32, 16, *(3,) * dims), kind)
    return dy, x, w, ((1,) * dims, ((1, 1),) * dims, (1,) * dims, 1)


def convolution(kind: str, dims: tuple[int, ...], math: int) -> Callable[..., Any]:
    """convolution_backward, plain and transposed, for each number of dimensions."""

    def run(**call: Any) -> Iterable[tuple[Any, Any]]:
        for d in dims:
            dy, x, w, how = layer(kind, d)
            options: dict[str, Any] = {"cube_math_type": math, "padding": 1} | call
            back = npusim.ops.convolution_backward
            r = back(dy, x, w, (32,), **options)
            yield r.grad_input, conv_input_grad(dy, w, x.shape, *how)
            yield r.grad_weight, conv_filter_grad(x, dy, w.shape[2:], *how)
            yield r.grad_bias, conv_bias_grad(dy)
            r = back(x, dy, w, (16,), transposed=True, **options)
            yield r.grad_input, conv_forward(x, w, *how)
            yield r.grad_weight, conv_filter_grad(x, dy, w.shape[2:], *how)
            yield r.grad_bias, conv_bias_grad(x)

    return run


def tbe_filter(**call: Any) -> Iterable[tuple[Any, Any]]:
    dy, x, w, how = layer("fp16", 2)
    para = {"strides": [1, 1], "padding": [1] * 4, "dilations": [1] * 4}
    r = npusim.ops.conv2d_backprop_filter(
        lay.to_5hd(x, 16), lay.to_5hd(dy, 16), w.shape, para, **call
    )
    dw = lay.from_fracz(first(r).reshape(9, 2, 16, 16), w.shape, 1, 16)
    yield dw, conv_filter_grad(x, dy, (3, 3), *how)


def tbe_input(**call: Any) -> Iterable[tuple[Any, Any]]:
    dy, x, w, how = layer("fp16", 3)
    n, cin, *sizes = x.shape
    para = {"strides": [1] * 5, "pads": [1] * 6, "dilations": [1] * 5}
    groups = lay.group_dict(lay.group_plan(16, 32, 1, 16))
    r = npusim.ops.conv3d_backprop_input(
        lay.to_fracz_3d(w, 1, 16),
        lay.to_6hd(dy, 16),
        *(w.shape, [n, *sizes, cin], para | {"group_dict": groups}),
        **call,
    )
    dx = lay.from_6hd(first(r).reshape(n, sizes[0], 1, *sizes[1:], 16), cin)
    yield dx, conv_input_grad(dy, w, x.shape, *how)


def fold(**call: Any) -> Iterable[tuple[Any, Any]]:
    for kind in ("fp16", "fp32"):
        grad = random((2, 3 * 9, 5 * 6), kind)
        r = npusim.ops.im2col_backward(grad, (5, 6), (3, 3), (1, 1), (1, 1), (1, 1), **call)
        image = np.zeros((2, 3, 7, 8))
        patches = grad.reshape(2, 3, 3, 3, 5, 6)
        for kh, kw in np.ndindex(3, 3):
            image[:, :, kh : kh + 5, kw : kw + 6] += patches[:, :, kh, kw]
        yield first(r), image[:, :, 1:-1, 1:-1]


def dsp_filter(kind: str) -> Callable[..., Any]:
    def run(**call: Any) -> Iterable[tuple[Any, Any]]:
        # What a transposed layer maps x to has dy's size: dy is the plain convolution's input.
        x, dy, how = random((1, 4, 5, 6), kind), random((1, 8, 7, 8), kind), ((1, 1), ((0, 0),) * 2)
        param = [1, 5, 6, 4, 1, 7, 8, 8, 3, 3, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0]
        r = npusim.ops.deconv_grad_filter(lay.nchw_to_nhwc(dy), lay.nchw_to_nhwc(x), param, **call)
        want = conv_filter_grad(dy, x, (3, 3), *how, (1, 1), 1)  # (in_c, out_c, KH, KW)
        yield first(r), want.transpose(1, 2, 3, 0).reshape(1, 8 * 9, 4)

    return run


def product(**call: Any) -> Iterable[tuple[Any, Any]]:
    a, b = random((33, 20), "fp16"), random((20, 17), "fp16")
    yield first(npusim.ops.matmul(a, b, **call)), a.astype(float) @ b.astype(float)


SUMS = 1e-5  # relative error of fp32 sums of exact products

#: Rows of the table of operators.
CASES = {
    "conv2d_backprop_filter": Case("cube", "fp16", "", SUMS, tbe_filter),
    "conv3d_backprop_input": Case("cube", "fp16", "", TOLERANCES["fp16"], tbe_input),
    **{
        f"convolution_backward, {name}": Case(
            "cube", word, parameter, TOLERANCES[limit], convolution(kind, dims, math)
        )
        for name, word, parameter, limit, kind, dims, math in (
            ("1-D and 2-D", "fp16", "", "fp16", "fp16", (1, 2), 0),
            ("3-D", "3-D", "weight.shape", "fp16", "fp16", (3,), 0),
            ("bf16", "bf16", "grad_output.dtype", "bf16", "bf16", (2,), 0),
            ("fp32 kept", "fp32", "cube_math_type", "fp32", "fp32", (2,), 0),
            ("fp32 as HF32", "HF32", "cube_math_type", "hf32", "fp32", (2,), 3),
            ("fp32 as fp16", "fp16", "", "fp16", "fp32", (2,), 2),
        )
    },
    "im2col_backward, fp16 and fp32": Case("vector", "fp16", "", 2 * TOLERANCES["fp16"], fold),
    "deconv_grad_filter, fp32": Case("dsp", "fp32", "", SUMS, dsp_filter("fp32")),
    "deconv_grad_filter, fp16": Case(
        "dsp", "fp16", "dtype", TOLERANCES["fp16"], dsp_filter("fp16")
    ),
    "matmul, fp16": Case("cube", "fp16", "", SUMS, product),
}


def outcome(case: Case, operator: str, name: str, engine: str) -> str:
    """The cell of one row and device, found by running the case."""
    device = npusim.load_device(name)
    own = operator not in documented_operators() or not load_rules(device.product, operator).note
    try:
        for got, want in case.run(device=name, engine=engine):
            assert relative_error(got, want) <= case.limit
    except RuleError as error:
        word = case.word if error.parameter == case.parameter else error.parameter
        return f"no {word}{'' if own else '*'}"
    except ArgumentError:
        has_role = any(case.role in kind.roles for kind in device.cores.values())
        return f"no {case.word if has_role else case.role.replace('dsp', 'DSP')}"
    return "works" if own else "works*"


#: Column of the table -> its devices; the bins of a chip have the same limits.
COLUMNS = {
    "ascend910b[1-4]" if name == "ascend910b1" else name: name
    for name in npusim.devices()
    if name not in {"ascend910b2", "ascend910b3", "ascend910b4"}
}


def cell(row: str, device: str, engine: str = "fast") -> str:
    """What the table says about a row on a device."""
    return outcome(CASES[row], row.partition(",")[0], device, engine)


def operator_table() -> str:
    """The table as Markdown; takes a while, because it runs every call."""
    head = f"| operator | {' | '.join(COLUMNS)} |\n|{' --- |' * (len(COLUMNS) + 1)}\n"
    rows = []
    for row in CASES:
        name, comma, rest = row.partition(",")
        cells = " | ".join(cell(row, device) for device in COLUMNS.values())
        rows.append(f"| `{name}`{comma}{rest} | {cells} |\n")
    return head + "".join(rows)
