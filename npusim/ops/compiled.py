"""Gradients of a convolution as functions of the vendor's tensor compiler, on blocked layouts.

Each takes two fp16 operands, lists of sizes and a ``para_dict``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from numbers import Integral
from typing import TYPE_CHECKING, Any

from npusim.base.dtypes import FP16
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.base.yamltree import suggest
from npusim.call.spec import Array, Operand, Spec
from npusim.kernels.filter_gradient.filter_gradient import ConvBackpropFilter
from npusim.kernels.filter_gradient.filter_gradient import Tiling as FilterTiling
from npusim.kernels.implicit_gemm.implicit_gemm import Tiling as GemmTiling
from npusim.kernels.implicit_gemm.input_gradient import ConvBackpropInput
from npusim.ops.arguments import frozen, operand
from npusim.ops.blocked import (
    blocked_input_grad,
    blocked_map,
    fractal_filter,
    fractal_filter_grad,
    stated_blocked,
)
from npusim.ops.blocked_gradients import blocked_gradient, fractal_gradient
from npusim.ops.card import Card, Input
from npusim.ops.layer import Wanted
from npusim.ops.options import (
    BATCH,
    BIAS,
    CIN,
    COUT,
    DILATION,
    GROUPS,
    KERNEL,
    LAYER,
    PADDING,
    SIZE,
    STRIDE,
    Option,
)
from npusim.problem.layouts import group_dict
from npusim.problem.limits.facts import Facts, OperatorFacts, tensor_facts, type_name
from npusim.problem.limits.forms import (
    FILTER_2D,
    FILTER_3D,
    INPUT_2D,
    INPUT_3D,
    Form,
    described,
    form_of,
)
from npusim.results import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from npusim.call.options import Keywords

# -- the functions -----------------------------------------------------------------------------


def conv2d_backprop_filter(
    input_x: Array | Spec,
    out_backprop: Array | Spec,
    filter_sizes: Sequence[int] | Array,
    para_dict: Mapping[str, Any],
    **options: Unpack[Keywords],
) -> Result:
    """Gradient of a 2-D convolution's filter.

    ``input_x`` (N, C1, H, W, 16) and ``out_backprop`` (N, Co1, Ho, Wo, 16) are fp16 arrays, or
    ``npusim.spec``s for a timing-only run. ``filter_sizes`` is [Cout, Cin / groups, KH, KW].
    ``para_dict``: strides [sH, sW]; padding [up, down, left, right]; dilations [1, 1, dH, dW];
    groups (default 1); res_dtype "float32"; kernel_name (not used here).

    The result ``outputs[0]`` is (real_g, cin1_g * KH * KW, cout_g, 16) fp32, byte for byte
    FRACTAL_Z with C0 = 16. With several groups to a fractal the chip leaves sums across groups
    in the off-diagonal blocks, which no reader uses; here a kernel of its own clears them.

    Keywords are those of ``npusim.call.Options``; ``tiling`` is "auto" or a
    ``npusim.kernels.filter_gradient.filter_gradient.Tiling``. Raises ``RuleError`` naming the
    argument that the documentation refuses or that does not fit the others, ``ArgumentError`` for
    the rest.
    """
    return _filter_gradient(
        "conv2d_backprop_filter", input_x, out_backprop, filter_sizes, para_dict, options
    )


def depthwise_conv2d_backprop_filter(
    input_x: Array | Spec,
    out_backprop: Array | Spec,
    filter_sizes: Sequence[int] | Array,
    para_dict: Mapping[str, Any],
    **options: Unpack[Keywords],
) -> Result:
    """Gradient of a depth-wise 2-D convolution's filter.

    ``input_x`` (N, C1, H, W, 16) and ``out_backprop`` (N, C1, Ho, Wo, 16) are fp16 arrays, or
    ``npusim.spec``s for a timing-only run. ``filter_sizes`` is [C, 1, KH, KW]: every channel has
    one filter. ``para_dict``: strides [sH, sW]; padding [up, down, left, right]; dilations
    [1, 1, dH, dW]; res_dtype "float32"; kernel_name (not used here).

    The result ``outputs[0]`` is (C1, KH * KW, 16, 16) fp32, byte for byte FRACTAL_Z: what stands
    off the diagonal of a fractal is zero. The cube computes it as the gradient of C groups,
    sixteen to a fractal. Undocumented: signature and limits are assumed to be those of
    ``conv2d_backprop_filter``. Keywords are those of ``npusim.call.Options``. Raises ``RuleError``
    or ``ArgumentError`` naming the argument.
    """
    return _filter_gradient(
        "depthwise_conv2d_backprop_filter", input_x, out_backprop, filter_sizes, para_dict, options
    )


def conv3d_backprop_filter(
    x: Array | Spec,
    out_backprop: Array | Spec,
    filter_size: Sequence[int] | Array,
    para_dict: Mapping[str, Any],
    **options: Unpack[Keywords],
) -> Result:
    """Gradient of a 3-D convolution's filter.

    ``x`` (N, D, C1, H, W, 16) and ``out_backprop`` (N, Do, Co1, Ho, Wo, 16) are fp16 arrays, or
    ``npusim.spec``s for a timing-only run. ``filter_size`` is [Cout, Cin / groups, KD, KH, KW].
    ``para_dict``: strides [sD, sH, sW]; pads [front, tail, up, down, left, right]; dilations
    [1, 1, 1, dH, dW]; groups (default 1); group_dict (optional; it follows from the sizes and must
    agree); res_dtype "float32"; kernel_name (not used here).

    The result ``outputs[0]`` is (real_g, KD * cin1_g * KH * KW, cout_g, 16) fp32, byte for byte
    FRACTAL_Z_3D with C0 = 16, with zeros in blocks between groups. The signature is that of the
    vendor's tensor compiler; its limits are assumed to be those of its sister functions. Keywords
    are those of ``npusim.call.Options``. Raises ``RuleError`` or ``ArgumentError`` naming the
    argument.
    """
    return _filter_gradient(
        "conv3d_backprop_filter", x, out_backprop, filter_size, para_dict, options
    )


def conv2d_backprop_input(
    filters: Array | Spec,
    out_backprop: Array | Spec,
    filter_sizes: Sequence[int] | Array,
    input_sizes: Sequence[int] | Array,
    para_dict: Mapping[str, Any],
    **options: Unpack[Keywords],
) -> Result:
    """Gradient of a 2-D convolution's input.

    ``filters`` is FRACTAL_Z (real_g * cin1_g * KH * KW, cout_g / 16, 16, 16) and ``out_backprop``
    5HD (N, Co1, Ho, Wo, 16), both fp16 arrays or ``npusim.spec``s (timing only). ``filter_sizes``
    is [Cout, Cin / groups, KH, KW], ``input_sizes`` [N, Cin, H, W]. ``para_dict``: strides
    [sH, sW]; padding [up, down, left, right]; dilations [1, 1, dH, dW]; res_dtype "float16" or
    "float32"; kernel_name (not used here); group_dict (its ``groups`` follow from the sizes and
    must agree).

    The result ``outputs[0]`` is (N, C1, H * W, 16), channels padded with zeros. The signature is
    that of the vendor's tensor compiler; its limits are assumed to be those of its sister
    functions. Keywords are those of ``npusim.call.Options``. Raises ``RuleError`` or
    ``ArgumentError`` naming the argument.
    """
    return _input_gradient(
        "conv2d_backprop_input",
        filters,
        out_backprop,
        filter_sizes,
        input_sizes,
        para_dict,
        options,
    )


def depthwise_conv2d_backprop_input(
    filters: Array | Spec,
    out_backprop: Array | Spec,
    filter_sizes: Sequence[int] | Array,
    input_sizes: Sequence[int] | Array,
    para_dict: Mapping[str, Any],
    **options: Unpack[Keywords],
) -> Result:
    """Gradient of a depth-wise 2-D convolution's input.

    ``filters`` is FRACTAL_Z (C1 * KH * KW, 1, 16, 16), weights on the diagonals of its fractals,
    and ``out_backprop`` 5HD (N, C1, Ho, Wo, 16), both fp16 arrays or ``npusim.spec``s (timing
    only). ``filter_sizes`` is [C, 1, KH, KW]: every channel has one filter; ``input_sizes`` is
    [N, C, H, W]. ``para_dict``: strides [sH, sW]; padding [up, down, left, right]; dilations
    [1, 1, dH, dW]; res_dtype "float16" or "float32"; kernel_name (not used here).

    The result ``outputs[0]`` is (N, C1, H * W, 16), channels padded with zeros. The cube computes
    it as the gradient of C groups, sixteen to a fractal. Undocumented: signature and limits are
    assumed to be those of ``conv2d_backprop_input``. Keywords are those of ``npusim.call.Options``.
    Raises ``RuleError`` or ``ArgumentError`` naming the argument.
    """
    return _input_gradient(
        "depthwise_conv2d_backprop_input",
        filters,
        out_backprop,
        filter_sizes,
        input_sizes,
        para_dict,
        options,
    )


def conv3d_backprop_input(
    filter: Array | Spec,
    out_backprop: Array | Spec,
    filter_size: Sequence[int] | Array,
    input_size: Sequence[int] | Array,
    para_dict: Mapping[str, Any],
    **options: Unpack[Keywords],
) -> Result:
    """Gradient of a 3-D convolution's input.

    ``filter`` is FRACTAL_Z_3D (real_g * KD * cin1_g * KH * KW, cout_g / 16, 16, 16) and
    ``out_backprop`` 6HD (N, Do, Co1, Ho, Wo, 16), both fp16 arrays or ``npusim.spec``s (timing
    only). ``filter_size`` is [Cout, Cin / groups, KD, KH, KW], ``input_size`` [N, D, H, W, Cin].
    ``para_dict``: strides [1, sD, sH, sW, 1]; pads [front, tail, up, down, left, right];
    dilations [1, 1, dH, dW, 1]; res_dtype "float16" or "float32"; kernel_name (not used here);
    group_dict (its ``groups`` follow from filter_size and input_size and must agree); tensor_bias,
    Cin values of res_dtype added after rounding (optional).

    The result ``outputs[0]`` is (N, D, C1, H * W, 16), channels padded with zeros. Unlike
    the vendor's function, ``input_size`` is not written to. Keywords are those of
    ``npusim.call.Options``. Raises ``RuleError`` or ``ArgumentError`` naming the argument.
    """
    return _input_gradient(
        "conv3d_backprop_input", filter, out_backprop, filter_size, input_size, para_dict, options
    )


# -- how they run ------------------------------------------------------------------------------

#: The arguments of each function.
FORMS: Mapping[str, Form] = {
    "conv2d_backprop_filter": replace(FILTER_2D, optional={"groups": 1}),
    "depthwise_conv2d_backprop_filter": FILTER_2D,
    "conv3d_backprop_filter": replace(FILTER_3D, optional={"groups": 1, "group_dict": None}),
    "conv2d_backprop_input": replace(INPUT_2D, optional={"group_dict": None}),
    "depthwise_conv2d_backprop_input": INPUT_2D,
    "conv3d_backprop_input": replace(
        INPUT_3D, optional={"group_dict": None, "tensor_bias": None}, required=("group_dict",)
    ),
}

#: Parts of a ``para_dict`` that no limit speaks of.
_UNLIMITED = ("kernel_name", "tensor_bias")


def _filter_gradient(
    name: str,
    x: Any,
    out_backprop: Any,
    filter_sizes: Any,
    para_dict: Mapping[str, Any],
    options: Keywords,
) -> Result:
    """A call of the filter gradient ``name``, by its arguments."""
    form = FORMS[name]
    x = operand(x)
    dy = operand(out_backprop)
    call = CARDS[name].begin(options, **{form.operands[0]: x, "out_backprop": dy})
    checked = stated(form, x, dy, (filter_sizes,), para_dict)
    return fractal_gradient(call, checked, x, dy)


def _input_gradient(
    name: str,
    filters: Any,
    out_backprop: Any,
    filter_sizes: Any,
    input_sizes: Any,
    para_dict: Mapping[str, Any],
    options: Keywords,
) -> Result:
    """A call of the input gradient ``name``, by its arguments."""
    form = FORMS[name]
    w = operand(filters)
    dy = operand(out_backprop)
    bias = None
    if "tensor_bias" in form.optional and para_dict.get("tensor_bias") is not None:
        bias = operand(para_dict["tensor_bias"])
    operands = {form.operands[0]: w, "out_backprop": dy, "tensor_bias": bias}
    call = CARDS[name].begin(options, **operands)
    checked = stated(form, w, dy, (filter_sizes, input_sizes), para_dict)
    if checked.get("group_dict", ()) is None:  # it follows from the sizes: nobody has to state it
        del checked["group_dict"]
    return blocked_gradient(call, checked, dy, w, bias)


# -- facts for the documented limits -----------------------------------------------------------


def stated(
    form: Form, first: Any, out_backprop: Any, lists: Sequence[Any], para_dict: Mapping[str, Any]
) -> dict[str, Any]:
    """The facts of a call; operands are anything with ``shape`` and ``dtype``.

    Optional parts that are None are as if left out. Raises ``ArgumentError`` where a part of
    ``para_dict`` is missing or unknown.
    """
    para = _parameters(form, para_dict)
    facts = tensor_facts(**{form.operands[0]: first, form.operands[1]: out_backprop})
    for name, value in zip(form.lists, lists, strict=True):
        facts[name] = frozen(value)
    facts.update(dict.fromkeys(form.required))
    facts.update({name: value for name, value in para.items() if name not in _UNLIMITED})
    facts["res_dtype"] = type_name(para["res_dtype"])
    return facts


def _parameters(form: Form, para_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of ``para_dict`` and their defaults, out of reach of later changes to it."""
    needed = ("strides", form.pads, "dilations")
    defaults = {"res_dtype": form.res_dtype, "kernel_name": None, **form.optional}
    missing = [key for key in needed if key not in para_dict]
    if missing:
        raise ArgumentError(f"para_dict lacks {missing}; it needs {', '.join(needed)}")
    for key in para_dict:
        if key not in needed and key not in defaults:
            hint = suggest(str(key), [*needed, *defaults])
            raise ArgumentError(f"para_dict has the unknown key {key!r}{hint}")
    parameters = {key: frozen(para_dict[key]) for key in needed}
    for key, default in defaults.items():
        value = frozen(para_dict.get(key))
        if value is None:
            value = default
        if value is not None:
            parameters[key] = value
    return parameters


