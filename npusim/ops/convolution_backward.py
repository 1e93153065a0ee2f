"""convolution_backward: gradients of input, weight and bias on framework layouts, 1-D to 3-D."""

from __future__ import annotations

from typing import Any

from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Array, Spec
from npusim.dtypes import FP32, DType
from npusim.errors import ArgumentError
from npusim.isa.operands import Tensor
from npusim.limits.table import check
from npusim.ops.conv_launch import Launcher
from npusim.ops.conv_problem import Problem, make_problem
from npusim.ops.cube_math import cube_math, cube_math_number, promote
from npusim.results import Result

_NAMES = ("grad_input", "grad_weight", "grad_bias")


def convolution_backward(
    grad_output: Array | Spec,
    input: Array | Spec,
    weight: Array | Spec,
    bias_sizes: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    transposed: bool = False,
    output_padding: Any = 0,
    groups: int = 1,
    output_mask: tuple[bool, bool, bool] = (True, True, True),
    cube_math_type: int | str = "keep_dtype",
    **options: Any,
) -> Result:
    """Gradients of a convolution (or transposed convolution) of 1 to 3 spatial dimensions.

    Arrays are NCL, NCHW or NCDHW in fp16, bf16 or fp32 (or ``npusim.spec``s: timing only);
    ``weight`` is (Cout, Cin / groups, ...), transposed (Cin, Cout / groups, ...). ``padding`` is
    one number, one per dimension, or in 2-D [up, down, left, right]. ``output_mask`` says which
    gradients are wanted; the others are None and their kernels are not launched.

    The call launches what the chip's library launches: conversions to blocked layouts, clearing
    of accumulated results, the kernels, casts, conversions back (``r.kernels``);
    ``r.workspace_bytes`` is the memory between them. gradInput has the wider type of input and
    gradOutput, gradWeight that of weight and gradOutput, gradBias that of gradOutput.

    Keywords are those of ``npusim.call.Options`` (``rules`` "documented" or "hardware");
    raises ``RuleError`` where the product's documentation refuses the call and
    ``ArgumentError`` where arguments do not fit each other.
    """
    wanted = Options.of(convolution_backward, options)
    problem = make_problem(
        grad_output, input, weight, stride, padding, dilation, output_padding, transposed, groups
    )
    mask = _mask(output_mask)
    number = cube_math_number(cube_math_type)
    call = Call("convolution_backward", wanted, problem.timing_only)
    call.notes += check(
        "convolution_backward",
        rule_facts(problem, mask, number, bias_sizes),
        call.device,
        wanted.rules,
    )
    promoted = promote(problem.kinds)
    if problem.empty:
        return call.result(_empty(call, problem, mask), problem.describe(), promoted)
    math = cube_math(promoted, number, call.device)
    launcher = Launcher(call, problem, math)
    outputs: dict[str, Array | None] = {}
    steps = (launcher.input_grad, launcher.weight_grad, launcher.bias_grad)
    for name, on, step in zip(_NAMES, mask, steps, strict=True):
        tensor = step() if on else None
        outputs[name] = call.arrays.get(tensor.name) if tensor is not None else None
    shapes = (problem.input.shape, problem.weight.shape, (problem.grad_output.shape[1],))
    for name, shape in zip(_NAMES, shapes, strict=True):
        array = outputs[name]
        outputs[name] = array.reshape(shape) if array is not None else None
    name = "HF32" if math.hf32 else math.dtype.name
    computed = "" if name == promoted.name else f", computed in {name}"
    rate = "hf32" if math.hf32 else ""
    return call.result(outputs, problem.describe() + computed, math.dtype, rate)


def rule_facts(
    p: Problem, mask: tuple[bool, bool, bool], number: int, bias_sizes: Any
) -> dict[str, Any]:
    """What the product's constraint table is checked against."""
    skip = 3 - p.dims
    pads = p.padding[skip:]
    even = all(before == after for before, after in pads)
    return {
        "dims": p.dims,
        "transposed": p.transposed,
        "grad_output.dtype": p.kinds[0].name,
        "input.dtype": p.kinds[1].name,
        "weight.dtype": p.kinds[2].name,
        "grad_output.shape": tuple(p.grad_output.shape),
        "input.shape": tuple(p.input.shape),
        "weight.shape": tuple(p.weight.shape),
        "stride": p.stride[skip:],
        "padding": tuple(n for pair in pads for n in (pair[:1] if even else pair)),
        "dilation": p.dilation[skip:],
        "output_padding": p.output_padding[skip:],
        "groups": p.groups,
        "output_mask": mask,
        "cube_math_type": number,
        "bias_sizes": bias_sizes,
    }


def _mask(value: Any) -> tuple[bool, bool, bool]:
    values = tuple(bool(v) for v in value)
    if len(values) != 3:
        raise ArgumentError(
            f"output_mask is {value!r}; it must be 3 booleans: grad_input, grad_weight, grad_bias"
        )
    return values[0], values[1], values[2]


def _empty(call: Call, p: Problem, mask: tuple[bool, bool, bool]) -> dict[str, Array | None]:
    """Results of an empty batch or channel: no elements, or zeros that are cleared."""
    shapes = (p.input.shape, p.weight.shape, (p.grad_output.shape[1],))
    outputs: dict[str, Array | None] = {}
    for name, on, shape, kind in zip(_NAMES, mask, shapes, output_types(p), strict=True):
        outputs[name] = None
        if on:
            tensor: Tensor = call.output(name, tuple(shape), kind)
            if tensor.size_bytes:
                call.clear(tensor)
            outputs[name] = call.arrays.get(name)
    return outputs


def output_types(p: Problem) -> tuple[DType, DType, DType]:
    """Documented types of the three gradients."""
    dy, x, w = p.kinds

    def wider(a: DType, b: DType) -> DType:
        return a if a is b else FP32

    return wider(x, dy), wider(w, dy), dy
