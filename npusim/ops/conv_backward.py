"""convolution_backward: gradients of input, weight and bias on framework layouts, 1-D to 3-D."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any

from npusim.base.dtypes import BF16, FP16, FP32, dtype, promote
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.spec import Array, Operand, Spec
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.forward import ConvForward
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.kernels.matmul.matmul import Matmul
from npusim.kernels.matmul.matmul import Tiling as ProductTiling
from npusim.ops.arguments import flag, frozen, operand, per_dim, scalar
from npusim.ops.card import LIMITS, Card, Input, Output, Sample
from npusim.ops.conv_launch import ConvolutionLauncher
from npusim.ops.cube_math import cube_math, stated_cube_math
from npusim.ops.layer import Wanted, computed, sample_math, sample_type, stated_plain
from npusim.ops.options import (
    BATCH,
    CIN,
    COUT,
    CUBE_MATH_TYPE,
    DILATION,
    GROUPS,
    KERNEL,
    LAYER,
    OUTPUT_PADDING,
    PADDING,
    SIZE,
    STRIDE,
    TRANSPOSED,
    Option,
)
from npusim.problem.convolution import Convolution, sides_of, transposed_sizes
from npusim.problem.limits.facts import Facts, OperatorFacts, as_sizes, tensor_facts
from npusim.problem.reference import conv_bias_grad
from npusim.results import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from npusim.call.options import Keywords

#: The results, and the operands in the order of their arguments.
GRADIENTS = ("grad_input", "grad_weight", "grad_bias")
_OPERANDS = ("grad_output", "input", "weight")

#: Said where the sum of the gradient is not what the library gives.
_EMPTY_BIAS = (
    "grad_bias is zero, as the library returns for an input without elements; the sum of "
    "grad_output is not computed"
)

Tensors = tuple[Operand, Operand, Operand]


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
    output_mask: Sequence[bool] = (True, True, True),
    cube_math_type: int | str = "keep_dtype",
    **options: Unpack[Keywords],
) -> Result:
    """Gradients of a convolution (or transposed convolution) of 1 to 3 spatial dimensions.

    Arrays are NCL, NCHW or NCDHW in fp16, bf16 or fp32 (or ``npusim.spec``s: timing only);
    ``weight`` is (Cout, Cin / groups, ...), transposed (Cin, Cout / groups, ...). ``padding`` is
    one number, one per dimension, or in 2-D [up, down, left, right]. ``output_mask`` says which
    gradients are wanted; the others are None and their kernels are not launched.

    The call launches what the chip's library launches: conversions to blocked layouts, clearing
    of accumulated results, the kernels, casts, conversions back (``r.kernels``);
    ``r.workspace_bytes`` is the memory between them. Where the filter is the whole input, one
    product of matrices on views computes each of gradInput and gradWeight. gradInput has the wider
    type of input and gradOutput, gradWeight that of weight and gradOutput, gradBias that of
    gradOutput. Of an input without elements (N or Cin is 0) every gradient is zero, gradBias too,
    as the library has it.

    Keywords are those of ``npusim.call.Options``. Raises ``RuleError`` where arguments do not fit
    each other or the product's documentation refuses them, ``ArgumentError`` where the device
    cannot compute the call.
    """
    dy = operand(grad_output)
    x = operand(input)
    w = operand(weight)
    call = CARD.begin(options, grad_output=dy, input=x, weight=w)
    checked = facts(
        dy,
        x,
        w,
        bias_sizes=bias_sizes,
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=transposed,
        output_padding=output_padding,
        groups=groups,
        output_mask=output_mask,
        cube_math_type=cube_math_type,
    )
    call.check(checked)
    call.notes += _unread_bias_sizes(checked)
    call.notes += _unread_output_padding(checked)
    problem = _problem(checked)
    promoted = promote((dtype(dy.dtype), dtype(x.dtype), dtype(w.dtype)), FP32)
    mask = checked["output_mask"]
    if 0 in x.shape or 0 in w.shape:
        return call.result(_empty(call, (dy, x, w), mask), problem, promoted)
    math = cube_math(promoted, checked["cube_math_type"], call.device)
    c = convolution(checked)
    launcher = ConvolutionLauncher(call, c, {"grad_output": dy, "input": x, "weight": w}, math)
    launcher.require(mask)
    steps = (launcher.input_grad, launcher.weight_grad, launcher.bias_grad)
    outputs: dict[str, Array | None] = dict.fromkeys(GRADIENTS)
    for name, wanted, step, shape in zip(GRADIENTS, mask, steps, _shapes((dy, x, w)), strict=True):
        if wanted:
            array = call.arrays.get(step().name)
            outputs[name] = None if array is None else array.reshape(shape)
    return call.result(
        outputs,
        problem + math.remark(promoted),
        math.dtype,
        math.rate,
        launcher.needed(all_of="grad_output" if mask[2] else ""),
        launcher.sizes(c, sum(mask[:2])),
    )


# -- facts for the documented limits -----------------------------------------------------------


def facts(
    grad_output: Any,
    input: Any,
    weight: Any,
    *,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    output_padding: Any,
    groups: Any,
    output_mask: Any,
    cube_math_type: Any,
) -> dict[str, Any]:
    """The facts of a call; operands are anything with ``shape`` and ``dtype``."""
    dims = len(weight.shape) - 2
    mask = frozen(output_mask)
    if isinstance(mask, tuple):
        mask = tuple(flag("output_mask", wanted) for wanted in mask)
    return {
        **tensor_facts(grad_output=grad_output, input=input, weight=weight),
        "bias_sizes": frozen(bias_sizes),
        "stride": per_dim(stride, dims),
        "padding": per_dim(padding, dims),
        "dilation": per_dim(dilation, dims),
        "transposed": flag("transposed", transposed),
        "output_padding": per_dim(output_padding, dims),
        "groups": scalar("groups", groups),
        "output_mask": mask,
        "cube_math_type": stated_cube_math(cube_math_type),
    }


def _derived_facts(stated: Facts) -> dict[str, Any]:
    """The facts that follow from those that a caller stated."""
    weight = as_sizes(stated.get("weight.shape"))
    input_ = as_sizes(stated.get("input.shape"))
    mask = as_sizes(stated.get("output_mask"))
    if len(mask) != 3:
        mask = (False, False, False)
    groups = stated.get("groups", 1)
    dy_type = stated.get("grad_output.dtype")
    w_type = stated.get("weight.dtype")
    return {
        "dims": max(len(weight) - 2, 0),
        "kernel": weight[2:],
        "empty": 0 in weight or 0 in input_,
        "bias_sizes": stated.get("bias_sizes"),
        "grouped": isinstance(groups, Integral) and int(groups) > 1,
        "widths": _widths(stated),
        "compute_dtype": promote((dy_type, stated.get("input.dtype"), w_type), "fp32"),
        "grad_weight.dtype": promote((w_type, dy_type), "fp32"),
        "wants_grad_input": bool(mask[0]),
        "wants_grad_weight": bool(mask[1]),
        "wants_grad_bias": bool(mask[2]),
    }


def _widths(stated: Facts) -> tuple[int, ...]:
    """Width of input, and of grad_output with the zeros that a stride puts between columns."""
    x = as_sizes(stated.get("input.shape"))
    dy = as_sizes(stated.get("grad_output.shape"))
    stride = as_sizes(stated.get("stride"))
    return (x[-1], dy[-1] * stride[-1]) if x and dy and stride else ()


#: Formats, and the tensors of results that the caller of a library allocates, may be stated.
FACTS = OperatorFacts(
    required=(
        "grad_output.shape",
        "grad_output.dtype",
        "input.shape",
        "input.dtype",
        "weight.shape",
        "weight.dtype",
        "stride",
        "padding",
        "dilation",
        "output_padding",
        "groups",
        "transposed",
        "output_mask",
        "cube_math_type",
    ),
    optional=(
        "grad_output.format",
        "input.format",
        "weight.format",
        "grad_input.shape",
        "grad_input.dtype",
        "grad_input.format",
        "grad_weight.shape",
        "grad_weight.dtype",
        "grad_weight.format",
        "grad_bias.shape",
        "grad_bias.dtype",
        "grad_bias.format",
        "bias_sizes",
    ),
    derive=_derived_facts,
)


def _unread_bias_sizes(checked: Mapping[str, Any]) -> list[str]:
    """A note where the bias is not what the page wants, which nobody notices."""
    bias_sizes = checked["bias_sizes"]
    channels = checked["grad_output.shape"][1]
    if bias_sizes in (None, (channels,)):
        return []
    return [
        f"bias_sizes is {bias_sizes}, the layer has {channels} output channels: the documentation "
        f"wants ({channels},), the library does not look at it unless the input is empty"
    ]


def _unread_output_padding(checked: Mapping[str, Any]) -> list[str]:
    """Notes on an output padding of a transposed layer that does not fit, which nobody notices.

    The library's checker holds it against the stride in 3-D alone, and against ``gradOutput``
    nowhere: that one's size counts.
    """
    extra = checked["output_padding"]
    if not checked["transposed"]:
        return []
    sizes, kernel = checked["input.shape"][2:], checked["weight.shape"][2:]
    stride, dilation, pads = checked["stride"], checked["dilation"], checked["padding"]
    sides = sides_of(pads, len(kernel))
    ends = tuple(end for _, end in sides_of(extra, len(kernel)))
    notes = []
    wanted = transposed_sizes(sizes, kernel, stride, sides, dilation, ends)
    size = tuple(checked["grad_output.shape"][2:])
    if wanted != size:
        notes.append(
            f"output_padding is {extra}, which makes grad_output {wanted}; it is {size}, and the "
            "gradients are those of this size: the library's checker does not compare the two"
        )
    limits = zip(ends, stride, dilation, strict=True)
    if any(end >= max(step, apart) for end, step, apart in limits):
        notes.append(
            f"output_padding is {extra}; PyTorch takes values below stride {stride} or dilation "
            f"{dilation} alone, the library's checker takes others in 1-D and 2-D layers"
        )
    return notes


def convolution(checked: Mapping[str, Any]) -> Convolution:
    """The layer that facts describe which the limits have let pass.

    Raises ``ArgumentError`` for an output padding of the form of four that means two things.
    """
    n, cin, *spatial = checked["input.shape"]
    _, cout, *out = checked["grad_output.shape"]
    kernel = checked["weight.shape"][2:]
    pads, extra = checked["padding"], checked["output_padding"]
    if len(extra) != len(kernel):  # [h, h, w, w]
        if extra[::2] != extra[1::2]:
            raise ArgumentError(
                f"output_padding is {extra}; in the form of four both entries of an axis agree"
            )
        extra = extra[::2]
    sides = (pads[::2], pads[1::2]) if len(pads) != len(kernel) else (pads, pads)
    return Convolution(
        n=n,
        cin=cin,
        cout=cout,
        spatial=tuple(spatial),
        kernel=kernel,
        stride=checked["stride"],
        padding=tuple(zip(*sides, strict=True)),
        dilation=checked["dilation"],
        groups=checked["groups"],
        transposed=checked["transposed"],
        output_padding=extra,
        outputs=tuple(out),
    )


def _problem(checked: Mapping[str, Any]) -> str:
    """One line for reports; also of empty calls, which are no convolution."""
    n, cin, *spatial = checked["input.shape"]
    cout, kernel = checked["grad_output.shape"][1], checked["weight.shape"][2:]
    what = "transposed convolution" if checked["transposed"] else "convolution"
    groups = f", groups {checked['groups']}" if checked["groups"] > 1 else ""
    return (
        f"backward of a {len(kernel)}-D {what}, {cin} -> {cout} channels, kernel "
        f"{'x'.join(map(str, kernel))}, stride {list(checked['stride'])}, input {n} x "
        f"{'x'.join(map(str, spatial))}{groups}; {checked['input.dtype']}"
    )


def _shapes(tensors: Tensors) -> tuple[tuple[int, ...], ...]:
    """Shapes of the three gradients."""
    grad_output, input_, weight = tensors
    return tuple(input_.shape), tuple(weight.shape), (int(grad_output.shape[1]),)


def _empty(call: Call, tensors: Tensors, mask: tuple[bool, bool, bool]) -> dict[str, Array | None]:
    """Results of an empty batch or channel: no elements, or zeros that are cleared."""
    dy, x, w = (dtype(t.dtype) for t in tensors)
    dtypes = (promote((x, dy), FP32), promote((w, dy), FP32), dy)
    outputs: dict[str, Array | None] = dict.fromkeys(GRADIENTS)
    for name, wanted, shape, out_dtype in zip(
        GRADIENTS, mask, _shapes(tensors), dtypes, strict=True
    ):
        if wanted:
            tensor = call.output(name, shape, out_dtype)
            if tensor.size_bytes:
                call.clear(tensor)
            if name == "grad_bias" and 0 not in tensors[0].shape:
                call.notes.append(_EMPTY_BIAS)
            outputs[name] = call.arrays.get(name)
    return outputs


# -- the card ------------------------------------------------------------------------------


def arguments(c: Convolution) -> dict[str, Any]:
    """The arguments besides operands that describe a layer.

    Raises ``ArgumentError`` where padding differs by side, which only 2-D calls can say.
    """
    even = all(before == after for before, after in c.padding)
    if not even and c.dims != 2:
        also = (
            "state this layer in 2-D with a height of 1"
            if c.dims == 1
            else "call conv3d_backprop_filter and conv3d_backprop_input, which take six values"
        )
        sides = ", ".join(f"[{before}, {after}]" for before, after in c.padding)
        raise ArgumentError(
            f"padding is {sides}; before and after may differ in 2-D layers only: pad the input "
            f"first and state no padding, or {also}"
        )
    return {
        "stride": c.stride,
        "padding": tuple(before for before, _ in c.padding) if even else c.sides,
        "dilation": c.dilation,
        "transposed": c.transposed,
        "output_padding": c.extra,
        "groups": c.groups,
    }


def _call(p: Wanted, operands: Mapping[str, Operand], options: dict[str, Any]) -> Result:
    """The call of a command line's problem."""
    return convolution_backward(
        operands["dy"],
        operands["x"],
        operands["w"],
        (p.c.cout,) if p.mask[2] else None,
        **arguments(p.c),
        output_mask=p.mask,
        cube_math_type=p.cube_math_type,
        **options,
    )