def _operator_facts(form: Form) -> OperatorFacts:
    """The facts that a caller of a function states."""
    first, second = form.operands
    groups = ("groups",) if "groups" in form.optional else ()
    return OperatorFacts(
        required=(
            f"{first}.shape",
            f"{first}.dtype",
            f"{second}.shape",
            f"{second}.dtype",
            *form.lists,
            "strides",
            form.pads,
            "dilations",
            *groups,
            "res_dtype",
        ),
        optional=("group_dict",) if "group_dict" in form.optional else (),
        derive=derived_facts,
    )


def derived_facts(facts: Facts) -> dict[str, Any]:
    """The facts that follow from those stated; none from lists that have a wrong length."""
    try:
        form = form_of(facts)
        layer = described(facts)
        dy = facts["out_backprop.shape"]
        dims = len(layer.kernel)
        ranks_fit = dims in (2, 3) and (len(dy), len(facts["dilations"])) == (dims + 3, dims + 2)
        numbers = [
            layer.n,
            layer.cin,
            layer.cout,
            *layer.spatial,
            *layer.kernel,
            *layer.stride,
            *layer.dilation,
            *facts[form.pads],
            *dy,
        ]
    except (StopIteration, KeyError, TypeError, ValueError):
        return {}
    lengths = {len(layer.spatial), len(layer.stride), len(layer.padding)}
    if not ranks_fit or lengths != {dims} or not all(isinstance(n, Integral) for n in numbers):
        return {}
    derived: dict[str, Any] = {
        "one_row": layer.spatial[-2] == 1,
        "groups": layer.groups,
        "stride H * W": prod(layer.stride[-2:]),
        "stride D * H * W": prod(layer.stride),
        "kernel H * W": prod(layer.kernel[-2:]),
        "kernel D * H * W": prod(layer.kernel),
    }
    if form.of_filter:
        return derived
    pads: list[int] = []  # (up, down, left, right) of the stride-1 convolution that computes dx
    inserted: list[int] = []  # rows and columns of dy with the zeros that a stride puts between
    for axis in (-2, -1):
        before, _ = layer.padding[axis]
        reach = layer.dilation[axis] * (layer.kernel[axis] - 1)
        last_read = (dy[axis - 1] - 1) * layer.stride[axis]
        pads += [reach - before, layer.spatial[axis] + before - last_read - 1]
        inserted.append(dy[axis - 1] * layer.stride[axis])
    derived["zero-inserted dY H and W"] = tuple(inserted)
    derived["derived backward pads"] = tuple(pads)
    return derived


