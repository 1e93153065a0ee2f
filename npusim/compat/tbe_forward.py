"""Forward convolutions of the tensor compiler, which have the limits of their filter gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npusim.base.dtypes import FP16, FP32, DType, dtype
from npusim.base.errors import RuleError
from npusim.base.records import replace
from npusim.call.spec import Operand
from npusim.compat.tbe_calls import (
    TABLE_DEVICE,
    bias_of,
    flat_map,
    kernel_name_of,
    lazy_tensor,
    require_placeholders,
    settings_of,
)
from npusim.compat.tbe_tvm import Lazy, Placeholder
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.machine.device.catalog import load_device
from npusim.ops import CARDS
from npusim.ops.blocked import blocked_problem
from npusim.ops.blocked_gradients import Named, blocked_product
from npusim.ops.compiled import FORMS, stated
from npusim.ops.conv_forward import CARD
from npusim.problem.convolution import Convolution
from npusim.problem.limits.facts import type_name
from npusim.problem.limits.forms import layer_of
from npusim.results import Result


def forward(
    function: str,
    inputs: Mapping[str, Placeholder],
    filter_sizes: Sequence[int],
    para_dict: Mapping[str, Any],
) -> Lazy:
    """The output of a convolution, once its layer has passed the limits of its filter gradient.

    ``inputs`` are the map and the filter by their names in the call.
    """
    require_placeholders(function, inputs)
    (x_name, x), (w_name, w) = inputs.items()
    settings = settings_of(para_dict)
    bias = settings.pop("tensor_bias", None)
    name = kernel_name_of(settings, function)
    result = _result_dtype(function, settings.pop("res_dtype", "float16"))
    c = _checked_layer(function, x_name, x, filter_sizes, settings)
    if w.shape != c.fractals or type_name(w.dtype) != FP16.name:
        raise RuleError(
            f"{function}: {w_name} is {w.dtype} of shape {w.shape}; it must be float16 of "
            f"{c.fractals}, as {x_name} and the sizes of the filter give it",
            parameter=f"{w_name}.shape",
        )
    checked_bias = bias_of(function, bias, c.cout, result)

    def run(x: Operand, w: Operand, bias: Operand | None, **options: Any) -> Result:
        return blocked_convolution(x, w, c, result, bias, **options)

    return lazy_tensor(name, flat_map(c, c.cout1, c.out), result, (x, w), checked_bias, run)


def _result_dtype(function: str, name: Any) -> DType:
    """The dtype of a forward pass's result."""
    if type_name(name) not in (FP16.name, FP32.name):
        raise RuleError(
            f"{function}: res_dtype is {name!r}; it must be float16 or float32",
            parameter="res_dtype",
        )
    return dtype(name)


def _checked_layer(
    function: str, x_name: str, x: Placeholder, filter_sizes: Any, settings: Mapping[str, Any]
) -> Convolution:
    """The layer of a forward pass; ``RuleError`` where its filter gradient would be refused."""
    sister = f"{function}_backprop_filter"
    facts = _facts(function, sister, x, filter_sizes, settings)
    try:
        CARDS[sister].check(facts, load_device(TABLE_DEVICE))
    except RuleError as error:
        if error.parameter.startswith("out_backprop"):  # which a forward pass has not
            return layer_of(facts)
        text = f"{function} has the limits of {sister}: {error}"
        raise RuleError(text, parameter=error.parameter) from None
    return layer_of(facts)


def _facts(
    function: str, sister: str, x: Placeholder, filter_sizes: Any, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The facts of the filter gradient whose ``out_backprop`` is as large as the output."""
    dims = 2 if function == "conv2d" else 3
    unknown = Placeholder((*(1,) * (dims + 2), 16), "float16", "output")
    para_dict = {**settings, "res_dtype": "float32"}
    facts = stated(FORMS[sister], x, unknown, (filter_sizes,), para_dict)
    try:
        c = layer_of(facts)
        facts["out_backprop.shape"] = (c.n, *c.out[:-2], c.cout1, *c.out[-2:], c.c0)
    except (TypeError, ValueError, ZeroDivisionError):
        pass  # sizes that do not fit each other, which the limits say before they read the output
    return facts


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
    y = blocked_product(
        call,
        ConvForward,
        c,
        source=Named("input", x),
        weights=Named("weight", w),
        bias=None if bias is None else Named("bias", bias),
        result_name="output",
        result=result,
    )
    call.runs = [replace(run, computes="output" if run.computes else "") for run in call.runs]
    problem, sizes = blocked_problem("y", c, result), c.channel_blocks(16)
    return call.result({"output": call.arrays.get(y.name)}, problem, FP16, sizes=sizes)