_READ = ("dy", "x", "w")


def _limit(name: str, sample: Sample[Wanted]) -> float:
    """That of the type of a gradient: the one that an operand and dy are computed in."""
    return LIMITS[sample_type(sample, name, "dy").name]


def _limit_of_input(sample: Sample[Wanted]) -> float:
    """It leaves the cube in the type computed with."""
    return max(LIMITS[sample_math(sample, *_READ).dtype.name], _limit("x", sample))


def gradients(p: Wanted) -> tuple[Output[Wanted], ...]:
    """The results of a call, with channels first."""
    three: tuple[Output[Wanted], ...] = (
        Output(
            name="grad_input",
            axes="(N, Cin, ...)",
            expected=computed("grad_input", *_READ),
            limit=_limit_of_input,
        ),
        Output(
            name="grad_weight",
            axes=f"({p.weight_axes()})",
            expected=computed("grad_weight", *_READ),
            limit=partial(_limit, "w"),
        ),
        Output(
            name="grad_bias",
            axes="(Cout,)",
            expected=lambda sample: conv_bias_grad(sample.arrays["dy"]),
            limit=partial(_limit, "dy"),
        ),
    )
    return tuple(output for output, wanted in zip(three, p.mask, strict=True) if wanted)


def _mask(text: str) -> tuple[bool, ...]:
    """The gradients that are wanted: of names, or of three bits."""
    names = ("input", "weight", "bias")
    words = text.split(",")
    if len(text) == len(names) and set(text) <= {"0", "1"}:
        words = [name for name, bit in zip(names, text, strict=True) if bit == "1"]
    if not words or len(set(words)) != len(words) or not set(words) <= set(names):
        raise ArgumentError(
            f"expected at least one of {','.join(names)}, or bits such as 110, got {text!r}"
        )
    return tuple(name in words for name in names)