# -- cards -------------------------------------------------------------------------------------

_LAYER_OPTIONS = (
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
)

#: A depth-wise layer has as many groups as channels, and one filter for each.
_DEPTHWISE_OPTIONS = (
    LAYER,
    BATCH,
    replace(CIN, help="channels (default: as in --input)"),
    SIZE,
    KERNEL,
    STRIDE,
    PADDING,
    DILATION,
)

_BIAS_OPTION = replace(
    BIAS, help="add a bias per input channel to the result (default: only one given by --input)"
)


def _filter_card(
    function: Callable[..., Result],
    dims: int,
    options: tuple[Option, ...],
    example: str,
    *,
    depthwise: bool = False,
) -> Card[Wanted]:
    """The card of a filter gradient."""
    form = FORMS[function.__name__]

    def call(p: Wanted, operands: Mapping[str, Operand], options: dict[str, Any]) -> Result:
        packing = {"groups": p.c.groups, "group_dict": group_dict(p.c.plan)}
        stated_packing = {key: packing[key] for key in form.optional}
        para_dict = form.para(p.c, **stated_packing)
        return function(operands["x"], operands["dy"], *form.sizes(p.c), para_dict, **options)

    return Card(
        function=function,
        problem=stated_blocked(dims, depthwise=depthwise),
        inputs=(blocked_map("x", dims), blocked_map("dy", dims)),
        outputs=lambda _: (fractal_filter_grad(dims),),
        call=call,
        dtypes=(FP16,),
        tilings={ConvBackpropFilter: FilterTiling},
        options=options,
        example=example,
        facts=_operator_facts(form),
    )


