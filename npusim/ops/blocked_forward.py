"""A convolution's forward pass on the tensor compiler's blocked layouts, without conversions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from npusim.base.dtypes import FP16, DType
from npusim.call.spec import Operand
from npusim.kernels.conv_forward import ConvForward
from npusim.ops.blocked import blocked_problem
from npusim.ops.convolution import CARD
from npusim.ops.gradients import blocked_product
from npusim.results import Result
from npusim.shapes.convolution import Convolution


def blocked_convolution(
    x: Operand,
    w: Operand,
    c: Convolution,
    result: DType,
    bias: Operand | None = None,
    **options: Any,
) -> Result:
    """The output of ``c`` in fp16 or fp32, ``result``, from fp16 operands in blocked layouts.

    ``x`` is 5HD (N, C1, H, W, 16), in three dimensions 6HD (N, D, C1, H, W, 16), ``w`` FRACTAL_Z or
    FRACTAL_Z_3D; ``bias`` has one value of ``result`` per output channel, added after rounding. The
    result ``outputs[0]`` is (N, Co1, Ho * Wo, 16), in three dimensions (N, Do, Co1, Ho * Wo, 16).
    Keywords are those of ``npusim.call.Options``.
    """
    call = CARD.begin(options, input=x, weight=w, bias=bias)
    call.require_dtype(FP16)
    names = ("output", "input", "weight", "bias")
    made = blocked_product(call, ConvForward, c, names, (x, w, bias), result)
    call.runs = [replace(run, computes="output" if run.computes else "") for run in call.runs]
    problem, sizes = blocked_problem("y", c, result), c.channel_blocks(16)
    return call.result({"output": call.arrays.get(made.name)}, problem, FP16, sizes=sizes)
