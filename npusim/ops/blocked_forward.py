"""A convolution's forward pass on the tensor compiler's blocked layouts, without conversions."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from npusim.base.dtypes import FP16, DType
from npusim.call.spec import Operand
from npusim.kernels.bias_add import BiasAdd
from npusim.kernels.conv_forward import ConvForward
from npusim.ops.blocked import blocked_problem
from npusim.ops.convolution import CARD
from npusim.ops.gradients import launch_product, require_time
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
    whole = c.lifted()
    depth, *plane = whole.out
    blocks, pixels = c.cout1, prod(plane)
    out = call.output("output", (c.n, depth, blocks, *plane, 16), result)
    height, width = whole.spatial[1:]
    source = call.input("input", x, FP16, (c.n, whole.spatial[0], c.cin1, height, width, 16))
    weights = call.input("weight", w, FP16)
    require_time(call, whole, 1, FP16)
    launch_product(call, ConvForward, whole, source, weights, out)
    call.runs = [replace(run, computes="output" if run.computes else "") for run in call.runs]
    if bias is not None:
        flat = call.view(out, (c.n, depth, blocks, pixels, 16))
        added = call.input("bias", bias, result)
        call.launch_spread(BiasAdd(flat, added, saturate=call.device.saturates))
    array = call.arrays.get("output")
    shape = (c.n, *((depth,) if c.dims == 3 else ()), blocks, pixels, 16)
    outputs = {"output": None if array is None else array.reshape(shape)}
    problem, sizes = blocked_problem("y", c, result), c.channel_blocks(16)
    return call.result(outputs, problem, FP16, sizes=sizes)