def _input_card(
    function: Callable[..., Result],
    dims: int,
    options: tuple[Option, ...],
    example: str,
    *,
    depthwise: bool = False,
) -> Card[Wanted]:
    """The card of an input gradient."""
    form = FORMS[function.__name__]

    def call(p: Wanted, operands: Mapping[str, Operand], options: dict[str, Any]) -> Result:
        parts = {"group_dict": group_dict(p.c.plan), "tensor_bias": operands.get("bias")}
        para_dict = form.para(p.c, **{key: parts[key] for key in form.optional})
        return function(operands["w"], operands["dy"], *form.sizes(p.c), para_dict, **options)

    inputs = [blocked_map("dy", dims), fractal_filter(dims)]
    if "tensor_bias" in form.optional:
        inputs.append(
            Input(name="bias", axes="Cin,", shape=lambda p: (p.c.cin,), wanted=lambda p: p.bias)
        )
    return Card(
        function=function,
        problem=stated_blocked(dims, depthwise=depthwise),
        inputs=tuple(inputs),
        outputs=lambda _: (blocked_input_grad(dims),),
        call=call,
        dtypes=(FP16,),
        tilings={ConvBackpropInput: GemmTiling},
        without=("deterministic",),
        options=options,
        example=example,
        facts=_operator_facts(form),
    )


