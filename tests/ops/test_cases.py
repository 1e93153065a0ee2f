"""Published shapes - other people's tests and networks - on the simulated chips.

``tests/data/cases.csv`` has one shape per row with its source; ``tests/data/refused.csv`` says
which rows the documentation of every product refuses, and why. Every row small enough to compute is
run and compared with float64; a refused row is run with rules="hardware".
"""

from __future__ import annotations

import csv
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim.base.dtypes import BF16, FP16, FP32
from npusim.base.errors import NpusimError, RuleError
from npusim.base.rounding import round_hf32
from npusim.layout import fracz_grouped_to_oihw, from_6hd, to_5hd, to_6hd, to_fracz_3d
from npusim.layout.groups import group_dict, group_plan
from npusim.ops import conv2d_backprop_filter, conv3d_backprop_input, deconv_grad_filter
from npusim.ops.convolution_backward import convolution_backward
from npusim.ops.windows import im2col_backward
from npusim.results import Result
from npusim.shapes.reference import conv_filter_grad

Array = np.ndarray[Any, Any]
REFUSED = Path(__file__).parents[1] / "data" / "refused.csv"
KINDS = {"float16": FP16, "float32": FP32, "bfloat16": BF16, "float32(hf32)": FP32}
MASKS = {"filter": (False, True, False), "input": (True, False, False)}


@cache
def refused() -> dict[tuple[int, str, str], tuple[str, str]]:
    """(line of the table, operator, type) -> (parameter refused, what the chip does)."""
    with REFUSED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    keys = [(int(r["line"]), r["operator"], r["dtype"]) for r in rows]
    return dict(zip(keys, [(r["parameter"], r["hardware"]) for r in rows], strict=True))


def run(case: Any, operator: str, dtype: str, call: Any) -> Result | None:
    """The result on the first product that permits the row, beginning with another on each line.

    A row on the list of the refused must be refused, for the listed parameter, by all of them;
    it runs with rules="hardware" then, or (None) the chip cannot do it either.
    """
    devices = devices_for(operator, dtype, len(case.layer.spatial))
    turn = case.line % len(devices)
    refusals: list[RuleError] = []
    parameter, hardware = refused().get((case.line, operator, dtype), ("", ""))
    for device in (*devices[turn:], *devices[:turn]):
        try:
            result: Result = call(device=device, timeline=False)
        except RuleError as error:
            refusals.append(error)
            continue
        assert not parameter, f"{device} permits a row listed as refused"
        return result
    assert {error.parameter for error in refusals} == {parameter}, refusals[-1]
    if hardware == "runs":
        return call(device=devices[-1], timeline=False, rules="hardware")  # type: ignore[no-any-return]
    with pytest.raises(NpusimError):
        call(device=devices[-1], timeline=False, rules="hardware")
    return None


def devices_for(operator: str, dtype: str, dims: int) -> tuple[str, ...]:
    """Chips that have the operator and compute in ``dtype``."""
    if operator == "deconv_grad_filter":
        return ("ft78ne", "mt7004")
    if operator == "im2col_backward":
        return ("ascend910", "ascend910b2")
    if operator != "convolution_backward":
        return ("ascend310", "ascend910")
    if dtype == "float32(hf32)":
        return ("ascend910b2",)
    if dtype == "float16" and dims < 3:
        return ("ascend910", "ascend310p", "ascend950pr", "ascend910b2")
    return ("ascend910c", "ascend950pr", "ascend910b2")


def check(case: Any, dtype: str, close: Any) -> None:
    """Compute one row in one type and compare it."""
    if case.op == "DeconvGradFilter":
        check_deconv(case, dtype, close)
    elif case.op == "aclnnIm2colBackward":
        check_im2col(case, dtype)
    elif case.op == "conv2d_backprop_filter" and dtype == "float16":
        check_tbe_filter(case, dtype, close)
    elif case.op == "conv3d_backprop_input" and dtype == "float16" and case.layer.dilation[0] == 1:
        check_tbe_input(case, dtype, close)
    else:
        check_backward(case, dtype, close)
    if (case.line, case.op, dtype) in refused():  # by a tensor compiler: the general call has it
        check_backward(case, dtype, close)


