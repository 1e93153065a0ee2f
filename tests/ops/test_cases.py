"""Published shapes - other people's tests and networks - on the simulated chips.

``tests/data/cases.csv`` has one shape per row with its source; ``tests/data/refused.csv`` says
which rows the documentation of every product refuses, and why. Every row small enough to compute is
run and compared with float64; a refused row is run with rules="hardware".
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim.base.dtypes import BF16, FP16, FP32, DType
from npusim.base.errors import NpusimError, RuleError
from npusim.ops import CARDS, convolution_backward
from tools.campaigns.random_calls import Drawn

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


def run(case: Any, operator: str, dtype: str) -> list[str]:
    """What is wrong on the first product that permits the row, beginning with another on each line.

    A row on the list of the refused must be refused, for the listed parameter, by all of them;
    it runs with rules="hardware" then, or the chip cannot do it either.
    """
    devices = devices_for(operator, dtype, len(case.layer.spatial))
    turn = case.line % len(devices)
    refusals: list[RuleError] = []
    parameter, hardware = refused().get((case.line, operator, dtype), ("", ""))
    for device in (*devices[turn:], *devices[:turn]):
        try:
            wrong = drawn(case, operator, dtype, device).run()
        except RuleError as error:
            refusals.append(error)
            continue
        assert not parameter, f"{device} permits a row listed as refused"
        return wrong
    assert {error.parameter for error in refusals} == {parameter}, refusals[-1]
    if hardware == "runs":
        return drawn(case, operator, dtype, devices[-1], rules="hardware").run()
    with pytest.raises(NpusimError):
        drawn(case, operator, dtype, devices[-1], rules="hardware").run()
    return []


def drawn(case: Any, operator: str, dtype: str, device: str, **keywords: Any) -> Drawn:
    """The row as a call of an operator, in the words of the command line."""
    layer = case.layer.expressible()[0] if operator == "convolution_backward" else case.layer
    mask = next((m for word, m in MASKS.items() if case.op.endswith(word)), (True, True, True))
    stated = {
        "batch": layer.n, "cin": layer.cin, "cout": layer.cout, "channels": layer.cin,
        "size": layer.spatial, "kernel": layer.kernel, "stride": layer.stride,
        "padding": layer.pads, "dilation": layer.dilation, "groups": layer.groups,
        "transposed": layer.transposed or None, "mask": mask,
        "output_padding": layer.output_padding if layer.transposed else None,
        "cube_math_type": int(dtype == "float32(hf32)"),
    }  # fmt: skip
    known = {option.name.replace("-", "_") for option in CARDS[operator].options}
    return Drawn(
        operator=operator,
        options={name: value for name, value in stated.items() if name in known},
        dtype=KINDS[dtype],
        device=device,
        keywords=keywords,
        seed=case.line,
    )


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


def assert_zeros(layer: Any, kind: DType) -> None:
    """No images or no channels: a command has no words for that, and the library gives zeros."""
    dy, x, w = layer.operands((kind,) * 3)
    result = convolution_backward(dy, x, w, **layer.arguments, device="ascend910b2")
    wanted = (np.zeros(shape, kind.numpy) for shape in (x.shape, w.shape, (layer.cout,)))
    for found, zeros in zip(result.outputs or (), wanted, strict=True):
        np.testing.assert_array_equal(found, zeros, strict=True)


def check(case: Any, dtype: str) -> None:
    """Compute one row in one type and compare it with the float64 opinion of its operator."""
    if 0 in case.layer.shapes[1]:
        assert_zeros(case.layer.expressible()[0], KINDS[dtype])
        return
    own = {"DeconvGradFilter": "deconv_grad_filter", "aclnnIm2colBackward": "im2col_backward"}
    operator = own.get(case.op, "convolution_backward")
    compiled = case.op in ("conv2d_backprop_filter", "conv3d_backprop_input")
    if compiled and dtype == "float16" and (case.op[4] == "2" or case.layer.dilation[0] == 1):
        operator = case.op
    assert run(case, operator, dtype) == []
    if (case.line, case.op, dtype) in refused():  # by a tensor compiler: the general call has it
        assert run(case, "convolution_backward", dtype) == []


def test_sampled_cases(sampled_case: Any) -> None:
    case, dtype = sampled_case
    check(case, dtype)


@pytest.mark.slow
def test_every_case(case: Any) -> None:
    row, dtype = case
    check(row, dtype)


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