CARDS: Mapping[str, Card[Wanted]] = {
    "conv2d_backprop_filter": _filter_card(
        conv2d_backprop_filter,
        2,
        _LAYER_OPTIONS,
        "npusim run conv2d_backprop_filter --device ascend910 --layer resnet50/res4_3x3 --batch 2 "
        "--check --trace trace.json",
    ),
    "depthwise_conv2d_backprop_filter": _filter_card(
        depthwise_conv2d_backprop_filter,
        2,
        _DEPTHWISE_OPTIONS,
        "npusim run depthwise_conv2d_backprop_filter --device ascend910 --layer mobilenet_v1/dw5 "
        "--batch 2 --check",
        depthwise=True,
    ),
    "conv3d_backprop_filter": _filter_card(
        conv3d_backprop_filter,
        3,
        _LAYER_OPTIONS,
        "npusim run conv3d_backprop_filter --device ascend910 --cin 32 --cout 16 --size 4x14x14 "
        "--kernel 3 --padding 1 --check",
    ),
    "conv2d_backprop_input": _input_card(
        conv2d_backprop_input,
        2,
        _LAYER_OPTIONS,
        "npusim run conv2d_backprop_input --device ascend910 --layer resnet50/res4_3x3 --batch 2 "
        "--check",
    ),
    "depthwise_conv2d_backprop_input": _input_card(
        depthwise_conv2d_backprop_input,
        2,
        _DEPTHWISE_OPTIONS,
        "npusim run depthwise_conv2d_backprop_input --device ascend910 --layer mobilenet_v1/dw5 "
        "--batch 2 --check",
        depthwise=True,
    ),
    "conv3d_backprop_input": _input_card(
        conv3d_backprop_input,
        3,
        (*_LAYER_OPTIONS, _BIAS_OPTION),
        "npusim run conv3d_backprop_input --device ascend910 --cin 32 --cout 16 --size 4x14x14 "
        "--kernel 3 --padding 1 --bias --check",
    ),
}