_MASK = Option(
    name="mask",
    read=_mask,
    metavar="NAMES",
    help=(
        "gradients wanted: input,weight,bias or some of them, or bits in that order such as 110 "
        "(default: all)"
    ),
)

CARD: Card[Wanted] = Card(
    function=convolution_backward,
    problem=stated_plain,
    inputs=(
        Input(name="x", axes="N, Cin, ...", shape=lambda p: p.c.x_shape),
        Input(name="w", axes=Wanted.weight_axes, shape=lambda p: p.c.w_shape),
        Input(name="dy", axes="N, Cout, ...", shape=lambda p: p.c.dy_shape),
    ),
    outputs=gradients,
    call=_call,
    dtypes=(FP16, BF16, FP32),
    tilings={
        ConvBackpropInput: GemmTiling,
        ConvForward: GemmTiling,
        ConvBackpropFilter: FilterTiling,
        Matmul: ProductTiling,
    },
    strided=(*_OPERANDS, *GRADIENTS),
    options=(
        LAYER,
        BATCH,
        CIN,
        COUT,
        SIZE,
        KERNEL,
        STRIDE,
        PADDING,
        DILATION,
        GROUPS,
        replace(TRANSPOSED, help="of a transposed convolution (default: no)"),
        OUTPUT_PADDING,
        _MASK,
        CUBE_MATH_TYPE,
    ),
    example=(
        "npusim run convolution_backward --device ascend910b2 --cin 32 --cout 16 --size 14x14 "
        "--kernel 3 --padding 1 --dtype fp32 --mask 110 --check --output grads.npz"
    ),
    facts=FACTS,
)