def check_backward(case: Any, dtype: str, close: Any) -> None:
    layer, kind = case.layer, KINDS[dtype]
    mask = next((m for word, m in MASKS.items() if case.op.endswith(word)), (True, True, True))
    dy, x, w = layer.operands((kind, kind, kind), case.line)
    even, inside = layer.expressible()
    grown = np.zeros(even.shapes[1], x.dtype)
    grown[inside] = x
    hf32 = dtype == "float32(hf32)"
    r: Any = run(case, "convolution_backward", dtype, lambda **options: convolution_backward(
        dy, grown, w, **even.arguments, output_mask=mask, cube_math_type=1 if hf32 else 0,
        **options,
    ))  # fmt: skip
    if r is None:
        return
    seen = [round_hf32(a, 11) if hf32 else a for a in (dy, x, w)]
    wanted = (*layer.reference(*seen), layer.bias_reference(dy))
    for name, on, want in zip(r.output_names, mask, wanted, strict=True):
        got = getattr(r, name)
        if not on:
            assert got is None
            continue
        close(name, got[inside] if name == "grad_input" else got, want, (kind,), kind)


def check_tbe_filter(case: Any, dtype: str, close: Any) -> None:
    layer = case.layer
    dy, x, _ = layer.operands((FP16, FP16, FP16), case.line)
    _, _, (cout, cg, kh, kw) = layer.shapes
    para = {
        "strides": list(layer.stride),
        "padding": [p for pair in layer.pads for p in pair],
        "dilations": [1, 1, *layer.dilation],
        "groups": layer.groups,
    }
    r: Any = run(case, case.op, dtype, lambda **options: conv2d_backprop_filter(
        to_5hd(x, 16), to_5hd(dy, 16), [cout, cg, kh, kw], para,
        **options,
    ))  # fmt: skip
    if r is None:
        return
    got = fracz_grouped_to_oihw(r.outputs[0], cout, cg, (kh, kw), layer.groups, 16)
    close("dw", got, layer.reference(dy, x, np.zeros(layer.shapes[2]))[1], (), FP32)


def check_tbe_input(case: Any, dtype: str, close: Any) -> None:
    layer = case.layer
    dy, x, w = layer.operands((FP16, FP16, FP16), case.line)
    para = {
        "strides": [1, *layer.stride, 1],
        "pads": [p for pair in layer.pads for p in pair],
        "dilations": [1, *layer.dilation, 1],
        "res_dtype": "float16",
        "group_dict": group_dict(group_plan(layer.cin, layer.cout, layer.groups, 16)),
    }
    r: Any = run(case, case.op, dtype, lambda **options: conv3d_backprop_input(
        to_fracz_3d(w, layer.groups, 16), to_6hd(dy, 16), list(layer.shapes[2]),
        [layer.n, *layer.spatial, layer.cin], para,
        **options,
    ))  # fmt: skip
    if r is None:
        return
    got = r.outputs[0]
    blocks = got.shape[2]
    assert got.shape == (layer.n, layer.spatial[0], blocks, prod(layer.spatial[1:]), 16)
    whole = from_6hd(
        got.reshape(layer.n, layer.spatial[0], blocks, *layer.spatial[1:], 16), layer.cin
    )
    close("dx", whole, layer.reference(dy, x, w)[0], (FP16,), FP16)


def check_deconv(case: Any, dtype: str, close: Any) -> None:
    s, kind = case.layer, KINDS[dtype]
    (_, _, *out), _, _ = s.shapes
    rng = np.random.default_rng(case.line)
    dy = rng.standard_normal((s.n, s.cout, *out)).astype(kind.numpy)
    x = rng.standard_normal((s.n, s.cin, *s.spatial)).astype(kind.numpy)
    before = [p for p, _ in s.pads]
    param = [s.n, *s.spatial, s.cin, s.n, *out, s.cout, *s.kernel, *s.stride, *before, *s.dilation,
             s.groups, 0, 0, 0]  # fmt: skip
    r: Any = run(case, "deconv_grad_filter", dtype, lambda **options: deconv_grad_filter(
        dy.transpose(0, 2, 3, 1), x.transpose(0, 2, 3, 1), param, core_mask=0b1111, **options,
    ))  # fmt: skip
    if r is None:
        return
    # As a plain convolution dy is the input; it ends where param says, zeros behind.
    ends = [(i - 1) * t - p + d * (k - 1) + 1 for i, t, p, d, k in zip(
        s.spatial, s.stride, before, s.dilation, s.kernel, strict=True)]  # fmt: skip
    image = np.zeros((s.n, s.cout, *(max(a, b) for a, b in zip(ends, out, strict=True))))
    image[:, :, : out[0], : out[1]] = dy
    image = image[:, :, : ends[0], : ends[1]]
    pads = [(p, 0) for p in before]
    want = conv_filter_grad(image, x, s.kernel, s.stride, pads, s.dilation, s.groups)
    icg, ocg = s.cin // s.groups, s.cout // s.groups
    want = want.reshape(s.groups, icg, ocg, *s.kernel).transpose(0, 2, 3, 4, 1)
    close("dw", r.outputs[0], want.reshape(s.groups, ocg * prod(s.kernel), icg), (), kind)


def check_im2col(case: Any, dtype: str) -> None:
    s, kind = case.layer, KINDS[dtype]
    lh, lw = s.out
    rng = np.random.default_rng(case.line)
    shape = (s.n, s.cin, *s.kernel, lh, lw)
    grad = rng.standard_normal(shape).astype(kind.numpy)
    pads = [p for p, _ in s.pads]
    r: Any = run(case, "im2col_backward", dtype, lambda **options: im2col_backward(
        grad.reshape(s.n, s.cin * prod(s.kernel), lh * lw), s.spatial, s.kernel, s.dilation, pads,
        s.stride, **options,
    ))  # fmt: skip
    if r is None:
        return
    h, w = (x + 2 * p for x, p in zip(s.spatial, pads, strict=True))
    image = np.zeros((s.n, s.cin, h, w), kind.numpy)  # sums are made in the tensor's own type
    for kh, kw in np.ndindex(*s.kernel):
        top, left = kh * s.dilation[0], kw * s.dilation[1]
        rows = slice(top, top + (lh - 1) * s.stride[0] + 1, s.stride[0])
        columns = slice(left, left + (lw - 1) * s.stride[1] + 1, s.stride[1])
        image[:, :, rows, columns] += grad[:, :, kh, kw]
    want = image[:, :, pads[0] : h - pads[0], pads[1] : w - pads[1]]
    np.testing.assert_array_equal(r.outputs[0], want)


def test_sampled_cases(sampled_case: Any, close: Any) -> None:
    case, dtype = sampled_case
    check(case, dtype, close)


@pytest.mark.slow
def test_every_case(case: Any, close: Any) -> None:
    row, dtype = case
    check(row, dtype, close)


def test_the_table_agrees_with_itself(cases: list[Any]) -> None:
    assert len(cases) == 882
    assert sum(case.runs for case in cases) == 526
    for case in cases:
        s = case.layer
        assert min(s.out) >= 1, case
        assert s.cin % s.groups == 0, case
        assert s.cout % s.groups == 0, case
        assert case.source, case
        if s.transposed and case.op != "DeconvGradFilter":
            rows = zip(s.output_padding, s.stride, s.dilation, strict=True)
            assert all(0 <= extra < max(step, reach) for extra, step, reach in rows), case


def test_the_refused_are_rows_of_the_table(cases: list[Any]) -> None:
    known = {case.line: case for case in cases}
    for line, operator, dtype in refused():
        assert dtype in known[line].dtypes
        assert known[line].runs
        assert operator in {known[line].op, "convolution_backward"}
